"""The chart of a memory over time: its areas, bands and marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Area, Areas
from perfscope.dashboards.report.blocks import Band as DrawnBand
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.memory import Band, Memory, MemoryPicture


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
    MemoryCategory.KV_CACHE: "#b5651d",
    MemoryCategory.UNKNOWN: "#a7afb9",
}
NOT_KNOWN = "not known"

UNSEEN_COLOR = "#c9ced5"

PHASE_COLORS = {
    "forward": "#8fb8e8", "backward": "#e0a3c8", "optimizer": "#a5c98b", "recompute": "#e6d27a",
}  # fmt: skip
"""Paler than the areas, so that a phase does not look like a category."""

ORDER = (
    MemoryCategory.CODE, MemoryCategory.CONSTANT, MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE,
    MemoryCategory.KV_CACHE, MemoryCategory.GRADIENT, MemoryCategory.INPUT, MemoryCategory.OUTPUT,
    MemoryCategory.UNKNOWN,
    MemoryCategory.ACTIVATION, MemoryCategory.AUTOGRAD_DETAIL, MemoryCategory.COMMUNICATION,
    MemoryCategory.WORKSPACE, MemoryCategory.TEMPORARY,
)  # fmt: skip
"""Order from bottom to top: long-lived categories below short-lived ones."""


def moment(memory: Memory, position: int) -> str:
    """``'50.5 ms of 280 ms'``, ``'event 1,204 of 8,255'``, ``'instruction 15 of 22'``."""
    index, whole = position - memory.first, memory.last - memory.first
    if memory.axis == "ns":
        return f"{format_ns(index)} of {format_ns(whole)}"
    return f"{memory.axis} {index + 1:,} of {whole + 1:,}"


def memory_areas(memory: Memory, picture: MemoryPicture, words: str) -> Areas:
    """The chart of ``memory``; ``words`` describe it for readers who cannot see it."""
    span = memory.last - memory.first + 1

    def place(position: int) -> float:
        return (position - memory.first) / span

    held = dict(zip(picture.categories, picture.bytes.tolist(), strict=True))
    areas = [
        Area(name=category_words(category), color=COLORS[category], bytes=tuple(held[category]))
        for category in ORDER
        if any(held.get(category, ()))
    ]
    if picture.unseen_bytes:
        many = len(picture.positions)
        areas.insert(0, Area(name="held before", color=UNSEEN_COLOR, bytes=(picture.unseen_bytes,) * many))

    def band(band: Band) -> DrawnBand:
        color = PHASE_COLORS.get(band.name, "")
        return DrawnBand(name=sanitize(band.name), start=place(band.start), end=place(band.end), color=color)

    begins, ends = ("0", format_ns(span - 1)) if memory.axis == "ns" else (f"{memory.axis} 1", f"{span:,}")
    return Areas(
        words=words,
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
    )


def category_words(category: MemoryCategory) -> str:
    """``optimizer state``; ``unknown`` for blocks without a known category."""
    words = category.name.lower().replace("_", " ")
    return words.replace("kv ", "KV ")
