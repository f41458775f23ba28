"""Saves and evaluations in the loop of a training: how often, how long, at which lines.

`perfscope run` records them exactly (table ``side_work``). Without that table, or where a program imported a library's
function under its own name before it was watched, the sampled stacks of steps without a profiler show their shares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.host_lines import step_functions
from perfscope.analyzers.time.samples import device_waits, free_samples, sampled_site, shown_kinds, stacks
from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite
from perfscope.analyzers.time.whole_run.cores import time_with_core
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.frames.side_work import evaluates, restores
from perfscope.model.intervals import EMPTY, Int64, Intervals, covered, difference, union
from perfscope.model.trace import MISSING, Rows, Trace

SideKind = Literal["save", "wait", "evaluation"]

LEAST_SAMPLES = 10
"""Minimum number of samples without exact times: the share of fewer is too uncertain to be compared with others."""

LEAST_CALLS = 10
"""Minimum number of steps for the number of other calls per step: in fewer, one evaluation more or less counts much."""

OFTEN = 0.5
"""Share of the steps from which a function with such a name is part of the step, such as ``validate_args``."""

LONGER = 1.5
"""Ratio of steps with such a function to the median step from which it is not part of all of them: short steps have few
samples, so that their number does not show it.
"""

SLOWER = 1.1
"""Ratio to other steps from which steps are slow while a save is stored: a tenth exceeds the usual spread."""

LEAST_SLOWED = 3
"""Minimum number of steps while saves are stored: fewer may be slow by chance."""

STORED_LATER_NS = 1_000_000
"""Time from the end of a call until its data is stored, from which the save is asynchronous."""

LATE_NS = 2_000_000
"""Mean delay of the sampler from which threads wait for the interpreter's lock: without, it is late by 0.1 ms."""

_ASYNCHRONOUS = ("async_save", "AsyncCheckpointer.save")


class SideCall(Struct, frozen=True, kw_only=True):
    """All saves, waits for saves, or evaluations at one line. Times in ns, without waits for a core."""

    kind: SideKind
    call: str
    """Function that was called; ``""`` if unknown."""
    site: CallSite
    """The program's line. For an evaluation it is the line of the loop that calls it, if known."""
    count: int | None
    """Number in the counted steps; ``None`` if only their share is known, from samples."""
    total_ns: int
    each_ns: int | None
    """Mean of one; ``None`` from samples."""
    bytes: int | None
    """Mean of the bytes written by one save; ``None`` if not counted."""
    asynchronous: bool
    rows: tuple[int, ...]
    """Rows of ``samples`` inside of them."""
    spans: Intervals
    """Empty from samples."""
    program_calls: int | None = None
    """Calls of the program in the run, if its time is that of the device; else ``None``."""


class SideWork(Struct, frozen=True, kw_only=True):
    """Side work of a run, and the steps in which it was counted."""

    calls: tuple[SideCall, ...]
    """Most time first."""
    steps: int
    whole_ns: int
    """Time of these steps, without waits for a core."""

    def of(self, *kinds: SideKind) -> tuple[SideCall, ...]:
        """The calls of some kinds."""
        return tuple(call for call in self.calls if call.kind in kinds)


def side_work(trace: Trace) -> SideWork | None:
    """Return saves and evaluations in the loop; ``None`` if neither they nor stacks were recorded."""
    steps, whole = _counted_steps(trace)
    if not steps or not {"side_work", "python_samples"} & trace.recorded:
        return None
    exact = trace.fact(_exact_calls) if "side_work" in trace.recorded else ()
    known = {"save" if call.kind == "wait" else call.kind for call in exact}
    sampled = [call for call in _sampled_calls(trace, whole) if call.kind not in known]
    if "evaluation" not in known | {call.kind for call in sampled}:
        sampled += _program_calls(trace, steps, whole)
    return SideWork(
        calls=tuple(sorted((*exact, *sampled), key=lambda call: -call.total_ns)), steps=steps, whole_ns=whole
    )


def _window(trace: Trace) -> tuple[int, int, int]:
    """(From, until, number of steps) of the run, without its traced steps if others were recorded."""
    rows = trace.rows["run_steps"]
    free = np.flatnonzero(rows["free"])
    chosen = free if len(free) else np.arange(len(rows))
    if not len(chosen):
        return 0, 0, 0
    first, last = int(chosen[0]), int(chosen[-1])
    numbers = rows["number"]
    traced = int((~rows["free"][first : last + 1]).sum()) if len(free) else 0
    return int(rows["from_ns"][first]), int(rows["until_ns"][last]), int(numbers[last] - numbers[first] + 1) - traced


