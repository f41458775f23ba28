"""torch.compile's log by frame: a function's code object with all its compilations, and the user's line for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.examined import plan_records
from perfscope.model.finding import AbstainError, Scope, Where
from perfscope.model.frames import Owner, owner_of
from perfscope.model.intervals import EMPTY, Intervals, union
from perfscope.model.trace import RECORDED, Trace

if TYPE_CHECKING:
    from perfscope.model.compile_log import CodeLine, Compile, CompileLog, GraphBreak, LoggedRecompile
    from perfscope.model.torch_plan import LoadedPlan

_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)")
_TORCH = re.compile(r"(?:^|/)torch/(?:_\w+|autograd|distributed|fx|nn|optim|utils)/")
"""Paths of torch when it runs from a checkout, outside of installed packages."""
_DOC_SITE = "https://meta-pytorch.github.io/compile-graph-break-site/gb"
MOST_TEXT = 300
"""Maximum number of characters of torch's texts in a table or an advice."""
LIMIT_DOC_ID = "gb0039"
"""torch's id of a break due to the limit of compilations."""
_LIMIT_WORDS = re.compile(r"(?:recompile|cache.?size).?limit", re.IGNORECASE)

_NEVER = np.iinfo(np.int64).max

_ROUNDING_NS = 1_000_000
"""Metrics and events of one compilation record its start with different clock readings."""


class CompiledFrame(Struct, frozen=True, kw_only=True):
    """One code object, from its first compilation to the last (or to ``torch._dynamo.reset()``)."""

    compiles: tuple[Compile, ...]
    recompiles: tuple[LoggedRecompile, ...]
    skips: tuple[GraphBreak, ...]
    """Breaks that left the whole frame in eager mode."""

    @property
    def function(self) -> str:
        """Name of the function in the program; continuations after a graph break have the function's name."""
        return plain_function(
            next((compilation.function for compilation in self.compiles if compilation.function), None)
        )

    @property
    def place(self) -> CodeLine | None:
        """Its first line, in any file."""
        return next((compilation.place for compilation in self.compiles if compilation.place), None)

    @property
    def user_place(self) -> CodeLine | None:
        """Its first line if it is the user's function, else the user's line that called it."""
        stack = next((compilation.stack for compilation in self.compiles if compilation.stack), ())
        return user_place(self.place, stack)

    @property
    def ids(self) -> frozenset[str]:
        """Its compile ids."""
        return frozenset(compilation.compile_id for compilation in self.compiles)

    @property
    def limit(self) -> GraphBreak | None:
        """The record of reaching the limit of compilations, if any."""
        return next((skip for skip in self.skips if hit_limit(skip)), None)


def compile_log_of(trace: Trace) -> CompileLog:
    """Return the log of a trace; ``AbstainError`` without a log or without compilations."""
    log = trace.compile_log
    if log is None:
        raise AbstainError(f"not recorded: {RECORDED['compile_log']}", ("compile_log",))
    if not log.compiles and not log.breaks:
        raise AbstainError("nothing was compiled", ("compile_log",))
    return log


def hit_limit(skip: GraphBreak) -> bool:
    """Whether a frame runs in eager mode because of the limit of compilations."""
    return skip.doc_id == LIMIT_DOC_ID or _LIMIT_WORDS.search(skip.reason) is not None


def plain_function(name: str | None) -> str:
    """Return ``f`` for ``torch_dynamo_resume_in_f_at_4``; ``'a frame'`` without a name."""
    if name is None:
        return "a frame"
    resumed = _RESUMED.fullmatch(name)
    return name if resumed is None else resumed["function"]


def resumed_at(name: str | None) -> tuple[str, int] | None:
    """Return the function and line of a resume function, which continues after that line."""
    resumed = _RESUMED.fullmatch(name) if name is not None else None
    return None if resumed is None else (resumed["function"], int(resumed["line"]))


def user_place(code_line: CodeLine | None, stack: Sequence[CodeLine]) -> CodeLine | None:
    """Return the line itself if it is the user's, else the user's innermost line on the stack, else the line itself."""
    if code_line is not None and is_users(code_line.file):
        return code_line
    return next((outer for outer in reversed(stack) if is_users(outer.file)), code_line)


