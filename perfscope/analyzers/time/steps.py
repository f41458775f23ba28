"""Step windows on the trace's clock, and the length of a step."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import named_slices
from perfscope.analyzers.time.device_data.device_doubts import DeviceDoubt, doubts_in
from perfscope.analyzers.time.device_data.launched_work import launched_work
from perfscope.analyzers.time.model_calls import model_calls
from perfscope.model.finding import Basis, TimedCost
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, CallKind, SliceKind, Trace
from perfscope.model.trace.columns import Array

_CALL = re.compile(r"PjitFunction\((?P<name>.*)\)")

_MODULE = "jit_"

_NOT_IN_A_MODULE = re.compile(r"[^\w.-]")
"""Characters of a function's name that jax replaces in the module's name: ``<lambda>`` becomes ``_lambda_``."""

LEAST_MARKED = 0.5
"""Share of a step's work that a device mark must cover: ROCm draws marks around single kernels, which are shorter."""

LEAST_LATE = 0.05
"""Share of the summed steps by which work must end after the last one to count as not waited for. Less is the delay
from the last instruction to the host, and would not change a share.
"""

MOST_LEFT = 1.5
"""Maximum work after the last step, in steps, if each step reads a result: between that of one step and of two."""

LEAST_REPEATS = 3
"""Minimum number of ranges or executions in a loop."""

LEAST_SHARE = 0.5
"""Smallest share of the capture for ranges, of the time of all compiled programs for executions; with less it is not
the loop.
"""

PAUSE = 3
"""Ratio to the median step from which an interval contains a pause, so that the step ends with its own range or
execution.
"""

_NUMBER = re.compile(r"\d+")


class StepWindows(Struct, frozen=True, kw_only=True):
    """Steps of a trace: recorded ones, else windows between optimizer steps, else repetitions."""

    starts: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray
    how: str
    """``recorded``, ``optimizer`` (from the end of one optimizer step to the next), ``model`` (from one call of the
    model to the next), ``repeated`` (from one range or execution to the next) or ``none``."""
    what: str = ""
    """Kind of step in words, if the program did not mark steps: ``'executions of jit_train_step'``."""

    @property
    def count(self) -> int:
        """Number of steps; 0 if the trace has none."""
        return len(self.starts)


def step_windows(trace: Trace) -> StepWindows:
    """Return recorded steps, else optimizer windows, else calls of the model, else repetitions, else none."""
    rows = trace.rows["steps"]
    if len(rows):
        return StepWindows(starts=rows["start_ns"], ends=rows["end_ns"], numbers=rows["number"], how="recorded")
    slices = trace.rows["slices"]
    marks = [code for code, text in enumerate(trace.strings) if text.startswith("Optimizer.step#")]
    result = np.isin(slices["name"], marks) & (slices["kind"] == SliceKind.ANNOTATION)
    ends = np.sort(slices["end_ns"][result])
    if len(ends) >= 2:
        what = "from one optimizer step to the next"
        return StepWindows(
            starts=ends[:-1], ends=ends[1:], numbers=np.arange(len(ends) - 1), how="optimizer", what=what
        )
    calls = trace.fact(model_calls)
    if calls:
        return StepWindows(
            starts=np.array([call.start_ns for call in calls], np.int64),
            ends=np.array([call.end_ns for call in calls], np.int64),
            numbers=np.arange(len(calls)),
            how="model",
            what="calls of the model",
        )
    nothing = np.empty(0, np.int64)
    return (
        _engine_steps(trace)
        or _repeated_range(trace)
        or _executions(trace)
        or StepWindows(starts=nothing, ends=nothing, numbers=nothing, how="none")
    )


def whole_ns(trace: Trace) -> int:
    """Return the reference time of a cost over the whole trace: summed steps, else the whole capture.

    Steps that do not wait for their work count from the first one's dispatch to the end of the last one's work. An
    outlier counts as a usual step, because a pause of the machine in one of three steps is not in the others.
    """
    late = late_span_ns(trace)
    if late is not None:
        return late
    steps = trace.fact(step_windows)
    if steps.count:
        lengths = steps.ends - steps.starts
        usual = ~np.isin(steps.numbers, trace.fact(outlier_steps))
        return int(lengths.sum()) if usual.all() else round(lengths[usual].mean() * steps.count)
    start, end = trace.fact(capture_span)
    return end - start