def _counted_steps(trace: Trace) -> tuple[int, int]:
    """(Number of steps, their time without waits for a core, ns)."""
    rows = trace.rows["run_steps"]
    if not len(rows):
        times = np.array(trace.step_times_ns, np.int64)
        return len(times), int(times.sum())
    chosen = rows["free"] if rows["free"].any() else np.ones(len(rows), bool)
    times = (rows["until_ns"] - rows["from_ns"])[chosen] - np.maximum(rows["wait_ns"][chosen], 0)
    steps = _window(trace)[2]
    return steps, round(float(times.mean()) * steps)


def _exact_calls(trace: Trace) -> tuple[SideCall, ...]:
    """Saves and evaluations of the table, in the counted steps and on their thread, by line."""
    rows, (begin, end, _) = trace.rows["side_work"], _window(trace)
    inside = (rows["from_ns"] >= begin) & (rows["until_ns"] <= end) & rows["of_steps"]
    steps = trace.rows["run_steps"]
    if steps["free"].any():
        others = union(steps["from_ns"][~steps["free"]], steps["until_ns"][~steps["free"]])
        inside &= covered(others, rows["from_ns"], rows["until_ns"]) == 0
    kinds = [trace.text(int(code)) for code in rows["kind"].tolist()]
    groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(inside).tolist():
        if kinds[row] in ("save", "wait", "evaluation"):
            groups[kinds[row], int(rows["file"][row]), int(rows["line"][row])].append(row)
    saves = [row for (kind, _, _), members in groups.items() if kind != "evaluation" for row in members]
    saving = union(rows["from_ns"][saves], rows["until_ns"][saves])
    return tuple(
        _exact_call(trace, kinds[members[0]], np.array(members, np.int64), saving) for members in groups.values()
    )


def _exact_call(trace: Trace, kind: str, members: Int64, saving: Intervals) -> SideCall:
    rows = trace.rows["side_work"]
    spans = union(rows["from_ns"][members], rows["until_ns"][members])
    if kind == "evaluation":
        spans = difference(spans, saving)
    samples = _samples_in(trace, spans)
    total = time_with_core(trace, spans)
    total -= _queue_ns(trace, samples, total, len(members))
    written = rows["bytes"][members]
    written = written[written > 0]
    first = int(members[0])
    call = trace.text(int(rows["call"][first]))
    own = CallSite(
        file=trace.text(int(rows["file"][first])) or None,
        line=int(rows["line"][first]) if rows["line"][first] != MISSING else None,
        function=trace.text(int(rows["function"][first])) or None,
        exact=True,
    )
    return SideCall(
        kind=kind,  # type: ignore[arg-type]
        call=call,
        site=_loop_site(trace, samples) or own if kind == "evaluation" else own,
        count=len(members),
        total_ns=total,
        each_ns=round(total / len(members)),
        bytes=round(float(written.mean())) if len(written) else None,
        asynchronous=kind == "save" and (call in _ASYNCHRONOUS or bool(_later(rows, members).any())),
        rows=tuple(samples.tolist()),
        spans=spans,
    )


def _later(rows: Rows, members: Int64) -> npt.NDArray[np.bool_]:
    later: npt.NDArray[np.bool_] = rows["stored_ns"][members] > rows["until_ns"][members] + STORED_LATER_NS
    return later


def _samples_in(trace: Trace, spans: Intervals) -> Int64:
    """Rows of ``samples`` of the steps' thread in ``spans``."""
    samples = trace.rows["samples"]
    mine = np.flatnonzero((samples["thread"] == trace.fact(main_thread)) & ~samples["worker"])
    if not len(spans.starts):
        return mine[:0]
    at = np.searchsorted(spans.starts, samples["time_ns"][mine], side="right") - 1
    return mine[(at >= 0) & (samples["time_ns"][mine] < spans.ends[np.maximum(at, 0)])]


def _queue_ns(trace: Trace, samples: Int64, total: int, times: int) -> int:
    """Time of side work in which the host waited for steps that it had launched before.

    At most one step for each of the ``times`` that it ran, if the host waits in each step; else all of it, because the
    work of the steps is unknown.
    """
    waits = trace.fact(device_waits)[samples]
    if not waits.any():
        return 0
    lasts = trace.rows["samples"]["lasts_ns"][samples]
    waited = round(total * float(lasts[waits].sum()) / max(1, int(lasts.sum())))
    if trace.step_times_ns:
        return min(waited, round(times * median(trace.step_times_ns))) if "device_work" in trace.recorded else 0
    return waited


def _loop_site(trace: Trace, samples: Int64) -> CallSite | None:
    """The line that calls the evaluating function, by most samples; else that of the function with the loop."""
    parents, holders, known = trace.rows["frames"]["parent"], trace.fact(step_functions), trace.fact(stacks)
    sides = trace.fact(frame_sides)
    sites: Counter[CallSite] = Counter()
    for leaf in trace.rows["samples"]["frame"][samples].tolist():
        frame, named = leaf, sides[leaf] == 2
        while frame != MISSING:
            if known.user[frame] == frame and sides[frame] != 2:
                site = sampled_site(trace, frame)
                if named or (site.file, site.function) in holders:
                    sites[site] += 1
                    break
            frame = int(parents[frame])
    return sites.most_common(1)[0][0] if sites else None


