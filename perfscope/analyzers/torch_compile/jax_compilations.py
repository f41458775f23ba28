"""Compilations of a JAX program by function, and why a function was compiled again.

Input: the compile events of a run (``model/jax_log.py``), in the order in which they ended. jax reports the durations
of a compilation in sequence (trace, lower, compile) and, before a trace, why its cache had no entry.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.intervals import EMPTY, Intervals, union
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import Trace

Cause = Literal[
    "made anew", "control flow", "shape", "dtype", "weak type", "sharding", "static value", "structure", "setting",
    "placement", "unknown",
]  # fmt: skip
"""Difference between a call and the previous calls.

``control flow``: a loop or branch of jax.lax is called outside of jit, with a new body in each call. ``placement``:
lowered or compiled again without a trace, because an argument is on another device, is committed to its device, or has
another sharding.
"""

TIMED = ("trace", "lower", "compile")
"""Kinds of events with a duration, in their order within a compilation."""

_CONTROL_FLOW = frozenset({"scan", "while", "cond"})
"""Programs that jax makes of loops and branches outside of jit, by their primitives' names."""

_ANEW = "but seen another function defined on the same line"
_SETTINGS = "Tracing context doesn't match"
_MORE_SETTINGS = "number of tracing context values differs"
"""Reason if jax imported a module that adds settings during the first call, as Pallas does in jax 0.12. The program
sets nothing, and each function is compiled again once.
"""
_TYPE = re.compile(r"(?P<dtype>[a-z][a-z0-9_]{0,20})\[(?P<dims>[0-9, ]{0,200})\](?P<rest>[^ ]{0,300})")
_WEAK = "{weak_type=True}"
_STATIC = re.compile(r"Static\(val=(.{0,80}?)\)(?:, so|$)")
_SETTING = re.compile(r"\* ([\w ]{1,80}) differs: now ")
_MOST_DIFFERENCES = 64
"""Maximum number of arguments parsed from one reason."""

_ORDER: tuple[Cause, ...] = ("shape", "dtype", "sharding", "weak type")
"""Order of precedence if arguments differ in several ways."""


class Difference(Struct, frozen=True, kw_only=True):
    """An argument, or a leaf of one, that differs from the closest previous call."""

    cause: Cause
    argument: str
    """In jax's notation: ``sched['avg']``; empty if the cause is not an argument."""
    now: str
    before: str


class Compilation(Struct, frozen=True, kw_only=True):
    """One compiled program. Times in ns."""

    step: int | None
    trace_ns: int
    lower_ns: int
    compile_ns: int
    spans: Intervals
    """Union of the times of all its events, ns since 1970."""
    file: str | None
    line: int | None
    cause: Cause
    """``unknown`` for the first compilation of a function, and if jax gives no reason."""
    differences: tuple[Difference, ...]
    reason: str
    """jax's text; ``''`` without one."""


class CompiledFunction(Struct, frozen=True, kw_only=True):
    """A jitted function of the program, or an operation of jax itself that runs on its own (``defined_file`` None)."""

    name: str
    defined_file: str | None
    defined_line: int | None
    compilations: tuple[Compilation, ...]
    """In order; at least one."""

    @property
    def spans(self) -> Intervals:
        """Union of its compilation times; ns since 1970."""
        return joined(self.compilations)

    @property
    def again(self) -> tuple[Compilation, ...]:
        """All compilations except the first."""
        return self.compilations[1:]


class _Open(Struct, kw_only=True):
    """A function while its events are parsed."""

    defined: tuple[str | None, int | None] = (None, None)
    reason: str | None = None
    """Reason of the retrace whose compilation has not ended yet; ``None`` if jax did not trace it again."""
    parts: list[CompileEvent] = []


def compiled_functions(trace: Trace) -> tuple[CompiledFunction, ...]:
    """Return the functions of a trace's compile events, longest compilations first."""
    found: dict[tuple[str, str | None, int | None], list[Compilation]] = {}
    open_: dict[str, _Open] = {}
    explained: dict[tuple[str | None, int | None], str] = {}
    for event in trace.compile_events:
        at = (event.file, event.line)
        if event.kind in ("first_trace", "retrace"):
            if event.function is not None:
                explained[at] = event.function
                mine = open_.setdefault(event.function, _Open())
                mine.defined = (event.defined_file, event.defined_line)
                mine.reason = event.reason or ""
            continue
        name = plain_name(event.function) or explained.get(at)  # jax 0.6 reports durations without a name
        if event.kind not in TIMED or name is None or not event.duration_ns:
            continue
        mine = open_.setdefault(name, _Open())
        mine.parts.append(event)
        if event.kind == "compile":
            key = (name, *mine.defined)
            members = found.setdefault(key, [])
            members.append(_compilation(mine, first=not members))
            mine.parts, mine.reason = [], None
    for (name, file, _), members in found.items():
        if name in _CONTROL_FLOW and file is None:
            members[1:] = [replace(one, cause="control flow") if one.cause == "unknown" else one for one in members[1:]]
    functions = [
        CompiledFunction(name=name, defined_file=file, defined_line=line, compilations=tuple(members))
        for (name, file, line), members in found.items()
    ]
    return tuple(sorted(functions, key=lambda function: -function.spans.total()))


