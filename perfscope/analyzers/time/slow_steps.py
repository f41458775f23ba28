"""Steps that take far longer than most, and the work that only they do.

Programs do some work every N steps: evaluate, save a checkpoint, collect new data, log. The median step does not
include it, and the few traced steps rarely do. Durations of steps without a profiler show how much time it takes, and
stacks sampled in those steps show the calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from perfscope.analyzers.time.host_activity import HostActivity, main_thread, sample_activities
from perfscope.analyzers.time.host_lines import step_functions
from perfscope.analyzers.time.samples import device_waits, free_samples, sampled_site, shown_kinds, stacks
from perfscope.analyzers.time.side_work import side_samples
from perfscope.analyzers.time.storage import storage_wait
from perfscope.analyzers.time.whole_run.cores import waits_of_steps
from perfscope.model.frames import Owner, owner_of
from perfscope.model.frames.kinds import ENGINES, FrameKind
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

SLOW = 2.0
"""Ratio to the median step from which a step is slow. Half as much again may be a longer batch; as much again is other
work.
"""

NEARLY_ALL = 0.9
"""Share of a call's time from which a function represents the call."""

ONLY_THERE = 10.0
"""Ratio of a call's share in slow steps to that in other steps from which it is work of the slow steps."""

LEAST_SHARE = 0.1
"""Smallest share of the time of all steps: a busy machine may cause less."""

LEAST_STEPS = 10
"""Minimum number of steps without a profiler: the median of fewer does not show which are slow."""

LEAST_SAMPLES = 2
"""Minimum number of samples of a call: one may be where the machine delayed the program."""

_OTHERS_JUDGE = (HostActivity.SYNC, HostActivity.COMPILATION)
"""Activities of other rules: a wait for a device is the time of its queue, and compilation has separate rules."""

LOADERS = (FrameKind.LOADER, FrameKind.WORKER_START)


class OwnCall(Struct, frozen=True, kw_only=True):
    """A call that slow steps make but others do not."""

    frame: int
    """Row of ``frames``: the outermost frame that the other steps lack."""
    callee: int
    """Row of ``frames``: the called function that names the work, else the frame itself."""
    share: float
    """Share of the time of all steps without a profiler."""
    samples: int
    kind: int
    """`FrameKind` of most of its time."""


class SlowSteps(Struct, frozen=True, kw_only=True):
    """Steps without a profiler that are slow because of work that other steps lack."""

    numbers: tuple[int, ...]
    every: int | None
    """Distance between most of them, in steps; ``None`` if irregular."""
    slow_ns: int
    """Median of these steps."""
    other_ns: int
    """Median of all others."""
    calls: tuple[OwnCall, ...]
    """Most time first."""
    of_host: bool
    """Whether the times are those of a host that runs ahead of its work: then only logging is reported."""
    whole_ns: int
    """Sum over all steps without a profiler."""
    steps: int
    """Number of steps without a profiler."""

    @property
    def share(self) -> float:
        """Share of the time of all steps without a profiler in work that only slow steps do."""
        return sum(call.share for call in self.calls)


def slow_steps(trace: Trace) -> SlowSteps | None:
    """Return the slow steps.

    ``None`` with too few steps without a profiler, none slow for its own work, or no samples.
    """
    times, host = _times(trace)
    if len(times) < LEAST_STEPS:
        return None
    samples, rows = trace.rows["samples"], free_samples(trace, trace.fact(main_thread))
    waits = trace.fact(waits_of_steps)
    waited = np.array([waits.get(number, 0) for number in samples["step"][rows].tolist()], np.int64)
    slow = samples["step_ns"][rows] - waited >= SLOW * _usual_ns(trace, times)
    storage = trace.fact(storage_wait)
    if storage is not None:  # `storage_bound` has it
        slow &= ~np.isin(rows, storage.rows)
    own = _own_frames(trace, rows, slow, logs=host)
    mine = own != MISSING
    numbers, first = np.unique(samples["step"][rows[mine]], return_index=True)
    lasting = samples["step_ns"][rows[mine]][first]
    others = times[~np.isin(times, lasting)]
    if not len(numbers) or not len(others):
        return None
    return SlowSteps(
        numbers=tuple(numbers.tolist()),
        every=_distance(numbers.tolist()),
        slow_ns=round(float(np.median(lasting))),
        other_ns=round(float(np.median(others))),
        calls=_own_calls(
            trace, rows, own, _slow_ns(trace, times) / times.sum() / samples["lasts_ns"][rows[slow]].sum()
        ),
        of_host=host,
        whole_ns=int(times.sum()),
        steps=len(times),
    )