def outlier_steps(trace: Trace) -> tuple[int, ...]:
    """Return the numbers of the steps that are left out of the account as outliers."""
    from perfscope.analyzers.time.account import left_out  # the account needs the steps

    return trace.fact(left_out).outliers


def capture_span(trace: Trace) -> tuple[int, int]:
    """Return begin and end of a capture without steps, ns: the first and last device work, op or range of the program.

    A tool that starts the program also records the begin and end of the process: libraries, the driver.
    """
    begin, end = trace.span_ns()
    work = [trace.rows[name] for name in ("kernels", "copies", "hlo_ops") if len(trace.rows[name])]
    if trace.part is not None or not work:
        return begin, end
    slices, calls = trace.rows["slices"], trace.rows["calls"]
    named = np.isin(slices["kind"], (SliceKind.OP, SliceKind.ANNOTATION))
    waits = calls["kind"] == CallKind.SYNC
    starts = [*(rows["start_ns"] for rows in work), slices["start_ns"][named]]
    ends = [*(rows["end_ns"] for rows in work), slices["end_ns"][named], calls["end_ns"][waits]]
    begin = max(begin, min(int(times.min()) for times in starts if len(times)))
    return begin, min(end, max(int(times.max()) for times in ends if len(times)))


def timed_cost(trace: Trace, cost_ns: int, whole_ns: int, basis: Basis = "measured") -> TimedCost:
    """Return the cost of a finding over the whole trace, in ns; ``whole_ns``: reference time of its severity."""
    return TimedCost(
        severity=severity_of(cost_ns, whole_ns),
        basis=basis,
        cost_ns=cost_ns,
        cost_ns_per_step=per_step(trace, cost_ns),
    )


def planned_cost(cost_ns: int, step_ns: int) -> TimedCost:
    """Return the modelled cost of a finding about a planned step, in ns."""
    severity = severity_of(cost_ns, step_ns)
    return TimedCost(severity=severity, basis="modelled", cost_ns=cost_ns, cost_ns_per_step=cost_ns)


def per_step(trace: Trace, cost_ns: int | float) -> int | None:
    """Return a cost over the whole trace as the cost per step; None if no step is known."""
    steps = trace.fact(step_windows)
    return round(cost_ns / steps.count) if steps.count else None


def steps_known(trace: Trace) -> int | None:
    """Return the number of steps of the run that were timed in any way; ``None`` if none was."""
    return (trace.fact(step_windows).count + max(len(trace.step_times_ns), trace.window_steps)) or None


# Run times of a step's work, if the host dispatches it and continues.
#
# A step's range on the host then lasts as long as its dispatch. Kernels and copies belong to the step in which their
# launch began (``launched_work``). In an XLA program each execution of a compiled program belongs to the step that
# called it: calls of ``f`` are spans ``PjitFunction(f)`` on the host, executions are the run ids of the module
# ``jit_f``, and both are numbered in the order of dispatch, so the first belongs to the first. One call may be missing:
# the last, in which the recording was stopped. On a GPU the call that launched the kernel is known, and its time
# decides. If a module has different counts of the two (a call that was not recorded, a program compiled ahead of time),
# its executions stay unlinked and no step has an end of its work.


class StepWork(Struct, frozen=True, kw_only=True):
    """One step: its mark on the host, and the work launched in it."""

    number: int
    start_ns: int
    """Completion of the previous step; begin of its mark if that is later."""
    end_ns: int
    """End of the last work of the step; of its mark if it has no work."""
    complete_ns: int
    """From ``start_ns`` to the completion of the step."""
    host_ns: int
    """Length of its mark on the host."""
    mark_ns: int = MISSING
    """Length of its mark on the devices, as the profiler drew it; ``MISSING`` without a mark around its work."""


