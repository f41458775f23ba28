"""Steps of recordings without step marks: ranges of the host that repeat, or executions of one compiled program.

vLLM and SGLang name a range for every engine step. A program may mark its loop with a range of its own. A JAX trace
holds the executions of each jitted function; the one with most of the time is the step. A step lasts from one such
begin to the next, the last one up to its own end or the end of the device work after it. A pause of several steps'
length (compiling, an evaluation, a checkpoint) is no part of the step before it, and first ones that last as long are
warm-up: they are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.time.spans import named_slices
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import MISSING, SliceKind, Trace

LEAST_REPEATS = 3
"""Fewer ranges or executions are no loop."""

LEAST_SHARE = 0.5
"""Of the capture for ranges, of the time of all compiled programs for executions: with less it is not the loop."""

PAUSE = 3
"""Medians of the step: what is longer holds a pause, and ends with its own range or execution."""

_ENGINE_STEP = re.compile(r"execute_.*context.*generation.*|step\[.*\]")
"""What vLLM and SGLang call one engine step; one of them is a step already."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """What repeats, as windows in ns, in order."""

    starts: Int64
    ends: Int64
    what: str
    """``'ranges named ...'`` or ``'executions of jit_train_step'``."""


def repetition(trace: Trace) -> Repetition | None:
    """Engine steps, else a range that repeats over half of the capture, else executions of a program; or ``None``."""
    return _engine_steps(trace) or _repeated_range(trace) or _executions(trace)


def _engine_steps(trace: Trace) -> Repetition | None:
    slices = trace.rows["slices"]
    chosen = named_slices(trace, _ENGINE_STEP.fullmatch) & (slices["kind"] == SliceKind.ANNOTATION)
    rows = _outermost(trace, np.flatnonzero(chosen))
    return _windows(trace, slices["start_ns"][rows], slices["end_ns"][rows], "ranges of engine steps")


def _repeated_range(trace: Trace) -> Repetition | None:
    slices = trace.rows["slices"]
    by_name: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(slices["kind"] == SliceKind.ANNOTATION).tolist():
        by_name[_NUMBER.sub("#", trace.text(int(slices["name"][row])))].append(row)
    start, end = trace.span_ns()
    best, most = None, LEAST_SHARE * (end - start)
    for name, members in by_name.items():
        rows = np.array(members, np.int64)
        if len(rows) < LEAST_REPEATS or len(np.unique(slices["thread"][rows])) > 1:
            continue
        rows = _outermost(trace, rows)
        time = union(slices["start_ns"][rows], slices["end_ns"][rows]).total()
        if len(rows) >= LEAST_REPEATS and time >= most:
            best, most = (name, rows), time
    if best is None:
        return None
    name, rows = best
    return _windows(trace, slices["start_ns"][rows], slices["end_ns"][rows], f"ranges named {name}")


def _executions(trace: Trace) -> Repetition | None:
    ops = trace.rows["hlo_ops"]
    rows = np.flatnonzero((ops["run_id"] != MISSING) & (ops["module"] != MISSING) & ~ops["encloses"])
    if not len(rows):
        return None
    modules, module_of = np.unique(ops["module"][rows], return_inverse=True)
    spent = np.bincount(module_of, weights=(ops["end_ns"] - ops["start_ns"])[rows])
    most = int(np.argmax(spent))
    if spent[most] < LEAST_SHARE * spent.sum():
        return None
    rows = rows[module_of == most]
    runs, run_of = np.unique(ops["run_id"][rows], return_inverse=True)
    if len(runs) < LEAST_REPEATS:
        return None
    starts = np.full(len(runs), np.iinfo(np.int64).max)
    ends = np.zeros(len(runs), np.int64)
    np.minimum.at(starts, run_of, ops["start_ns"][rows])
    np.maximum.at(ends, run_of, ops["end_ns"][rows])
    return _windows(trace, starts, ends, f"executions of {trace.text(int(modules[most]))}", alone=True)


def _outermost(trace: Trace, rows: Int64) -> Int64:
    """Rows of ``slices`` that lie in no other of them; in order of time."""
    slices = trace.rows["slices"]
    rows = rows[np.argsort(slices["start_ns"][rows], kind="stable")]
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(slices["end_ns"][rows])
    return rows[np.concatenate(([True], slices["start_ns"][rows][1:] >= reach[:-1]))]


def _windows(trace: Trace, starts: Int64, ends: Int64, what: str, *, alone: bool = False) -> Repetition | None:
    """From each start to the next. ``alone``: the last one ends with itself, and not with the device work after it."""
    if not len(starts):
        return None
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order].astype(np.int64), ends[order].astype(np.int64)
    tables = () if alone else ("kernels", "copies")
    work = [int(trace.rows[table]["end_ns"].max()) for table in tables if len(trace.rows[table])]
    until = np.append(starts[1:], max([int(ends[-1]), *work])).astype(np.int64)
    median = np.median(until - starts)
    until = np.where(until - starts > PAUSE * median, np.minimum(ends, until), until)
    warm = int(np.argmax(until - starts <= PAUSE * median))
    return Repetition(
        starts=starts[warm:], ends=until[warm:], what=what + (f" after {warm:,} of warm-up" if warm else "")
    )
