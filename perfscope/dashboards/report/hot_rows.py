"""Where the time of compiled programs goes, as tables decided once for every report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.analyzers.programs import HotInstruction, HotPlace, HotSpots
    from perfscope.analyzers.time import DeviceTime


# The time of devices as rows: one by one where they are few, folded where they are many and alike.


MOST_DEVICE_ROWS = 8
"""Devices shown one by one: a node's worth. More are folded."""

FOLD_SPAN = 0.01
"""Devices are folded into one row if their spans agree to 1%, the usual spread between ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """The time of one device, or of several that are alike (medians then)."""

    ranks: str
    device: str
    count: int
    span_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int

    def shares(self) -> tuple[str, str, str, str]:
        """Compute, exposed communication, exposed copy and idle, in percent of the span."""
        parts = (self.compute_ns, self.exposed_communication_ns, self.exposed_copy_ns, self.idle_ns)
        compute, communication, copy, idle = (format_share(part, self.span_ns) for part in parts)
        return compute, communication, copy, idle


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """The fields of a ``DeviceTime`` that a row shows, over the whole steps."""

    rank: int | None
    ordinal: int
    name: str
    span_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int


def device_rows(analysis: Analysis) -> tuple[DeviceRow, ...]:
    """The rows of an analysis: over the steps where its account is known, else over each device's own span."""
    shares = [
        DeviceShare(
            rank=account.rank,
            ordinal=account.ordinal,
            name=account.name,
            span_ns=account.whole_ns,
            compute_ns=account.total_ns["compute"],
            exposed_communication_ns=account.total_ns["exposed_communication"],
            exposed_copy_ns=account.total_ns["exposed_copy"],
            idle_ns=account.whole_ns - account.busy_ns,
        )
        for account in analysis.accounts
        if account.device != MISSING
    ]
    return fold_devices(shares or analysis.devices)


def fold_devices(devices: Sequence[DeviceTime | DeviceShare]) -> tuple[DeviceRow, ...]:
    """A row a device; where there are many, those that are alike to a percent share one."""
    if len(devices) <= MOST_DEVICE_ROWS:
        return tuple(_device_row([device]) for device in devices)
    groups: dict[tuple[object, ...], list[DeviceTime | DeviceShare]] = {}
    for device in devices:
        parts = (device.compute_ns, device.exposed_communication_ns, device.exposed_copy_ns)
        alike = tuple(round(100 * part / device.span_ns) if device.span_ns else 0 for part in parts)
        near = [key for key in groups if key[:-1] == (device.name, alike) and _same_span(groups[key][0], device)]
        groups.setdefault(near[0] if near else (device.name, alike, len(groups)), []).append(device)
    rows = sorted(groups.values(), key=lambda group: -sum(device.idle_ns for device in group) / len(group))
    if len(rows) > MOST_DEVICE_ROWS:  # the most idle ones keep their row, the rest is summed up by its median
        kept = MOST_DEVICE_ROWS - 1
        rows = [*rows[:kept], [device for group in rows[kept:] for device in group]]
    return tuple(_device_row(group) for group in rows)


def _same_span(first: DeviceTime | DeviceShare, second: DeviceTime | DeviceShare) -> bool:
    return abs(first.span_ns - second.span_ns) <= FOLD_SPAN * max(first.span_ns, second.span_ns)