class StepsWork(Struct, frozen=True, kw_only=True):
    """The work of all steps: of executions of compiled programs, or of the recorded launches."""

    start_ns: int
    """Begin of the first step; work launched before the first step has ended by then."""
    end_ns: int
    """End of the last work, or of the last step's range if that is later."""
    late: bool
    """Whether the steps do not wait for their work, so that their marks on the host contain other steps' work."""
    steps: tuple[StepWork, ...]
    """In order; empty if an execution could not be linked to its step."""

    @property
    def span_ns(self) -> int:
        """Duration of all steps together, including their work."""
        return sum(step.complete_ns for step in self.steps) if self.steps else self.end_ns - self.start_ns


def steps_work(trace: Trace) -> StepsWork | None:
    """Return the work of the steps; ``None`` without marked steps, or if their work is unknown."""
    windows, ops = trace.fact(step_windows), trace.rows["hlo_ops"]
    if windows.how == "recorded" and not len(ops):
        return _launched(trace, windows)
    if windows.how != "recorded" or not len(ops):
        return None
    start, last = int(windows.starts.min()), int(windows.ends.max())
    mine = ops["end_ns"] > start
    if not mine.any():
        return None
    end = max(last, int(ops["end_ns"][mine].max()))
    late = end - last > LEAST_LATE * int((windows.ends - windows.starts).sum())
    if late and _read_in_each(trace, windows):
        work = union(ops["start_ns"][mine], ops["end_ns"][mine])
        late = covered(work, [last], [end]).item() > MOST_LEFT * work.total() / windows.count
    return StepsWork(start_ns=start, end_ns=end, late=late, steps=_steps(trace, mine, start, end))


def device_doubts(trace: Trace) -> tuple[DeviceDoubt, ...]:
    """Return the implausible device data; nothing in them is analyzed then."""
    windows = trace.fact(step_windows)
    order = np.argsort(windows.starts, kind="stable")
    return doubts_in(trace, windows.starts[order].astype(np.int64), windows.ends[order].astype(np.int64))


def _launched(trace: Trace, windows: StepWindows) -> StepsWork | None:
    """Return the work by the calls that launched kernels and copies."""
    order = np.argsort(windows.starts, kind="stable")
    starts, ends = windows.starts[order].astype(np.int64), windows.ends[order].astype(np.int64)
    work = launched_work(trace, starts, ends)
    if work is None:
        return None
    finishes = np.where(work.ends == MISSING, ends, work.ends)
    least = LEAST_LATE * int((ends - starts).sum())
    late = not trace.fact(device_doubts) and bool(
        max(int(work.ends.max() - ends[-1]), int(work.before_ns - starts[0])) > least
    )
    completed = np.maximum(finishes, ends)
    begins = np.maximum(starts, np.concatenate(([work.before_ns], np.maximum.accumulate(completed)[:-1])))
    completed = np.maximum(completed, begins)
    marks = _device_marks(trace, windows.numbers[order])
    marks = np.where(marks >= LEAST_MARKED * (work.ends - work.begins), marks, MISSING)
    columns = (windows.numbers[order], begins, finishes, completed - begins, ends - starts, marks)
    return StepsWork(
        start_ns=int(begins[0]),
        end_ns=int(completed[-1]),
        late=late,
        steps=tuple(
            StepWork(number=number, start_ns=begin, end_ns=end, complete_ns=length, host_ns=host, mark_ns=mark)
            for number, begin, end, length, host, mark in zip(*(column.tolist() for column in columns), strict=True)
        ),
    )


def _device_marks(trace: Trace, numbers: Array) -> Array:
    """Return the length of the devices' own mark of each step, ns; ``MISSING`` without one."""
    steps = trace.rows["steps"]
    lengths = {
        int(number): int(end - start)
        for number, start, end in zip(steps["number"], steps["device_start_ns"], steps["device_end_ns"], strict=True)
        if start != MISSING
    }
    return np.array([lengths.get(int(number), MISSING) for number in numbers], np.int64)


