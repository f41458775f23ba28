"""What torch.compile logged, by frame: a function's code object with all its compilations, and whose line it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.model.compile_log import CodeLine, Compile, CompileLog, GraphBreak, Recompile
from perfscope.model.finding import AbstainError, Where
from perfscope.model.frames import Owner, owner_of
from perfscope.model.intervals import EMPTY, Intervals, union
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import RECORDED, Trace

_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)")
_TORCH = re.compile(r"(?:^|/)torch/(?:_\w+|autograd|distributed|fx|nn|optim|utils)/")
"""torch run from a checkout of its own: its files lie in no installed package."""
_DOC_SITE = "https://meta-pytorch.github.io/compile-graph-break-site/gb"
MOST_TEXT = 300
"""Characters of a text of torch's in a table or an advice."""
LIMIT_DOC_ID = "gb0039"
"""torch's id of a frame that reached its limit of compilations."""
_LIMIT_WORDS = re.compile(r"(?:recompile|cache.?size).?limit", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFrame:
    """One code object, from its first compilation to the last (or to ``torch._dynamo.reset()``)."""

    compiles: tuple[Compile, ...]
    recompiles: tuple[Recompile, ...]
    skips: tuple[GraphBreak, ...]
    """Breaks that left the whole frame to eager mode."""

    @property
    def function(self) -> str:
        """The program's name of it; what follows a graph break is named like the function."""
        return plain_function(next((one.function for one in self.compiles if one.function), None))

    @property
    def place(self) -> CodeLine | None:
        """Its first line, in whoever's file that is."""
        return next((one.place for one in self.compiles if one.place), None)

    @property
    def user_place(self) -> CodeLine | None:
        """Its first line if it is the user's function, else the line of the user's that called it."""
        stack = next((one.stack for one in self.compiles if one.stack), ())
        return user_place(self.place, stack)

    @property
    def ids(self) -> frozenset[str]:
        """Its compile ids."""
        return frozenset(one.compile_id for one in self.compiles)

    @property
    def limit(self) -> GraphBreak | None:
        """The record of reaching the limit of compilations, if it did."""
        return next((skip for skip in self.skips if hit_limit(skip)), None)


def compile_log_of(trace: Trace) -> CompileLog:
    """The log of a trace; ``AbstainError`` where there is none, or nothing was compiled."""
    log = trace.compile_log
    if log is None:
        raise AbstainError(f"not recorded: {RECORDED['compile_log']}")
    if not log.compiles and not log.breaks:
        raise AbstainError("nothing was compiled")
    return log


def hit_limit(skip: GraphBreak) -> bool:
    """Whether a frame went to eager mode because it was compiled too often."""
    return skip.doc_id == LIMIT_DOC_ID or _LIMIT_WORDS.search(skip.reason) is not None


def plain_function(name: str | None) -> str:
    """``f`` of ``torch_dynamo_resume_in_f_at_4``; ``'a frame'`` where the log names none."""
    if name is None:
        return "a frame"
    resumed = _RESUMED.fullmatch(name)
    return name if resumed is None else resumed["function"]


def resumed_at(name: str | None) -> tuple[str, int] | None:
    """Function and line of a resume function: it goes on behind that line."""
    resumed = _RESUMED.fullmatch(name) if name is not None else None
    return None if resumed is None else (resumed["function"], int(resumed["line"]))


def user_place(place: CodeLine | None, stack: Sequence[CodeLine]) -> CodeLine | None:
    """The place itself if it is the user's, else the innermost line of the user's on the stack, else the place."""
    if place is not None and is_users(place.file):
        return place
    return next((outer for outer in reversed(stack) if is_users(outer.file)), place)


def is_users(file: str) -> bool:
    """Whether a file is the program's own: no package's, no part of torch or Python."""
    return owner_of(file) is Owner.USER and _TORCH.search(file) is None


def short_place(place: CodeLine) -> str:
    """``train.py:12``, without folders."""
    return f"{place.file.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"


def where_of(place: CodeLine | None) -> Where:
    """A place as that of a finding."""
    return Where() if place is None else Where(file=place.file, line=place.line)


def doc_link(doc_id: str | None) -> str | None:
    """torch's page on a kind of graph break."""
    return None if doc_id is None else f"{_DOC_SITE}/{doc_id}.html"


def one_line(text: str | None) -> str | None:
    """A text of torch's as a cell of a table."""
    return None if text is None else " ".join(text.split())[:MOST_TEXT]


def first_hint(found: GraphBreak) -> str | None:
    """torch's first hint on a break, its first line."""
    return next((one_line(hint.splitlines()[0]) for hint in found.hints if hint.strip()), None)


def compiled_frames(trace: Trace) -> tuple[CompiledFrame, ...]:
    """Frames of the log in the order of their first compilation.

    An id that comes again was given anew after ``torch._dynamo.reset()``: that is another frame.
    """
    log = trace.compile_log
    if log is None:
        return ()
    groups: list[tuple[str, list[Compile]]] = []
    latest: dict[str, list[Compile]] = {}
    seen: dict[str, set[str]] = {}
    for one in log.compiles:
        frame = frame_of(one.compile_id)
        held = latest.get(frame)
        if held is None or one.compile_id in seen[frame]:
            held = latest[frame] = []
            seen[frame] = set()
            groups.append((frame, held))
        held.append(one)
        seen[frame].add(one.compile_id)
    by_frame: dict[str, list[list[Compile]]] = defaultdict(list)
    for frame, held in groups:
        by_frame[frame].append(held)
    again: dict[int, list[Recompile]] = defaultdict(list)
    for recompile in log.recompiles:
        found = _holder(by_frame[frame_of(recompile.compile_id)], recompile.compile_id, recompile.time_ns)
        again[id(found)].append(recompile)
    skipped: dict[int, list[GraphBreak]] = defaultdict(list)
    for skip in log.breaks:
        if skip.skipped_frame:
            found = _holder(by_frame[frame_of(skip.compile_id)], skip.compile_id, skip.time_ns)
            skipped[id(found)].append(skip)
    return tuple(
        CompiledFrame(compiles=tuple(held), recompiles=tuple(again[id(held)]), skips=tuple(skipped[id(held)]))
        for _, held in groups
    )


def frame_of(compile_id: str) -> str:
    """``'0'`` of ``'0/1'``, ``'!0/1'`` of ``'!0/1/2'``."""
    return compile_id.rpartition("/")[0] or compile_id


def compile_spans(trace: Trace, compiles: Iterable[Compile]) -> Intervals:
    """When the given compilations were worked on, moments once, on the trace's clock.

    All phases of their ids, the backward's compilation with them; where a log has no phases the durations of its
    metrics, of which a backward's is placed behind its forward's.
    """
    log = trace.compile_log
    if log is None:
        return EMPTY
    starts: list[int] = []
    ends: list[int] = []
    for one in compiles:
        for start, end in _spans_of(trace, one):
            starts.append(start + log.clock_offset_ns)
            ends.append(end + log.clock_offset_ns)
    return union(np.array(starts, np.int64), np.array(ends, np.int64))


def _spans_of(trace: Trace, one: Compile) -> Iterator[tuple[int, int]]:
    phases = trace.fact(_phases_by_id).get(one.compile_id, ())
    begin, limit = _bounds(trace, one)
    found = [(start, end) for start, end in phases if begin <= start < limit]
    if found:
        yield from found
        return
    if one.start_ns is not None:
        yield one.start_ns, one.start_ns + (one.duration_ns or 0) + (one.backward_ns or 0)


_NEVER = np.iinfo(np.int64).max
_ROUNDING_NS = 1_000_000
"""Metrics and events of one compilation say its start by different clock readings."""


def _bounds(trace: Trace, one: Compile) -> tuple[int, int]:
    """From when to when an id stands for this compilation: it may be given anew."""
    same = trace.fact(_compiles_by_id)[one.compile_id]
    if len(same) == 1 or one.start_ns is None:
        return 0, _NEVER
    later = [other.start_ns for other in same if other.start_ns is not None and other.start_ns > one.start_ns]
    return one.start_ns - _ROUNDING_NS, min(later, default=_NEVER) - _ROUNDING_NS


def _phases_by_id(trace: Trace) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for phase in trace.compile_log.phases if trace.compile_log is not None else ():
        if phase.compile_id is not None:
            found[phase.compile_id].append((phase.start_ns, phase.end_ns))
    return found


def _compiles_by_id(trace: Trace) -> dict[str, list[Compile]]:
    found: dict[str, list[Compile]] = defaultdict(list)
    for one in trace.compile_log.compiles if trace.compile_log is not None else ():
        found[one.compile_id].append(one)
    return found


def _holder(frames: list[list[Compile]], compile_id: str, time_ns: int | None) -> list[Compile] | None:
    """Of the frames that had an id in turn the one it belongs to, judged by time."""
    if len(frames) == 1:
        return frames[0]
    holding = [held for held in frames if any(one.compile_id == compile_id for one in held)]
    if len(holding) < 2 or time_ns is None:
        return holding[0] if holding else None
    begun = [held for held in holding if (held[0].start_ns or 0) <= time_ns]
    return begun[-1] if begun else holding[0]


# Graph breaks of a plan, by the user's line.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBreak:
    """A line that ends graphs, and all that torch says of it."""

    place: CodeLine | None
    functions: tuple[str, ...]
    breaks: tuple[GraphBreak, ...]


def planned_breaks(held: LoadedPlan) -> tuple[PlannedBreak, ...]:
    """Lines that end graphs, in the order they were found."""
    lines: dict[tuple[str, int] | None, list[tuple[str | None, GraphBreak]]] = defaultdict(list)
    places: dict[tuple[str, int] | None, CodeLine | None] = {}
    for function, found in held.breaks:
        at = user_place(found.place, found.stack)
        key = None if at is None else (at.file, at.line)
        lines[key].append((function, found))
        places.setdefault(key, at)
    return tuple(
        PlannedBreak(
            place=places[key],
            functions=tuple(dict.fromkeys(plain_function(function) for function, _ in rows)),
            breaks=tuple(found for _, found in rows),
        )
        for key, rows in lines.items()
    )