def is_users(file: str) -> bool:
    """Whether a file is the program's own, and not part of a package, torch or Python."""
    return owner_of(file) is Owner.USER and _TORCH.search(file) is None


def short_place(code_line: CodeLine) -> str:
    """``train.py:12``, without folders."""
    return f"{code_line.file.replace(chr(92), '/').rpartition('/')[2]}:{code_line.line}"


def where_of(code_line: CodeLine | None) -> Where:
    """Return the line as the place of a finding."""
    return Where() if code_line is None else Where(file=code_line.file, line=code_line.line)


def doc_link(doc_id: str | None) -> str | None:
    """Return the URL of torch's page about a kind of graph break."""
    return None if doc_id is None else f"{_DOC_SITE}/{doc_id}.html"


def one_line(text: str | None) -> str | None:
    """Return torch's text as a table cell."""
    return None if text is None else " ".join(text.split())[:MOST_TEXT]


def first_hint(graph_break: GraphBreak) -> str | None:
    """Return the first line of torch's first hint for a break."""
    return next((one_line(hint.splitlines()[0]) for hint in graph_break.hints if hint.strip()), None)


def compiled_frames(trace: Trace) -> tuple[CompiledFrame, ...]:
    """Return the frames of the log by their first compilation.

    A repeated id means that ``torch._dynamo.reset()`` restarted the numbering: it is another frame.
    """
    log = trace.compile_log
    if log is None:
        return ()
    groups: list[list[Compile]] = []
    latest: dict[str, list[Compile]] = {}
    seen: dict[str, set[str]] = {}
    for compilation in log.compiles:
        frame = frame_of(compilation.compile_id)
        compiles = latest.get(frame)
        if compiles is None or compilation.compile_id in seen[frame]:
            compiles = latest[frame] = []
            seen[frame] = set()
            groups.append(compiles)
        compiles.append(compilation)
        seen[frame].add(compilation.compile_id)
    group_of = {id(compilation): compiles for compiles in groups for compilation in compiles}

    def group(record: LoggedRecompile | GraphBreak) -> int:
        compilation = compilation_of(trace, record.compile_id, record.time_ns)
        return id(latest.get(frame_of(record.compile_id)) if compilation is None else group_of[id(compilation)])

    again: dict[int, list[LoggedRecompile]] = defaultdict(list)
    for recompile in log.recompiles:
        again[group(recompile)].append(recompile)
    skipped: dict[int, list[GraphBreak]] = defaultdict(list)
    for skip in log.breaks:
        if skip.skipped_frame:
            skipped[group(skip)].append(skip)
    return tuple(
        CompiledFrame(
            compiles=tuple(compiles), recompiles=tuple(again[id(compiles)]), skips=tuple(skipped[id(compiles)])
        )
        for compiles in groups
    )


def frame_of(compile_id: str) -> str:
    """Return ``'0'`` for ``'0/1'``, ``'!0/1'`` for ``'!0/1/2'``."""
    return compile_id.rpartition("/")[0] or compile_id


def compile_spans(trace: Trace, compiles: Iterable[Compile]) -> Intervals:
    """Return when the given compilations took place, as a union on the trace's clock.

    It has all phases of their ids, including the backward's compilation. A log without phases has only durations in its
    metrics; a backward's is then placed after its forward's.
    """
    log = trace.compile_log
    if log is None:
        return EMPTY
    starts: list[int] = []
    ends: list[int] = []
    for compilation in compiles:
        for start, end in _spans_of(trace, compilation):
            starts.append(start + log.clock_offset_ns)
            ends.append(end + log.clock_offset_ns)
    return union(np.array(starts, np.int64), np.array(ends, np.int64))


def _spans_of(trace: Trace, compilation: Compile) -> Iterator[tuple[int, int]]:
    phases = trace.fact(_phases_by_id).get(compilation.compile_id, ())
    begin, limit = _bounds(trace, compilation)
    found = [(start, end) for start, end in phases if begin <= start < limit]
    if found:
        yield from found
        return
    if compilation.start_ns is not None:
        yield (
            compilation.start_ns,
            compilation.start_ns + (compilation.duration_ns or 0) + (compilation.backward_ns or 0),
        )


