"""A function under torch.compile runs entirely in eager mode.

Example:
    Before::

        @torch.compile
        def forward(x):
            report(x)                           # cannot be compiled: all of forward is eager
            return model(x)

    After::

        @torch._dynamo.disable
        def report(x):
            print(x.shape)

Why it costs:
    If dynamo cannot end a graph and continue after it (in a loop, in a `with` block or `try` that it cannot leave,
    at its limit of compilations), it leaves the whole function to Python. Its ops then run one by one, unfused, and
    the functions that it calls are compiled separately: one graph per block instead of one for the model.

How it is found:
    From torch.compile's log: frames that were skipped, or that reached the limit of compilations (which applies to
    calls that no earlier compilation fits). The place is the user's line at which dynamo gave up. Time is measured if a
    Python stack (of the trace, or of the detail pass of `perfscope run`) attributes ops to the function: the host time
    from its first op to its last, without compiled regions between them. With an accelerator it is the device's idle
    time during these ops plus the time of their kernels while nothing else runs. It is an upper bound, because compiled
    ops take time as well. It excludes the backward pass of these ops, and the saving by fusion in a larger graph.
    If the same line also ends graphs of other functions, their time between graphs is part of this cost, and
    `graph_break` does not repeat it. Without a stack the finding is structural. A function whose ops take less than a
    thousandth of the step is not reported. Evidence: the reason with torch's id of it, and the inner functions that
    were compiled nevertheless.

Fix:
    Move the line out of the loop or out of the compiled function, or mark its function with
    `torch._dynamo.disable` so that only it is eager; for the limit see `recompilation` and
    `dynamic_shape_churn`. To get an error instead of a fallback, compile with `fullgraph=True`::

        program = torch.compile(model, fullgraph=True)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ops import spans_of_windows
from perfscope.analyzers.spans import REGION, Window, lineage, nearest_ancestor
from perfscope.analyzers.time import detail_row, per_step, step_windows
from perfscope.analyzers.torch_compile.cost import eager_cost, steady_ns
from perfscope.analyzers.torch_compile.frames import (
    CompiledFrame,
    compile_log_of,
    compile_records,
    compiled_frames,
    doc_link,
    fallback_place,
    first_hint,
    hit_limit,
    one_line,
    where_of,
)
from perfscope.analyzers.torch_compile.rules.graph_break import broken_lines
from perfscope.model.compile_log import CodeLine, Compile, GraphBreak
from perfscope.model.finding import Cell, Finding, Where, fit_title
from perfscope.model.frames import parse_frame
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, SliceKind, Trace

LEAST_SHARE = 0.001
"""Smallest share of the step for the own ops of a function."""

MAX_ROWS = 20


examined = compile_records

_NOT_OF_A_FRAME = ("autograd::", "Optimizer.", "ProfilerStep#", "perfscope.step#")
"""Spans next to the model's ops: the backward pass, which has no Python stack, and marks of steps."""


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per function and line that leaves it in eager mode, for all its frames."""
    compile_log_of(trace)
    groups: dict[tuple[str, Where], list[Fallback]] = defaultdict(list)
    for fallback in trace.fact(fallbacks):
        groups[fallback.frame.function, where_of(fallback.place)].append(fallback)
    for (function, where), members in groups.items():
        finding = _finding(trace, function, where, members)
        if finding is not None:
            yield finding


class Fallback(Struct, frozen=True, kw_only=True):
    """A frame that runs in eager mode."""

    frame: CompiledFrame
    skip: GraphBreak
    """Its first record, with the reason."""
    inner: tuple[Compile, ...]
    """Compilations of functions that it calls."""
    windows: tuple[Window, ...] | None
    """Host time from its first op to its last, without compiled regions and other frames' ops between; ``None`` without
    a Python stack that identifies its ops.
    """
    ran: bool
    """Whether the frame is on a recorded Python stack."""

    @property
    def at_limit(self) -> bool:
        """Whether it was compiled up to the limit of compilations."""
        return hit_limit(self.skip)

    @property
    def place(self) -> CodeLine | None:
        """The user's line that made dynamo stop, if it is one; else the frame's."""
        return fallback_place(self.frame)


def fallbacks(trace: Trace) -> tuple[Fallback, ...]:
    """Return every frame that was skipped whole, in the order of the log.

    The owner of an op follows from the Python stack: of the trace itself, or of ``Trace.detail``, a second recording of
    the same program whose ops are matched by order. A skipped frame still compiles the functions it calls, so only its
    work outside compiled regions is its own.
    """
    frames = [frame for frame in trace.fact(compiled_frames) if frame.skips]
    if not frames:
        return ()
    windows, ran = _windows(trace, frames)
    reached = _reached(trace)
    return tuple(
        Fallback(
            frame=frame,
            skip=frame.skips[0],
            inner=tuple(
                compilation
                for compilation in reached.get(_code(frame.place), ())
                if compilation.compile_id not in frame.ids
            ),
            windows=tuple(windows[index]) if index in windows else (() if index in ran else None),
            ran=index in ran,
        )
        for index, frame in enumerate(frames)
    )


def _code(code_line: CodeLine | None) -> tuple[str, str] | None:
    return None if code_line is None or code_line.function is None else (code_line.file, code_line.function)


def _reached(trace: Trace) -> dict[tuple[str, str] | None, list[Compile]]:
    """Map (file, function) to the compilations with a graph that were reached through it."""
    result: dict[tuple[str, str] | None, list[Compile]] = defaultdict(list)
    for compilation in trace.compile_log.compiles if trace.compile_log is not None else ():
        if compilation.has_code is False or not compilation.graph_ops:
            continue
        for code in {_code(code_line) for code_line in compilation.stack[:-1]}:
            result[code].append(compilation)
    return result


def _windows(trace: Trace, frames: list[CompiledFrame]) -> tuple[dict[int, list[Window]], frozenset[int]]:
    """Return runs of each frame's own top-level ops by index of the frame, and the frames on any Python stack."""
    stacked = trace if "python_stack" in trace.recorded else trace.detail
    if stacked is None:
        return {}, frozenset()
    shown = _shown(stacked, frames)
    ran = frozenset(shown.values())
    if not ran:
        return {}, ran
    slices = trace.rows["slices"]
    result: dict[int, list[Window]] = defaultdict(list)
    before: int | None = None
    for row in _top_level(trace):
        owner = _owner(trace, stacked, row, shown)
        start, end, thread = (int(slices[name][row]) for name in ("start_ns", "end_ns", "thread"))
        if owner is not None:
            last = result[owner][-1] if result[owner] else None
            if before == owner and last is not None and last.thread == thread:
                result[owner][-1] = Window(thread=thread, start_ns=last.start_ns, end_ns=end)
            else:
                result[owner].append(Window(thread=thread, start_ns=start, end_ns=end))
        before = owner
    return result, ran