def _read_in_each(trace: Trace, windows: StepWindows) -> bool:
    """Whether the host reads a result in every step, so that at most the work of one step is left after the last.

    That much is left if the step ends with its call, and the program reads the result in the next step.
    """
    read = {read.step for read in trace.host_reads if read.main_thread}
    return bool(read) and set(windows.numbers.tolist()) <= read


def late_span_ns(trace: Trace) -> int | None:
    """Return the duration of all steps if none waits for its work; ``None`` if the host's times are right."""
    work = trace.fact(steps_work)
    return work.span_ns if work is not None and work.late else None


def _steps(trace: Trace, mine: Array, start: int, end: int) -> tuple[StepWork, ...]:
    windows, ops = trace.fact(step_windows), trace.rows["hlo_ops"]
    order = np.argsort(windows.starts, kind="stable")
    step_of = _step_of_ops(trace, mine, windows.starts[order])
    if step_of is None:
        return ()
    finishes = np.full(len(order), MISSING, np.int64)
    known = mine & (step_of >= 0)
    np.maximum.at(finishes, step_of[known], ops["end_ns"][known])
    finishes = np.where(finishes == MISSING, windows.ends[order], finishes)
    step_works: list[StepWork] = []
    done = start
    for index, (row, finish) in enumerate(zip(order, finishes.tolist(), strict=True)):
        last = end if index == len(order) - 1 else max(done, finish)
        host = int(windows.ends[row] - windows.starts[row])
        number = int(windows.numbers[row])
        step_works.append(StepWork(number=number, start_ns=done, end_ns=finish, complete_ns=last - done, host_ns=host))
        done = last
    return tuple(step_works)


def _step_of_ops(trace: Trace, mine: Array, starts: Array) -> Array | None:
    """Return the index in ``starts`` of each instruction's step (-1: dispatched earlier).

    ``None`` if one is unknown.
    """
    ops = trace.rows["hlo_ops"]
    dispatched = _launches(trace)
    calls = _calls(trace)
    # A range is written when it ends, so the call in which the recording was stopped is missing: the last one.
    last_seen, cut_off = max(int(times[-1]) for times in [*calls.values(), starts]), False
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(ops["module"][rows], kind="stable")]
    codes, firsts = np.unique(ops["module"][rows], return_index=True)
    for code, of_module in zip(codes.tolist(), np.split(rows, firsts[1:]), strict=True):
        if (dispatched[of_module] != MISSING).all():
            continue
        runs, run_of = np.unique(ops["run_id"][of_module], return_inverse=True)
        times = calls.get(trace.text(code), np.empty(0, np.int64))
        if len(times) and len(runs) == len(times) + 1 and not cut_off:
            cut_off = True
            times = np.append(times, last_seen)
        if len(runs) != len(times) or (runs == MISSING).any():
            return None
        dispatched[of_module] = times[run_of]
    if (dispatched[mine] > ops["start_ns"][mine]).any():  # work before its dispatch: these are not its calls
        return None
    return np.searchsorted(starts, dispatched, side="right") - 1


def _launches(trace: Trace) -> Array:
    """Return the begin of the call that launched each instruction's kernel or copy; ``MISSING`` without one."""
    ops, calls = trace.rows["hlo_ops"], trace.rows["calls"]
    result = np.full(len(ops), MISSING, np.int64)
    for column, table in (("kernel", "kernels"), ("copy", "copies")):
        on_device = np.flatnonzero(ops[column] != MISSING)
        launch = trace.rows[table]["call"][ops[column][on_device]]
        known = launch != MISSING
        result[on_device[known]] = calls["start_ns"][launch[known]]
    return result


def _calls(trace: Trace) -> dict[str, Array]:
    """Return when the host called each jitted function, by its module's name, in order, without nested calls."""
    slices = trace.rows["slices"]
    modules = {
        code: _MODULE + _NOT_IN_A_MODULE.sub("_", match["name"])
        for code, text in enumerate(trace.strings)
        if (match := _CALL.fullmatch(text))
    }
    is_call = np.isin(slices["name"], list(modules))
    inner = np.zeros(len(slices), bool)
    above = slices["parent"].astype(np.int64)
    while (above != MISSING).any():  # one level of nesting per round
        known = np.maximum(above, 0)
        inner |= (above != MISSING) & is_call[known]
        above = np.where(above == MISSING, MISSING, slices["parent"][known])
    outer = np.flatnonzero(is_call & ~inner)
    times: dict[str, list[int]] = {}
    for row in outer:
        times.setdefault(modules[int(slices["name"][row])], []).append(int(slices["start_ns"][row]))
    return {module: np.sort(np.array(rows_of, np.int64)) for module, rows_of in times.items()}