def _bounds(trace: Trace, compilation: Compile) -> tuple[int, int]:
    """Return the interval in which an id belongs to this compilation, because ids may be reused."""
    same = trace.fact(compiles_by_id)[compilation.compile_id]
    if len(same) == 1 or compilation.start_ns is None:
        return 0, _NEVER
    later = [other.start_ns for other in same if other.start_ns is not None and other.start_ns > compilation.start_ns]
    return compilation.start_ns - _ROUNDING_NS, min(later, default=_NEVER) - _ROUNDING_NS


def _phases_by_id(trace: Trace) -> dict[str, list[tuple[int, int]]]:
    result: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for phase in trace.compile_log.phases if trace.compile_log is not None else ():
        if phase.compile_id is not None:
            result[phase.compile_id].append((phase.start_ns, phase.end_ns))
    return result


def compiles_by_id(trace: Trace) -> dict[str, list[Compile]]:
    """Map each id to its compilations in order, because ``torch._dynamo.reset()`` numbers frames again."""
    result: dict[str, list[Compile]] = defaultdict(list)
    for compilation in trace.compile_log.compiles if trace.compile_log is not None else ():
        result[compilation.compile_id].append(compilation)
    return result


def compilation_of(trace: Trace, compile_id: str, time_ns: int | None) -> Compile | None:
    """Return the latest compilation with an id that had begun at a time."""
    same = trace.fact(compiles_by_id).get(compile_id, [])
    begun = [compilation for compilation in same if time_ns is None or (compilation.start_ns or 0) <= time_ns]
    return next(iter(begun[-1:] or same), None)


# Graph breaks of a plan, by the user's line.


class PlannedBreak(Struct, frozen=True, kw_only=True):
    """A line that ends graphs, with torch's texts about it."""

    place: CodeLine | None
    functions: tuple[str, ...]
    breaks: tuple[GraphBreak, ...]


def fallback_place(frame: CompiledFrame) -> CodeLine | None:
    """Return the user's line that left a skipped frame in eager mode.

    At the limit of compilations, the frame's own line.
    """
    skip = frame.skips[0]
    if hit_limit(skip):
        return frame.user_place
    return user_place(skip.place, skip.stack) or frame.user_place


def fallback_lines(trace: Trace) -> frozenset[tuple[str, int]]:
    """Return (file, line) of each place that left a whole frame in eager mode, except for the limit of compilations."""
    frames = [frame for frame in trace.fact(compiled_frames) if frame.skips and not hit_limit(frame.skips[0])]
    places = [fallback_place(frame) for frame in frames]
    return frozenset((code_line.file, code_line.line) for code_line in places if code_line is not None)


def planned_breaks(plan: LoadedPlan) -> tuple[PlannedBreak, ...]:
    """Return the lines that end graphs, in the order of the plan."""
    lines: dict[tuple[str, int] | None, list[tuple[str | None, GraphBreak]]] = defaultdict(list)
    places: dict[tuple[str, int] | None, CodeLine | None] = {}
    for function, graph_break in plan.breaks:
        code_line = user_place(graph_break.place, graph_break.stack)
        key = None if code_line is None else (code_line.file, code_line.line)
        lines[key].append((function, graph_break))
        places.setdefault(key, code_line)
    return tuple(
        PlannedBreak(
            place=places[key],
            functions=tuple(dict.fromkeys(plain_function(function) for function, _ in rows)),
            breaks=tuple(graph_break for _, graph_break in rows),
        )
        for key, rows in lines.items()
    )


def compile_records(trace: Trace) -> Scope:
    """Count compilations and graph breaks of torch.compile and compilations of jax.

    Planned programs if there is a plan.
    """
    if trace.torch_plans:
        return plan_records(trace)
    log = trace.compile_log
    count = len(trace.compile_events) + (0 if log is None else len(log.compiles) + len(log.breaks))
    return Scope(count, "compilations in the log")