def _usual_ns(trace: Trace, times: Int64) -> float:
    """Return the median step without the time in which it waited for a core."""
    rows, waits = trace.rows["run_steps"], trace.fact(waits_of_steps)
    if not waits or not rows["free"].any():
        return float(np.median(times))
    waited = np.array([waits.get(number, 0) for number in rows["number"].tolist()], np.int64)
    return float(np.median((rows["until_ns"] - rows["from_ns"] - waited)[rows["free"]]))


def _times(trace: Trace) -> tuple[Int64, bool]:
    """Return the times of the steps without a profiler, and whether the host runs ahead of its work."""
    if trace.step_times_ns:
        return np.array(trace.step_times_ns, np.int64), False
    rows = trace.rows["run_steps"]
    return (rows["until_ns"] - rows["from_ns"])[rows["free"]].astype(np.int64), True


def _distance(numbers: list[int]) -> int | None:
    gaps = Counter(after - before for before, after in pairwise(numbers))
    gap, often = gaps.most_common(1)[0] if gaps else (0, 0)
    return gap if often >= 2 and 2 * often > sum(gaps.values()) else None


def _own_frames(trace: Trace, rows: Int64, slow: np.ndarray, *, logs: bool) -> Int64:
    """Return, per row of ``rows`` (``samples``), the outermost frame with ``ONLY_THERE`` times its share elsewhere.

    ``logs``: consider only samples of logging. Saves and evaluations belong to other rules (`side_samples`).
    """
    samples, parents = trace.rows["samples"], trace.rows["frames"]["parent"]
    lasts, frames = samples["lasts_ns"][rows], samples["frame"][rows]
    judged = (frames != MISSING) & ~np.isin(trace.fact(sample_activities)[rows], _OTHERS_JUDGE)
    judged &= ~trace.fact(device_waits)[rows] & (trace.fact(side_samples)[rows] == 0)
    if logs:
        judged &= shown_kinds(trace, rows) == FrameKind.LOGGING
    inside = _inclusive(parents, frames[judged & slow], lasts[judged & slow])
    elsewhere = _inclusive(parents, frames[judged & ~slow], lasts[judged & ~slow])
    often = _inclusive(parents, frames[judged & slow], np.ones(int((judged & slow).sum()))) >= LEAST_SAMPLES
    own = often & (inside * max(1, int(lasts[~slow].sum())) > ONLY_THERE * elsewhere * int(lasts[slow].sum()))
    if not (judged & ~slow).any():  # the other steps are too short for samples, so the loop is in none of theirs
        own &= ~_above_the_step(trace)
    return np.where(judged & slow, np.append(_outermost(parents, own), MISSING)[frames], MISSING)


def _above_the_step(trace: Trace) -> np.ndarray:
    """Per row of ``frames`` whether it calls, itself or further down, a function that holds the step or the loop."""
    frames, known, holders = trace.rows["frames"], trace.fact(stacks), trace.fact(step_functions)
    above = np.zeros(len(frames), bool)
    parents = frames["parent"]
    for row in range(len(frames) - 1, -1, -1):
        parent = parents[row]
        if not MISSING < parent < row:
            continue
        holds = above[row]
        if not holds and frames["file"][row] != MISSING and known.user[row] == row:
            site = sampled_site(trace, row)
            holds = (site.file, site.function) in holders
        above[parent] |= holds
    return above


def _slow_ns(trace: Trace, times: Int64) -> int:
    """Time of all slow steps without a profiler, without their waits for a core."""
    rows, waits = trace.rows["run_steps"], trace.fact(waits_of_steps)
    if waits and rows["free"].any():
        waited = np.array([waits.get(number, 0) for number in rows["number"].tolist()], np.int64)
        times = (rows["until_ns"] - rows["from_ns"] - waited)[rows["free"]]
    return int(times[times >= SLOW * _usual_ns(trace, times)].sum())


def _own_calls(trace: Trace, rows: Int64, own: Int64, per_ns: float) -> tuple[OwnCall, ...]:
    """Return calls of slow steps alone. ``per_ns``: share of all steps' time per ns of samples in slow steps.

    A sample lasts at most as long as its step, so that samples of short steps count for less than their time.
    """
    samples, kinds = trace.rows["samples"], shown_kinds(trace, rows)
    lasts, frames = samples["lasts_ns"][rows], samples["frame"][rows]
    owners, calls = trace.fact(frame_owners), []
    in_loader = trace.fact(stacks).in_loader
    for frame in np.unique(own[own != MISSING]).tolist():
        mine = np.flatnonzero(own == frame)
        callees = np.array(_callees(trace, frame, frames[mine].tolist(), lasts[mine].tolist()), np.int64)
        for callee in np.unique(callees).tolist():
            part = mine[callees == callee]
            if _inside_framework(owners, callee, kinds[part], lasts[part]):
                continue
            kind, line = _most(kinds[part], lasts[part]), frame
            fetching = part[in_loader[frames[part]]]
            if kind in LOADERS and len(fetching):
                line, callee = _out_of_loader(trace, frames[fetching], lasts[fetching])
            calls.append(
                OwnCall(
                    frame=line,
                    callee=callee,
                    share=float(lasts[part].sum() * per_ns),
                    samples=len(part),
                    kind=kind,
                )
            )
    return tuple(sorted(calls, key=lambda call: -call.share))