# From samples.


def frame_sides(trace: Trace) -> npt.NDArray[np.int8]:
    """Per row of ``frames``, and one more for none: 1 if its stack saves a checkpoint, 2 if it evaluates, else 0."""
    frames, known = trace.rows["frames"], trace.fact(stacks)
    sides = np.zeros(len(frames) + 1, np.int8)
    restoring = np.zeros(len(frames), bool)
    columns = (frames[name].tolist() for name in ("file", "name", "parent"))
    for row, (file, name, parent) in enumerate(zip(*columns, strict=True)):
        above = parent if MISSING < parent < row else MISSING
        path, function = trace.text(file), trace.text(name).rpartition(".")[2]
        restoring[row] = (above != MISSING and restoring[above]) or restores(function)
        if above != MISSING and sides[above] == 2:
            sides[row] = 2
        elif known.kinds[row] == FrameKind.CHECKPOINT and not restoring[row]:
            sides[row] = 1
        elif evaluates(path, function):
            sides[row] = 2
    return sides


def side_samples(trace: Trace) -> npt.NDArray[np.int8]:
    """Per row of ``samples``: 1 if it is part of a save, 2 of an evaluation, else 0; a fact of the trace."""
    samples = trace.rows["samples"]
    sides: npt.NDArray[np.int8] = trace.fact(frame_sides)[samples["frame"]]
    inside = sides == 2
    if inside.any() and _in_each_step(trace, inside):
        sides[inside] = 0
    if "side_work" in trace.recorded:
        for call in trace.fact(_exact_calls):
            sides[list(call.rows)] = 2 if call.kind == "evaluation" else 1
    return sides


def _in_each_step(trace: Trace, inside: npt.NDArray[np.bool_]) -> bool:
    """Whether work in some samples is part of the usual step."""
    samples, rows = trace.rows["samples"], trace.rows["run_steps"]
    known = samples["step"] != MISSING
    times = (rows["until_ns"] - rows["from_ns"])[rows["free"]]
    times = times if len(times) else np.array(trace.step_times_ns, np.int64)
    having = np.unique(samples["step"][inside & known])
    count = max(len(times), len(np.unique(samples["step"][known])))
    lasting = samples["step_ns"][inside & known]
    if not len(times):
        return True
    if not len(lasting):
        return False
    return len(having) > OFTEN * count or bool(np.median(lasting) < LONGER * np.median(times))


def _sampled_calls(trace: Trace, whole_ns: int) -> list[SideCall]:
    samples, free = trace.rows["samples"], free_samples(trace, trace.fact(main_thread))
    sides = trace.fact(side_samples)[free]
    time = int(samples["lasts_ns"][free].sum())
    result = []
    for side, kind in ((1, "save"), (2, "evaluation")):
        rows = free[sides == side]
        if side == 1:
            rows = rows[~trace.fact(device_waits)[rows]]
        else:
            rows = rows[shown_kinds(trace, rows) != FrameKind.COMPILER]
        if len(rows) < LEAST_SAMPLES or not time:
            continue
        lines: Counter[CallSite] = Counter()
        for row in rows.tolist():
            lines[sampled_site(trace, int(samples["frame"][row]))] += int(samples["lasts_ns"][row])
        site = _loop_site(trace, rows) if kind == "evaluation" else None
        total = round(whole_ns * float(samples["lasts_ns"][rows].sum()) / time)
        times = len(np.unique(samples["step"][rows]))  # at least so many
        result.append(
            SideCall(
                kind=kind,  # type: ignore[arg-type]
                call="",
                site=site or max(lines, key=lambda line: lines[line], default=UNKNOWN_SITE),
                count=None,
                total_ns=total - (_queue_ns(trace, rows, total, times) if kind == "evaluation" else 0),
                each_ns=None,
                bytes=None,
                asynchronous=False,
                rows=tuple(rows.tolist()),
                spans=EMPTY,
            )
        )
    return result


# From the device, for evaluations that the host only launches (JAX).


