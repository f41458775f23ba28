"""What the peak of a memory would be without some of its blocks: an exact replay, and an upper bound of the saving.

Replayed are all blocks of a kind, in every step of the recording: without those of one step alone another step would
hold the peak. What is computed in their place (a chunk of the logits, a gradient made later) comes on top, so the
saving is an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.memory_ops import asking_op
from perfscope.model.finding import Cell
from perfscope.model.memory import ALLOCATION_ROUNDING, Int64, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Trace

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidable:
    """Blocks of one kind that need not be alive at the peak, or not be at all."""

    kind: str
    """Short and without numbers: ``temporaries of the optimizer``."""
    said: str
    """What holds the peak, behind its size: ``logits and their copies``."""
    advice: str
    rows: Int64
    """Of the timeline's ``blocks``, in all steps; a block that is not needed at several times is there as often."""
    until: Int64 | None = None
    """Positions until which each of them is needed; None: not at all."""
    since: Int64 | None = None
    """Positions from which on each of them is needed again, behind a gap that begins at ``until``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """An `Avoidable` with what it does to the peak. Bytes."""

    found: Avoidable
    held_bytes: int
    """At the peak, of blocks that need not be there then."""
    blocks: Int64
    """Their rows, largest first."""
    saved_bytes: int
    peak_bytes: int


def replayed(timeline: MemoryTimeline, found: Avoidable) -> Replayed:
    """The peak of ``timeline`` without what ``found`` says is not needed."""
    position, peak = timeline.peak()
    blocks = timeline.blocks
    start, end = blocks["start"][found.rows], blocks["end"][found.rows]
    begin = start if found.until is None else np.clip(found.until, start, end)
    stop = end if found.since is None else np.clip(found.since, begin, end)
    size = blocks["bytes"][found.rows].astype(np.int64)
    gone = (begin <= position) & (stop > position)
    held = found.rows[gone]
    curve = timeline.live()
    # at every change of the curve, less what is not needed from there on; gaps begin and end at places of their own
    places = np.unique(np.concatenate((curve.positions, begin, stop)))
    level = curve.bytes[np.maximum(np.searchsorted(curve.positions, places, side="right") - 1, 0)]
    change = np.zeros(len(places) + 1, np.int64)
    np.add.at(change, np.searchsorted(places, begin), size)
    np.add.at(change, np.searchsorted(places, stop), -size)
    lowered = int((level - np.cumsum(change)[:-1]).max(initial=0))
    return Replayed(
        found=found,
        held_bytes=int(size[gone].sum()),
        blocks=held[np.argsort(-blocks["bytes"][held], kind="stable")],
        saved_bytes=peak - lowered,
        peak_bytes=peak,
    )


def same_size(sizes: Int64, of: int) -> npt.NDArray[np.bool_]:
    """Whether sizes are, but for rounding, ``of`` bytes, or those of as many elements of half or twice the bytes."""
    alike = np.zeros(len(sizes), bool)
    for wanted in (of, of // 2, 2 * of):
        alike |= np.abs(sizes - wanted) < ALLOCATION_ROUNDING
    return alike


def line_of(timeline: MemoryTimeline, row: int) -> SourceLine | None:
    """The user's line that a block was asked for at."""
    index = int(timeline.blocks["line"][row])
    return None if index == MISSING else timeline.lines[index]


@dataclass(frozen=True, slots=True)
class AskingOps:
    """The op that asked for each block. ``codes``: shape (blocks,), into ``names``; ``''`` where none is known."""

    codes: Int64
    names: tuple[str, ...]

    def matching(self, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        """By block: whether the whole name of its op matches."""
        alike = [code for code, name in enumerate(self.names) if pattern.fullmatch(name)]
        return np.asarray(np.isin(self.codes, alike))

    def unknown(self) -> npt.NDArray[np.bool_]:
        """By block: whether its op is not known."""
        return np.asarray(np.isin(self.codes, [code for code, name in enumerate(self.names) if not name]))


def asking_ops(trace: Trace, timeline: MemoryTimeline) -> AskingOps:
    """The ops behind all blocks. ``trace``: the one that the timeline's rows are of."""
    distinct, inverse = np.unique(timeline.blocks["op"], return_inverse=True)
    names = tuple(asking_op(trace, int(row)) or "" for row in distinct.tolist())
    return AskingOps(inverse.astype(np.int64), names)


def block_rows(trace: Trace, timeline: MemoryTimeline, rows: Int64) -> tuple[Mapping[str, Cell], ...]:
    """Evidence: one row a line, op and name, most bytes first."""
    groups: dict[tuple[str | None, int | None, str | None, str | None], list[int]] = {}
    for row in rows.tolist():
        line = line_of(timeline, row)
        op = asking_op(trace, int(timeline.blocks["op"][row]))
        name = trace.text(int(timeline.blocks["name"][row])) or trace.text(int(timeline.blocks["module"][row])) or None
        key = (None if line is None else line.file, None if line is None else line.line, op, name)
        held = groups.setdefault(key, [0, 0])
        held[0] += int(timeline.blocks["bytes"][row])
        held[1] += int(timeline.blocks["count"][row])
    ordered = sorted(groups.items(), key=lambda one: -one[1][0])[:MAX_ROWS]
    return tuple(
        {"held_bytes": size, "blocks": count, "file": file, "line": line, "op": op, "name": name}
        for (file, line, op, name), (size, count) in ordered
    )