def compile_ns(trace: Trace) -> int:
    """Return the time in which anything was traced, lowered or compiled, overlaps counted once; ns."""
    return _spans(event for event in trace.compile_events if event.kind in TIMED).total()


def joined(compilations: Iterable[Compilation]) -> Intervals:
    """Return the union of the compilation times; ns since 1970."""
    every = list(compilations)
    if not every:
        return EMPTY
    starts = np.concatenate([one.spans.starts for one in every])
    return union(starts, np.concatenate([one.spans.ends for one in every]))


def plain_name(function: str | None) -> str | None:
    """Return ``step`` for ``jit(step)``, jax's notation during lowering and compiling."""
    return None if function is None else function.removeprefix("jit(").removesuffix(")")


def _compilation(mine: _Open, *, first: bool) -> Compilation:
    last = mine.parts[-1]
    reason = mine.reason or ""
    traced = any(part.kind == "trace" for part in mine.parts)
    cause: Cause = "unknown" if first else "placement"
    differences: tuple[Difference, ...] = ()
    if not first and (traced or reason):
        cause, differences = _cause(reason)
    return Compilation(
        step=last.step,
        trace_ns=_spans(part for part in mine.parts if part.kind == "trace").total(),
        lower_ns=_spans(part for part in mine.parts if part.kind == "lower").total(),
        compile_ns=_spans(part for part in mine.parts if part.kind == "compile").total(),
        spans=_spans(mine.parts),
        file=last.file,
        line=last.line,
        cause=cause,
        differences=differences,
        reason=reason,
    )


def _spans(events: Iterable[CompileEvent]) -> Intervals:
    timed = [(event.end_ns, event.duration_ns) for event in events if event.duration_ns]
    ends, lengths = (np.array(column, np.int64) for column in (zip(*timed, strict=True) if timed else ((), ())))
    return union(ends - lengths, ends)


def _cause(reason: str) -> tuple[Cause, tuple[Difference, ...]]:
    """Parse jax's text about a miss of its tracing cache."""
    if _ANEW in reason.replace("  ", " "):
        return "made anew", ()
    if _MORE_SETTINGS in reason:
        return "unknown", ()
    if _SETTINGS in reason:
        found = _SETTING.findall(reason)[:_MOST_DIFFERENCES]
        return "setting", tuple(Difference(cause="setting", argument=name, now="", before="") for name in found)
    differences = tuple(filter(None, map(_difference, reason.split("* at ")[1 : _MOST_DIFFERENCES + 1])))
    kinds = {difference.cause for difference in differences}
    for cause in _ORDER:
        if cause in kinds:
            return cause, tuple(one for one in differences if one.cause == cause)
    for cause in ("static value", "structure"):
        if cause in kinds:
            return cause, tuple(one for one in differences if one.cause == cause)
    return "unknown", ()


def _difference(text: str) -> Difference | None:
    """Parse ``x, now f32[4] and before f32[3]``."""
    argument, found, values = text.partition(", now ")
    now, also, before = values.partition(" and before ")
    if not found or not also:
        return None
    types = _TYPE.match(now), _TYPE.match(before)
    if types[0] is not None and types[1] is not None:
        return _of_types(argument, types[0], types[1])
    statics = _STATIC.search(now + ", so"), _STATIC.search(before)
    if statics[0] is not None and statics[1] is not None:
        path = argument.removeprefix("input path ")
        return Difference(cause="static value", argument=path, now=statics[0][1], before=statics[1][1])
    return Difference(cause="structure", argument=argument.removeprefix("input path "), now=now, before=before)


def _of_types(argument: str, now: re.Match[str], before: re.Match[str]) -> Difference | None:
    cause: Cause
    if now["dims"] != before["dims"]:
        cause = "shape"
    elif now["dtype"] != before["dtype"]:
        cause = "dtype"
    elif (_WEAK in now["rest"]) != (_WEAK in before["rest"]):
        cause = "weak type"
    else:
        cause = "sharding"
    plain = [f"{side['dtype']}[{side['dims']}]" for side in (now, before)]
    if cause == "sharding":
        plain = [side[0].partition("{weak_type")[0] for side in (now, before)]
    return Difference(cause=cause, argument=argument.strip(), now=plain[0], before=plain[1])


def growing_dimension(compilations: Sequence[Compilation]) -> tuple[str, int, int] | None:
    """Return (argument, first size, last size) of the only growing dimension; ``None`` without one."""
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for compilation in compilations:
        for one in compilation.differences:
            if one.cause == "shape":
                sizes.setdefault(one.argument, []).append(_dims(one.now))
    for argument, shapes in sizes.items():
        if len(shapes) < len(compilations) or len({len(shape) for shape in shapes}) != 1:
            continue
        changing = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
        if len(changing) == 1:
            column = [shape[changing[0]] for shape in shapes]
            if all(later > earlier for earlier, later in itertools.pairwise(column)):
                return argument, column[0], column[-1]
    return None


def _dims(type_: str) -> tuple[int, ...]:
    inside = type_.partition("[")[2].partition("]")[0]
    return tuple(int(size) for size in inside.replace(" ", "").split(",") if size)
