"""The picture of a memory: areas, bands and marks in parts of its width and in bytes, before any format draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_bytes, format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.analyzers.facts.memory_picture import Band, MemoryPicture
    from perfscope.analyzers.facts.trace_memories import Memory

COLORS = {
    MemoryCategory.PARAMETER: "#3f7fd6",
    MemoryCategory.OPTIMIZER_STATE: "#2a9d8f",
    MemoryCategory.GRADIENT: "#9465c2",
    MemoryCategory.ACTIVATION: "#e0892b",
    MemoryCategory.INPUT: "#c6b132",
    MemoryCategory.TEMPORARY: "#d4526e",
    MemoryCategory.COMMUNICATION: "#7c5b45",
    MemoryCategory.WORKSPACE: "#77923a",
    MemoryCategory.AUTOGRAD_DETAIL: "#cf86bd",
    MemoryCategory.OUTPUT: "#56b4d9",
    MemoryCategory.CONSTANT: "#6f7b8a",
    MemoryCategory.CODE: "#525c69",
    MemoryCategory.UNKNOWN: "#a7afb9",
}
NOT_KNOWN = "not known"

UNSEEN_COLOR = "#c9ced5"
RESERVED_COLOR = "#5c6775"

PHASE_COLORS = {
    "forward": "#8fb8e8", "backward": "#e0a3c8", "optimizer": "#a5c98b", "recompute": "#e6d27a",
}  # fmt: skip
"""Paler than the areas: a phase must not look like a category."""

ORDER = (
    MemoryCategory.CODE, MemoryCategory.CONSTANT, MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE,
    MemoryCategory.GRADIENT, MemoryCategory.INPUT, MemoryCategory.OUTPUT, MemoryCategory.UNKNOWN,
    MemoryCategory.ACTIVATION, MemoryCategory.AUTOGRAD_DETAIL, MemoryCategory.COMMUNICATION,
    MemoryCategory.WORKSPACE, MemoryCategory.TEMPORARY,
)  # fmt: skip
"""Bottom to top: what lasts lies below what comes and goes."""

MOMENTS = 12
"""Rows of the table that says the same as the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """What one category holds from each place up to the next one."""

    name: str
    color: str
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandView:
    """A step or a phase as parts (0 to 1) of the width."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureView:
    """Places are parts (0 to 1) of the width."""

    places: tuple[float, ...]
    areas: tuple[Area, ...]
    """Bottom to top."""
    reserved: tuple[int, ...] | None
    capacity_bytes: int | None
    peak_place: float
    peak_bytes: int
    steps: tuple[BandView, ...]
    phases: tuple[BandView, ...]
    begins: str
    ends: str
    moments: tuple[tuple[tuple[str, str], ...], ...]
    """Rows of (column, cell): the picture in numbers, the highest moment of each part of the axis."""


def moment(memory: Memory, position: int) -> str:
    """``'50.5 ms of 280 ms'``, ``'event 1,204 of 8,255'``, ``'instruction 15 of 22'``."""
    at, whole = position - memory.first, memory.last - memory.first
    if memory.axis == "ns":
        return f"{format_ns(at)} of {format_ns(whole)}"
    return f"{memory.axis} {at + 1:,} of {whole + 1:,}"


def picture_view(memory: Memory, picture: MemoryPicture) -> PictureView:
    """The picture of ``memory`` in parts of its width."""
    span = memory.last - memory.first + 1

    def place(position: int) -> float:
        return (position - memory.first) / span

    held = dict(zip(picture.categories, picture.bytes.tolist(), strict=True))
    areas = [
        Area(name=category_words(one), color=COLORS[one], bytes=tuple(held[one]))
        for one in ORDER
        if any(held.get(one, ()))
    ]
    if picture.unseen_bytes:
        many = len(picture.positions)
        areas.insert(0, Area(name="held before", color=UNSEEN_COLOR, bytes=(picture.unseen_bytes,) * many))

    def band(one: Band) -> BandView:
        return BandView(name=sanitize(one.name), start=place(one.start), end=place(one.end))

    begins, ends = ("0", format_ns(span - 1)) if memory.axis == "ns" else (f"{memory.axis} 1", f"{span:,}")
    return PictureView(
        places=tuple(place(position) for position in picture.positions.tolist()),
        areas=tuple(areas),
        reserved=None if picture.reserved is None else tuple(picture.reserved.tolist()),
        capacity_bytes=memory.capacity_bytes,
        peak_place=place(memory.peak_position),
        peak_bytes=memory.peak_bytes,
        steps=tuple(map(band, picture.steps)),
        phases=tuple(map(band, picture.phases)),
        begins=begins,
        ends=ends,
        moments=tuple(_moments(memory, picture, areas)),
    )


def category_words(category: MemoryCategory) -> str:
    """``optimizer state``; ``not known`` for blocks of no known category."""
    return NOT_KNOWN if category == MemoryCategory.UNKNOWN else category.name.lower().replace("_", " ")


def _moments(memory: Memory, picture: MemoryPicture, areas: list[Area]) -> Iterator[tuple[tuple[str, str], ...]]:
    total = picture.total.tolist()
    positions = picture.positions.tolist()
    span = memory.last - memory.first + 1
    highest: dict[int, int] = {}
    for index, position in enumerate(positions):
        part = (position - memory.first) * MOMENTS // span
        if part not in highest or total[index] > total[highest[part]]:
            highest[part] = index
    for index in highest.values():
        cells = [("at", moment(memory, positions[index])), ("in use", format_bytes(total[index]))]
        cells += [(area.name, format_bytes(area.bytes[index])) for area in areas]
        if picture.reserved is not None:
            cells.append(("reserved", format_bytes(int(picture.reserved[index]))))
        yield tuple(cells)
