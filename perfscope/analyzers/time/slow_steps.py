"""Steps that take far longer than most, and the work that only they do.

Programs do some work every N steps: evaluate, save a checkpoint, collect new data, log. The median step shows none of
it, and the few traced steps rarely contain it. Durations of steps without a profiler tell how much time it takes, and
stacks sampled in those steps tell which calls it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from perfscope.analyzers.time.frame_kinds import ENGINES, FrameKind
from perfscope.analyzers.time.host_activity import HostActivity, main_thread, sample_activities
from perfscope.analyzers.time.host_lines import step_functions
from perfscope.analyzers.time.samples import device_waits, free_samples, sampled_site, shown_kinds, stacks
from perfscope.analyzers.time.whole_run.cores import waits_of_steps
from perfscope.model.frames import Owner, owner_of
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

SLOW = 2.0
"""Times the median step. A step with half as much again may be a longer batch; a second task of the size of a step is
other work."""

NEARLY_ALL = 0.9
"""Of a call's time: a function with that much of it stands for the call."""

ONLY_THERE = 10.0
"""Times its share in other steps that a call has in slow ones to be work of their own."""

LEAST_SHARE = 0.1
"""Of the time of all steps: below it the longer steps of a busy machine may be the cause."""

LEAST_STEPS = 10
"""Without a profiler: the median of fewer does not tell which of them are slow."""

LEAST_SAMPLES = 2
"""Of a call: one may be where the machine held up the program."""

_OTHERS_JUDGE = (HostActivity.SYNC, HostActivity.COMPILATION)
"""A wait for a device, as any call that may be one, is the time of its queue; compilation has rules of its own."""


class OwnCall(Struct, frozen=True, kw_only=True):
    """A call that slow steps make and others do not."""

    frame: int
    """Row of ``frames``: the outermost frame that the other steps do not have."""
    callee: int
    """Row of ``frames``: the function called there that names the work, else the frame itself."""
    share: float
    """Of the time of all steps without a profiler."""
    samples: int
    kind: int
    """`FrameKind` of most of its time."""


class SlowSteps(Struct, frozen=True, kw_only=True):
    """Steps without a profiler that do work of their own and are slow for it."""

    numbers: tuple[int, ...]
    every: int | None
    """Distance of most of them, in steps; ``None``: they come irregularly."""
    slow_ns: int
    """Median of them."""
    other_ns: int
    """Median of all others."""
    calls: tuple[OwnCall, ...]
    """Most time first."""
    of_host: bool
    """Times are those of a host that runs ahead of its work: only saving and logging is judged then."""
    whole_ns: int
    """All steps without a profiler together."""
    steps: int
    """Their number."""

    @property
    def share(self) -> float:
        """Of the time of all steps without a profiler: what only slow steps do."""
        return sum(call.share for call in self.calls)


def slow_steps(trace: Trace) -> SlowSteps | None:
    """``None``: too few steps without a profiler, none of them slow for work of its own, or no stacks sampled in it."""
    times, host = _times(trace)
    if len(times) < LEAST_STEPS:
        return None
    samples, rows = trace.rows["samples"], free_samples(trace, trace.fact(main_thread))
    waits = trace.fact(waits_of_steps)
    waited = np.array([waits.get(number, 0) for number in samples["step"][rows].tolist()], np.int64)
    slow = samples["step_ns"][rows] - waited >= SLOW * _usual_ns(trace, times)
    own = _own_frames(trace, rows, slow, saves=host)
    mine = own != MISSING
    numbers, first = np.unique(samples["step"][rows[mine]], return_index=True)
    if not len(numbers):
        return None
    lasting = samples["step_ns"][rows[mine]][first]
    return SlowSteps(
        numbers=tuple(numbers.tolist()),
        every=_distance(numbers.tolist()),
        slow_ns=round(float(np.median(lasting))),
        other_ns=round(float(np.median(times[~np.isin(times, lasting)]))),
        calls=_own_calls(
            trace, rows, own, _slow_ns(trace, times) / times.sum() / samples["lasts_ns"][rows[slow]].sum()
        ),
        of_host=host,
        whole_ns=int(times.sum()),
        steps=len(times),
    )


def _usual_ns(trace: Trace, times: Int64) -> float:
    """Median step without the time in which it waited for a core."""
    rows, waits = trace.rows["run_steps"], trace.fact(waits_of_steps)
    if not waits or not rows["free"].any():
        return float(np.median(times))
    waited = np.array([waits.get(number, 0) for number in rows["number"].tolist()], np.int64)
    return float(np.median((rows["until_ns"] - rows["from_ns"] - waited)[rows["free"]]))


def _times(trace: Trace) -> tuple[Int64, bool]:
    """Times of the steps without a profiler, and whether they are those of a host that runs ahead of its work."""
    if trace.step_times_ns:
        return np.array(trace.step_times_ns, np.int64), False
    rows = trace.rows["run_steps"]
    return (rows["until_ns"] - rows["from_ns"])[rows["free"]].astype(np.int64), True