def _out_of_loader(trace: Trace, leaves: Int64, lasts: Int64) -> tuple[int, int]:
    """Return the frame that fetches a batch and the loader function that it calls, by most time."""
    parents, in_loader = trace.rows["frames"]["parent"], trace.fact(stacks).in_loader
    time: dict[tuple[int, int], int] = defaultdict(int)
    for leaf, ns in zip(leaves.tolist(), lasts.tolist(), strict=True):
        frame = called = leaf
        while in_loader[frame] and MISSING < parents[frame] < frame:
            frame, called = int(parents[frame]), frame
        time[frame, called] += ns
    return max(time, key=lambda pair: time[pair])


def _inside_framework(owners: Int64, callee: int, kinds: Int64, lasts: Int64) -> bool:
    """Whether it is a framework's own function between ops: then the machine was slow, not the program."""
    return owners[callee] == Owner.FRAMEWORK and _most(kinds, lasts) in ENGINES


def _callees(trace: Trace, frame: int, leaves: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Return, per stack below ``frame``, the function that names its work, as a row of ``frames``; never a framework's.

    For a line of the user: the callee, if that has nearly all of its time. For a library's line: down the functions
    that have nearly all of it, and then their callees.
    """
    owners, parents = trace.fact(frame_owners), trace.rows["frames"]["parent"]
    stacks_below = [_stack_below(parents, frame, leaf) for leaf in leaves]
    result, depth, users = frame, 0, owners[frame] == Owner.USER
    while True:
        below = [stack[depth] if depth < len(stack) else MISSING for stack in stacks_below]
        functions = _first_of_function(trace, below)
        time: dict[int, int] = defaultdict(int)
        for function, weight in zip(functions, weights, strict=True):
            time[function] += weight
        most = max(time, key=lambda row: time[row])
        chosen = most != MISSING and owners[most] != Owner.FRAMEWORK and time[most] >= NEARLY_ALL * sum(weights)
        if users:
            return [most if chosen else frame] * len(leaves)
        if not chosen:
            return [result if row == MISSING or owners[row] == Owner.FRAMEWORK else row for row in functions]
        result, depth = most, depth + 1


def _first_of_function(trace: Trace, rows: Sequence[int]) -> list[int]:
    """Return, for each row of ``frames``, the first one of the same function; ``MISSING`` stays ``MISSING``."""
    frames = trace.rows["frames"]
    first: dict[tuple[int, int], int] = {}
    keys = ((int(frames["file"][row]), int(frames["name"][row])) for row in rows)
    return [first.setdefault(key, row) if row != MISSING else MISSING for row, key in zip(rows, keys, strict=True)]


def _stack_below(parents: Int64, frame: int, leaf: int) -> list[int]:
    """Return the rows of ``frames`` between a frame and an innermost one, outermost first."""
    rows: list[int] = []
    while leaf != frame:
        rows.append(leaf)
        leaf = int(parents[leaf])
    return rows[::-1]


def frame_owners(trace: Trace) -> Int64:
    """Return, per row of ``frames``, its `Owner`; a frame without a file (a callee) is the framework's."""
    files = trace.rows["frames"]["file"]
    of_file = {
        code: owner_of(trace.text(code)) if code != MISSING else Owner.FRAMEWORK for code in np.unique(files).tolist()
    }
    return np.array([of_file[code] for code in files.tolist()], np.int64)


def _inclusive(parents: Int64, frames: Int64, weights: np.ndarray) -> np.ndarray:
    """Return the weight of each frame with its callees. Callers come before their callees."""
    time = np.bincount(frames, weights, len(parents))
    for row in range(len(parents) - 1, -1, -1):
        if MISSING < parents[row] < row:
            time[parents[row]] += time[row]
    return time


def _outermost(parents: Int64, chosen: np.ndarray) -> Int64:
    """Return, per frame, the outermost chosen one on its stack; ``MISSING`` without one."""
    found = np.full(len(parents), MISSING, np.int64)
    for row, parent in enumerate(parents.tolist()):
        above = found[parent] if MISSING < parent < row else MISSING
        found[row] = above if above != MISSING or not chosen[row] else row
    return found


def _most(values: Int64, weights: Int64) -> int:
    unique, place = np.unique(values, return_inverse=True)
    return int(unique[np.bincount(place, weights).argmax()])


def frame_text(trace: Trace, row: int) -> str:
    """Return ``file(line): function``, or the callee."""
    return trace.fact(stacks).texts[row]