def _top_level(trace: Trace) -> Iterator[int]:
    """Yield the ops and compiled regions in steps without an enclosing op, by thread and start."""
    slices = trace.rows["slices"]
    is_op = slices["kind"] == SliceKind.OP
    rows = np.flatnonzero(is_op)
    rows = rows[nearest_ancestor(trace, slices["parent"][rows], is_op) == MISSING]
    steps = trace.fact(step_windows)
    if steps.count:
        starts = slices["start_ns"][rows]
        inside = np.zeros(len(rows), bool)
        for begin, end in zip(steps.starts, steps.ends, strict=True):
            inside |= (starts >= begin) & (starts < end)
        rows = rows[inside]
    yield from rows.tolist()


def _owner(trace: Trace, stacked: Trace, row: int, shown: dict[int, int]) -> int | None:
    """Return the innermost frame around an op; ``None`` for compiled regions and ops outside of these frames."""
    name = trace.text(int(trace.rows["slices"]["name"][row]))
    if name.startswith(REGION) or name.startswith(_NOT_OF_A_FRAME):
        return None
    match = row if stacked is trace else detail_row(trace, row)
    if match is None:
        return None
    names = stacked.rows["slices"]["name"]
    return next((shown[code] for outer in lineage(stacked, match) if (code := int(names[outer])) in shown), None)