def _distance(numbers: list[int]) -> int | None:
    gaps = Counter(after - before for before, after in pairwise(numbers))
    gap, often = gaps.most_common(1)[0] if gaps else (0, 0)
    return gap if often >= 2 and 2 * often > sum(gaps.values()) else None


_SAVES = (FrameKind.LOGGING, FrameKind.CHECKPOINT)


def _own_frames(trace: Trace, rows: Int64, slow: np.ndarray, *, saves: bool) -> Int64:
    """Per row of ``samples`` in ``rows`` the outermost frame with ``ONLY_THERE`` times its share of other steps.

    ``saves``: of samples that show saving or logging alone.
    """
    samples, parents = trace.rows["samples"], trace.rows["frames"]["parent"]
    lasts, frames = samples["lasts_ns"][rows], samples["frame"][rows]
    judged = (frames != MISSING) & ~np.isin(trace.fact(sample_activities)[rows], _OTHERS_JUDGE)
    judged &= ~trace.fact(device_waits)[rows]
    if saves:
        judged &= np.isin(shown_kinds(trace, rows), _SAVES)
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
    """Calls of slow steps alone. ``per_ns``: share of all steps' time that a ns of samples in slow steps stands for.

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


LOADERS = (FrameKind.LOADER, FrameKind.WORKER_START)


def _out_of_loader(trace: Trace, leaves: Int64, lasts: Int64) -> tuple[int, int]:
    """Frame of the line that fetches a batch, and of the loader's function that it calls, of most of the time."""
    parents, in_loader = trace.rows["frames"]["parent"], trace.fact(stacks).in_loader
    time: dict[tuple[int, int], int] = defaultdict(int)
    for leaf, ns in zip(leaves.tolist(), lasts.tolist(), strict=True):
        frame = called = leaf
        while in_loader[frame] and MISSING < parents[frame] < frame:
            frame, called = int(parents[frame]), frame
        time[frame, called] += ns
    return max(time, key=lambda pair: time[pair])


def _inside_framework(owners: Int64, callee: int, kinds: Int64, lasts: Int64) -> bool:
    """Whether it is a framework's own function between ops: the machine was slow there, and no call is rarer."""
    return owners[callee] == Owner.FRAMEWORK and _most(kinds, lasts) in ENGINES


def _callees(trace: Trace, frame: int, leaves: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Of each stack below ``frame`` the function that names what it does, as a row of ``frames``; never a framework's.

    Of a line of the user's: the function that it calls, if that has nearly all of its time. Of a library's line: down
    the functions that have nearly all of it, and then those that they call.
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
    """For each row of ``frames`` the first one of the same function; ``MISSING`` stays."""
    frames = trace.rows["frames"]
    first: dict[tuple[int, int], int] = {}
    keys = ((int(frames["file"][row]), int(frames["name"][row])) for row in rows)
    return [first.setdefault(key, row) if row != MISSING else MISSING for row, key in zip(rows, keys, strict=True)]


def _stack_below(parents: Int64, frame: int, leaf: int) -> list[int]:
    """Rows of ``frames`` between a frame and an innermost one, outermost first."""
    rows: list[int] = []
    while leaf != frame:
        rows.append(leaf)
        leaf = int(parents[leaf])
    return rows[::-1]


def frame_owners(trace: Trace) -> Int64:
    """Per row of ``frames`` its `Owner`; one without a file, which is what a line calls, is the framework's."""
    files = trace.rows["frames"]["file"]
    of_file = {
        code: owner_of(trace.text(code)) if code != MISSING else Owner.FRAMEWORK for code in np.unique(files).tolist()
    }
    return np.array([of_file[code] for code in files.tolist()], np.int64)


def _inclusive(parents: Int64, frames: Int64, weights: np.ndarray) -> np.ndarray:
    """Weight of each frame and those that it calls. A caller stands before those it calls."""
    time = np.bincount(frames, weights, len(parents))
    for row in range(len(parents) - 1, -1, -1):
        if MISSING < parents[row] < row:
            time[parents[row]] += time[row]
    return time


def _outermost(parents: Int64, chosen: np.ndarray) -> Int64:
    """Per frame the outermost chosen one on its stack; ``MISSING`` where none is."""
    found = np.full(len(parents), MISSING, np.int64)
    for row, parent in enumerate(parents.tolist()):
        above = found[parent] if MISSING < parent < row else MISSING
        found[row] = above if above != MISSING or not chosen[row] else row
    return found


def _most(values: Int64, weights: Int64) -> int:
    unique, place = np.unique(values, return_inverse=True)
    return int(unique[np.bincount(place, weights).argmax()])


def frame_text(trace: Trace, row: int) -> str:
    """``file(line): function``, or what is called."""
    return trace.fact(stacks).texts[row]