def _program_calls(trace: Trace, steps: int, whole_ns: int) -> list[SideCall]:
    """Evaluations by the time of their programs on the device: traced calls of each, times its calls in the run.

    Without such a call in the traced steps its time is unknown, and it is left out.
    """
    step = next((fact for fact in trace.program_facts if fact.name == "jitted_step"), None)
    if step is None or step.count < LEAST_CALLS:
        return []
    times, frames = _program_times(trace), trace.rows["frames"]
    named = {trace.text(int(frames["name"][row])).rpartition(".")[2]
             for row in np.flatnonzero(trace.fact(frame_sides)[:-1] == 2).tolist()}  # fmt: skip
    result = []
    for fact in trace.program_facts:
        each = times.get(f"jit_{fact.value}") if fact.name == "jitted_calls" else None
        if each is not None and (evaluates(fact.file or "", fact.value) or fact.value in named):
            result.append(
                SideCall(
                    kind="evaluation", call=fact.value, count=None, each_ns=None, bytes=None, asynchronous=True,
                    rows=(),
                    site=CallSite(file=fact.file, line=fact.line, function=fact.value, exact=True), spans=EMPTY,
                    total_ns=min(whole_ns, round(fact.count / step.count * steps * each)), program_calls=fact.count,
                )
            )  # fmt: skip
    return result


def _program_times(trace: Trace) -> dict[str, float]:
    """Mean time of one run of each compiled program on the device, from its first to its last instruction, ns."""
    rows = trace.rows["hlo_ops"]
    known = np.flatnonzero((rows["module"] != MISSING) & (rows["run_id"] != MISSING))
    runs: dict[tuple[int, int], tuple[int, int]] = {}
    columns = (rows[name][known].tolist() for name in ("module", "run_id", "start_ns", "end_ns"))
    for module, run, start, end in zip(*columns, strict=True):
        first, last = runs.get((module, run), (start, end))
        runs[module, run] = min(first, start), max(last, end)
    times: dict[str, list[int]] = defaultdict(list)
    for (module, _), (start, end) in runs.items():
        times[trace.text(module)].append(end - start)
    return {name: sum(each) / len(each) for name, each in times.items()}


# Steps while asynchronous saves are stored.


class Contention(Struct, frozen=True, kw_only=True):
    """Steps that are slower while saves are stored in the background. Times in ns, without waits for a core."""

    saves: int
    storing_ns: int
    """Median time in which one was stored after its call."""
    bytes: int | None
    site: CallSite
    call: str
    slowed: int
    """Number of steps meanwhile."""
    during_ns: int
    """Median of these steps."""
    usual_ns: int
    """Median of the other steps without side work."""
    extra_ns: int
    """Additional time of all these steps."""
    lock: bool
    """Whether the threads waited for the interpreter's lock meanwhile."""


def contention(trace: Trace) -> Contention | None:
    """Return the steps that background saves slow down; ``None`` without any."""
    rows, steps = trace.rows["side_work"], trace.rows["run_steps"]
    saves = np.array([trace.text(int(code)) == "save" for code in rows["kind"].tolist()], bool)
    begins = np.where(rows["of_steps"], rows["until_ns"], rows["from_ns"])
    ends = np.where(rows["of_steps"], rows["stored_ns"], rows["until_ns"])
    chosen = np.flatnonzero(saves & (ends > begins + STORED_LATER_NS))
    free = np.flatnonzero(steps["free"])
    if not len(chosen) or not len(free):
        return None
    storing = union(begins[chosen], ends[chosen])
    calls = union(rows["from_ns"][rows["of_steps"]], rows["until_ns"][rows["of_steps"]])
    begin, end = steps["from_ns"][free], steps["until_ns"][free]
    times = end - begin - np.maximum(steps["wait_ns"][free], 0)
    plain, inside = covered(calls, begin, end) == 0, covered(storing, begin, end)
    # most of the step, so that a step in which the storing began or ended does not count as slowed
    slowed, usual = times[plain & (2 * inside > end - begin)], times[plain & (inside == 0)]
    if len(slowed) < LEAST_SLOWED or len(usual) < LEAST_SLOWED or np.median(slowed) < SLOWER * np.median(usual):
        return None
    scale = _window(trace)[2] / len(free)  # of a long run every n-th step is kept
    first = int(chosen[0])
    written = rows["bytes"][chosen]
    written = written[written > 0]
    return Contention(
        saves=len(chosen),
        storing_ns=round(float(np.median((ends - begins)[chosen]))),
        bytes=round(float(np.median(written))) if len(written) else None,
        site=CallSite(
            file=trace.text(int(rows["file"][first])) or None,
            line=int(rows["line"][first]) if rows["line"][first] != MISSING else None,
            exact=True,
        ),
        call=trace.text(int(rows["call"][first])),
        slowed=round(scale * len(slowed)),
        during_ns=round(float(np.median(slowed))),
        usual_ns=round(float(np.median(usual))),
        extra_ns=max(0, round(scale * float((slowed - np.median(usual)).sum()))),
        lock=_is_late(trace, storing),
    )


def _is_late(trace: Trace, storing: Intervals) -> bool:
    rows = _samples_in(trace, storing)
    return len(rows) >= LEAST_SAMPLES and float(trace.rows["samples"]["delay_ns"][rows].mean()) >= LATE_NS