def _shown(stacked: Trace, frames: list[CompiledFrame]) -> dict[int, int]:
    """Map the code of a Python span's name to the index of its frame."""
    by_function: dict[str, list[int]] = defaultdict(list)
    for index, frame in enumerate(frames):
        by_function[frame.function].append(index)
    slices = stacked.rows["slices"]
    result = {}
    for code in np.unique(slices["name"][slices["kind"] == SliceKind.PYTHON]).tolist():
        shown = parse_frame(stacked.text(code))
        if shown is None:
            continue
        for index in by_function.get(shown.function, ()):
            place = frames[index].place  # Kineto omits the part of a path that is in sys.path
            if place is not None and f"/{place.file}".endswith(f"/{shown.file}"):
                result[code] = index
                break
    return result


def _finding(trace: Trace, function: str, where: Where, members: Sequence[Fallback]) -> Finding | None:
    first, whole = members[0], trace.fact(steady_ns)
    lines = () if first.at_limit else trace.fact(broken_lines)
    breaks = [line for line in lines if where_of(line.place) == where and line.seen is not False]
    known = [member.windows for member in members if member.windows is not None]
    known += [line.windows for line in breaks if line.windows]
    cost = eager_cost(trace, [window for windows in known for window in windows]) if known else None
    if cost is not None and cost.host_ns == 0 and any(member.at_limit for member in members):
        cost = None  # eager since a step before the recording
    if cost is not None and cost.cost_ns < LEAST_SHARE * whole:
        return None
    counted = sum(len(line.breaks) for line in breaks)
    ends = f" The line also ends {counted:,} graph{'s' if counted > 1 else ''} of other functions." if counted else ""
    count = len({inner.compile_id for member in members for inner in member.inner})
    inner = f" {count:,} function{'s' if count > 1 else ''} it calls {'are' if count > 1 else 'is'} compiled."
    why = "its limit of compilations is reached" if first.at_limit else first.skip.reason
    whose = ""
    if cost is not None:
        whose = f" The cost is {'lost time of the device' if cost.on_device else 'the time of its ops'}."
    return Finding(
        subject=f"{function} in eager mode",
        title=fit_title(
            f"{function} runs in eager mode",
            function,
        ),
        detail=f"All of it: {why}.{whose}{inner if count else ''}{ends}",
        severity="medium" if cost is None else severity_of(cost.cost_ns, whole),
        basis="structural" if cost is None else "measured",
        cost_ns=None if cost is None else cost.cost_ns,
        cost_ns_per_step=None if cost is None else per_step(trace, cost.cost_ns),
        where=where,
        evidence=(
            *(row for member in members for row in _rows(member)),
            *(
                _row("ends a graph", broken.compile_id, line.frames[0].function if line.frames else "a frame", broken)
                for line in breaks
                for broken in line.breaks
            ),
        )[:MAX_ROWS],
        spans=spans_of_windows(window for windows in known for window in windows),
        advice=_advice(first),
        removes=() if cost is None else cost.removes,
    )


def _rows(fallback: Fallback) -> Iterable[Mapping[str, Cell]]:
    for skip in fallback.frame.skips:
        yield _row("skipped", skip.compile_id, fallback.frame.function, skip)
    for inner in fallback.inner:
        code_line = inner.place
        yield {
            "what": "compiled",
            "compile_id": inner.compile_id,
            "function": inner.function,
            "line": None if code_line is None else f"{code_line.file}:{code_line.line}",
            "graph_ops": inner.graph_ops,
            "reason": None,
            "explanation": None,
            "doc": None,
        }


def _row(what: str, compile_id: str, function: str, skip: GraphBreak) -> Mapping[str, Cell]:
    code_line = skip.place
    return {
        "what": what,
        "compile_id": compile_id,
        "function": function,
        "line": None if code_line is None else f"{code_line.file}:{code_line.line}",
        "graph_ops": None,
        "reason": skip.reason,
        "explanation": one_line(skip.explanation),
        "doc": doc_link(skip.doc_id),
    }


def _advice(fallback: Fallback) -> str:
    if fallback.at_limit:
        return (
            "End the recompilations that used up the limit: recompilation and dynamic_shape_churn name guard and line. "
            "Raising torch._dynamo.config.recompile_limit only moves it."
        )
    hint = first_hint(fallback.skip)
    text = f" Hint from torch: {hint}" if hint else ""
    return (
        "Move the line out of the compiled function, or into a function marked with @torch._dynamo.disable. "
        "torch.compile(..., fullgraph=True) turns it into an error." + text
    )
