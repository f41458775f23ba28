"""Frames that torch.compile left to eager mode as a whole, and the host time of their own ops.

Whose an op is tells the Python stack: of the trace itself, or of ``Trace.detail``, a second recording of the same
program whose ops are matched by their order (``alignment``). A frame that dynamo gave up still compiles the
functions it calls, so only what it runs outside compiled regions is its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.time.compiled_regions import REGION, Window
from perfscope.analyzers.time.sites import detail_row
from perfscope.analyzers.time.spans import lineage, nearest_ancestor
from perfscope.analyzers.time.steps import step_windows
from perfscope.analyzers.torch_compile.frames import CompiledFrame, compiled_frames, hit_limit, user_place
from perfscope.model.compile_log import CodeLine, Compile, GraphBreak
from perfscope.model.frames import parse_frame
from perfscope.model.trace import MISSING, SliceKind, Trace

_NOT_OF_A_FRAME = ("autograd::", "Optimizer.", "ProfilerStep#", "perfscope.step#")
"""Spans that stand beside the model's ops: the backward pass, which has no Python stack, and what marks steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A frame that runs in eager mode."""

    frame: CompiledFrame
    skip: GraphBreak
    """Why: the first record of it."""
    inner: tuple[Compile, ...]
    """Compilations of functions that it calls."""
    windows: tuple[Window, ...] | None
    """Host time from its first op to its last without compiled regions and other frames' ops between; ``None``: no
    Python stack tells which ops are its own."""
    ran: bool
    """Whether the frame is on a recorded Python stack."""

    @property
    def at_limit(self) -> bool:
        """Whether it was compiled before, until the limit of compilations."""
        return hit_limit(self.skip)

    @property
    def place(self) -> CodeLine | None:
        """The user's line that made dynamo give up, where it is one; else the frame's."""
        if self.at_limit:
            return self.frame.user_place
        return user_place(self.skip.place, self.skip.stack) or self.frame.user_place


def fallbacks(trace: Trace) -> tuple[Fallback, ...]:
    """Every frame that was skipped whole, in the order of the log."""
    frames = [frame for frame in trace.fact(compiled_frames) if frame.skips]
    if not frames:
        return ()
    windows, ran = _windows(trace, frames)
    reached = _reached(trace)
    return tuple(
        Fallback(
            frame=frame,
            skip=frame.skips[0],
            inner=tuple(one for one in reached.get(_code(frame.place), ()) if one.compile_id not in frame.ids),
            windows=tuple(windows[index]) if index in windows else (() if index in ran else None),
            ran=index in ran,
        )
        for index, frame in enumerate(frames)
    )


def _code(place: CodeLine | None) -> tuple[str, str] | None:
    return None if place is None or place.function is None else (place.file, place.function)


def _reached(trace: Trace) -> dict[tuple[str, str] | None, list[Compile]]:
    """By file and function: compilations that made a graph and were reached through it."""
    found: dict[tuple[str, str] | None, list[Compile]] = defaultdict(list)
    for one in trace.compile_log.compiles if trace.compile_log is not None else ():
        if one.has_code is False or not one.graph_ops:
            continue
        for code in {_code(place) for place in one.stack[:-1]}:
            found[code].append(one)
    return found


def _is_file(frame: CompiledFrame, file: str) -> bool:
    """Kineto leaves out what a path shares with ``sys.path``."""
    place = frame.place
    return place is not None and (place.file == file or place.file.endswith("/" + file))


def _windows(trace: Trace, frames: list[CompiledFrame]) -> tuple[dict[int, list[Window]], frozenset[int]]:
    """By index of the frame: runs of its own top-level ops. And the frames that a Python stack shows at all."""
    stacked = trace if "python_stack" in trace.recorded else trace.detail
    if stacked is None:
        return {}, frozenset()
    shown = _shown(stacked, frames)
    ran = frozenset(shown.values())
    if not ran:
        return {}, ran
    slices = trace.rows["slices"]
    found: dict[int, list[Window]] = defaultdict(list)
    before: int | None = None
    for row in _top_level(trace):
        owner = _owner(trace, stacked, row, shown)
        start, end, thread = (int(slices[name][row]) for name in ("start_ns", "end_ns", "thread"))
        if owner is not None:
            last = found[owner][-1] if found[owner] else None
            if before == owner and last is not None and last.thread == thread:
                found[owner][-1] = Window(thread=thread, start_ns=last.start_ns, end_ns=end)
            else:
                found[owner].append(Window(thread=thread, start_ns=start, end_ns=end))
        before = owner
    return found, ran


def _top_level(trace: Trace) -> Iterator[int]:
    """Ops and compiled regions in steps that no other op encloses, by thread and start."""
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
    """The innermost of the frames around an op; ``None`` for compiled regions and what is no frame's."""
    name = trace.text(int(trace.rows["slices"]["name"][row]))
    if name.startswith(REGION) or name.startswith(_NOT_OF_A_FRAME):
        return None
    match = row if stacked is trace else detail_row(trace, row)
    if match is None:
        return None
    names = stacked.rows["slices"]["name"]
    return next((shown[code] for outer in lineage(stacked, match) if (code := int(names[outer])) in shown), None)


def _shown(stacked: Trace, frames: list[CompiledFrame]) -> dict[int, int]:
    """Code of a Python span's name -> index of the frame that it is."""
    by_function: dict[str, list[int]] = defaultdict(list)
    for index, frame in enumerate(frames):
        by_function[frame.function].append(index)
    slices = stacked.rows["slices"]
    found = {}
    for code in np.unique(slices["name"][slices["kind"] == SliceKind.PYTHON]).tolist():
        shown = parse_frame(stacked.text(code))
        for index in by_function.get(shown.function, ()) if shown is not None else ():
            if shown is not None and _is_file(frames[index], shown.file):
                found[code] = index
                break
    return found