def _device_row(group: Sequence[DeviceTime | DeviceShare]) -> DeviceRow:
    ranks = [device.rank for device in group if device.rank is not None]
    names = sorted({sanitize(device.name) or "device" for device in group})
    label = names[0] if len(names) == 1 else f"{len(names)} kinds"
    ordinals = span_text([device.ordinal for device in group])
    middle = sorted(group, key=lambda device: device.idle_ns)[len(group) // 2]
    return DeviceRow(
        ranks=span_text(ranks) if ranks else "-",
        device=f"{label} ({ordinals})" if len(group) == 1 else f"{label} (x{len(group)}, median)",
        count=len(group),
        span_ns=middle.span_ns,
        compute_ns=middle.compute_ns,
        exposed_communication_ns=middle.exposed_communication_ns,
        exposed_copy_ns=middle.exposed_copy_ns,
        idle_ns=middle.idle_ns,
    )


def span_text(numbers: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` -> ``'0-2, 5'``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


NAME_LIMIT = 28
"""Characters of a program's or an instruction's name in a table."""

PLACE_LIMIT = 40
"""Characters of a source line or a scope in a table: the end tells."""

NAMES = frozenset(
    {
        "program",
        "source line",
        "scope",
        "instruction",
        "op",
        "mainly",
        "at",
        "frame",
        "kernel",
        "lines",
        "ATen ops",
        "module",
        "mostly at",
        "of",
    }
)
"""Columns whose words are names of the program, here and in the tables of programs and of torch.compile."""

WORDS = NAMES | {
    "bound by",
    "state",
    "backend",
    "FX cache",
    "collective",
    "group",
    "algorithm",
    "category",
    "known by",
    "memory",
    "phase",
    "a step",
    "at the peak",
    "computes",
    "asks for it",
    "in",
    "way",
    "block size",
    "graph",
}
"""Columns of text; the others are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRow:
    """A line, a scope or an instruction as cells, and its share as a number for a bar."""

    cells: tuple[tuple[str, str], ...]
    """(column, cell); the same columns in every row of a table."""
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTable:
    """Rows worst first, and what is not in them."""

    title: str
    rows: tuple[HotRow, ...]
    left: str
    """``'and 204 more, 12.3 ms together'`` of what the model already left out; ``''`` if nothing."""


def hot_title(spots: HotSpots) -> str:
    """What the tables are of: ``'where the time goes: 42.1 ms of instructions, measured'``."""
    whole = format_ns(spots.total_ns)
    rank = f" of {sanitize(spots.program, NAME_LIMIT)}" if spots.program else ""
    rank += f" of rank {spots.rank}" if spots.rank is not None else ""
    if spots.basis == "measured":
        missed = f", {format_share(spots.unmatched_ns, spots.total_ns)} of it in no recorded program"
        return f"where the time{rank} goes: {whole} of instructions, measured" + (missed if spots.unmatched_ns else "")
    return f"where the least time{rank} goes: {whole} a run, modelled"


def place_table(what: str, places: Sequence[HotPlace], spots: HotSpots, key: str) -> HotTable:
    """Lines or scopes as a table; ``key``: the list's name in ``HotSpots``."""
    rows = tuple(
        HotRow(
            cells=(
                ("time", format_ns(hot_place.time_ns)),
                ("share", format_share(hot_place.time_ns, spots.total_ns)),
                (what, _place(hot_place)),
                *((("mainly", shorten(sanitize(hot_place.mainly), PLACE_LIMIT)),) if what != "scope" else ()),
                ("instructions", f"{hot_place.instructions:,}" if hot_place.instructions else "-"),
            ),
            share=hot_place.time_ns / spots.total_ns if spots.total_ns else 0.0,
        )
        for hot_place in places
    )
    return HotTable(title=f"by {what}", rows=rows, left=_left(spots, key))


def _place(hot_place: HotPlace) -> str:
    phase = f" ({hot_place.phase})" if hot_place.phase not in (None, "forward") else ""
    return place_end(sanitize(hot_place.name)) + phase


def place_end(text: str) -> str:
    """The end of a path or scope that is too long, cut at a slash where one is."""
    if len(text) <= PLACE_LIMIT:
        return text
    kept = text[-(PLACE_LIMIT - 2) :]
    return f"…{kept[kept.index('/') :]}" if "/" in kept else shorten(text, PLACE_LIMIT)


def instruction_table(spots: HotSpots) -> HotTable:
    """Instructions as a table; columns of the roofline only where one is known."""
    rows = tuple(
        HotRow(cells=tuple(_instruction(row, spots)), share=row.time_ns / spots.total_ns if spots.total_ns else 0.0)
        for row in spots.instructions
    )
    return HotTable(title="by instruction", rows=rows, left=_left(spots, "instructions"))


def _instruction(row: HotInstruction, spots: HotSpots) -> Iterator[tuple[str, str]]:
    yield "time", format_ns(row.time_ns)
    yield "share", format_share(row.time_ns, spots.total_ns)
    yield "instruction", shorten(sanitize(row.instruction), NAME_LIMIT)
    yield "op", shorten(sanitize(row.scope or row.opcode or ""), NAME_LIMIT)
    yield (
        "at",
        "" if row.file is None else place_end(sanitize(row.file if row.line is None else f"{row.file}:{row.line}")),
    )
    yield "calls", f"{row.calls:,}"
    if any(instruction.bound is not None for instruction in spots.instructions):
        yield "bound by", row.bound or "-"
        yield "roof", "-" if row.roof_ns is None else format_ns(row.roof_ns)
    if any(instruction.headroom_ns is not None for instruction in spots.instructions):
        yield "headroom", "-" if row.headroom_ns is None else format_ns(row.headroom_ns)


def _left(spots: HotSpots, key: str) -> str:
    left = spots.left.get(key)
    return f"and {left.count:,} more, {format_ns(left.time_ns)} together" if left is not None and left.count else ""