# Steps of recordings without step marks: repeating ranges of the host, or executions of one compiled program.
#
# vLLM and SGLang name a range for every engine step. A program may mark its loop with a range. A JAX trace has the
# executions of each jitted function; the function with most of the time is the step. A step lasts from one such begin
# to the next, the last one up to its own end or the end of the device work after it. A pause as long as several steps
# (compiling, an evaluation, a checkpoint) is not part of the step before it, and first steps of that length are warm-up
# and excluded.


def _engine_steps(trace: Trace) -> StepWindows | None:
    slices = trace.rows["slices"]
    chosen = named_slices(trace, _is_engine_step) & (slices["kind"] == SliceKind.ANNOTATION)
    rows = _outermost(trace, np.flatnonzero(chosen))
    return _windows(trace, slices["start_ns"][rows], slices["end_ns"][rows], "ranges of engine steps")


def _is_engine_step(name: str) -> bool:
    """Whether vLLM or SGLang use this range name for one engine step; a single one is already a step."""
    if name.startswith("step["):
        return name.endswith("]")
    return name.startswith("execute_") and "generation" in name.partition("context")[2]


def _repeated_range(trace: Trace) -> StepWindows | None:
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


def _executions(trace: Trace) -> StepWindows | None:
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
    """Return the rows of ``slices`` outside of the other rows, in order of time."""
    slices = trace.rows["slices"]
    rows = rows[np.argsort(slices["start_ns"][rows], kind="stable")]
    if not len(rows):
        return rows
    reach = np.maximum.accumulate(slices["end_ns"][rows])
    return rows[np.concatenate(([True], slices["start_ns"][rows][1:] >= reach[:-1]))]


def _windows(trace: Trace, starts: Int64, ends: Int64, what: str, *, alone: bool = False) -> StepWindows | None:
    """Return windows from each start to the next.

    ``alone``: the last one ends with itself, without later device work.
    """
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
    return StepWindows(
        starts=starts[warm:],
        ends=until[warm:],
        numbers=np.arange(len(starts) - warm),
        how="repeated",
        what=what + (f" after {warm:,} of warm-up" if warm else ""),
    )


# Windows of an account of the steps.


class Windows(Struct, frozen=True, kw_only=True):
    """Steps of an account, in order; the whole capture if it has no steps. Times in ns."""

    starts: Int64
    ends: Int64
    numbers: tuple[int, ...]
    """Numbers of the steps; empty for the whole capture."""

    @property
    def whole_ns(self) -> int:
        """Sum of the lengths."""
        return int((self.ends - self.starts).sum())


def account_windows(trace: Trace) -> Windows:
    """Return the steps; from completion to completion if the program does not wait for its work; else the capture."""
    work = trace.fact(steps_work)
    if work is not None and work.late and work.steps:
        starts = np.array([step.start_ns for step in work.steps], np.int64)
        ends = starts + np.array([step.complete_ns for step in work.steps], np.int64)
        return Windows(starts=starts, ends=ends, numbers=tuple(step.number for step in work.steps))
    if work is not None and work.late:
        return Windows(starts=np.array([work.start_ns]), ends=np.array([work.end_ns]), numbers=())
    steps = trace.fact(step_windows)
    if steps.count:
        order = np.argsort(steps.starts, kind="stable")
        starts, ends = steps.starts[order].astype(np.int64), steps.ends[order].astype(np.int64)
        return Windows(starts=starts, ends=ends, numbers=tuple(steps.numbers[order].tolist()))
    begin, end = trace.fact(capture_span)
    return Windows(starts=np.array([begin], np.int64), ends=np.array([end], np.int64), numbers=())
