"""The ranks of two jobs side by side: the rank whose step changed most, and the one in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.compare.runs.account import Account, accounts
from perfscope.analyzers.compare.runs.change import StepChange, step_change
from perfscope.analyzers.compare.statistics.window import compared_window
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """Time of a rank's step on both sides, in ns per step (of the whole trace where no step is known)."""

    rank: int | None
    base_ns: int
    head_ns: int

    @property
    def delta_ns(self) -> int:
        """ns a step more than before."""
        return self.head_ns - self.base_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    """How the step of a job changed."""

    median: StepChange
    """Of the rank in the middle by its change (the only one, where there is one)."""
    worst: StepChange | None
    """Of the rank whose step grew most; None where there is one rank."""
    ranks: tuple[RankTime, ...]
    """By rank; empty where ranks could not be paired."""
    notes: tuple[str, ...]


def time_change(base: Sequence[Trace], head: Sequence[Trace]) -> TimeChange | None:
    """The change of the ranks' steps; ``None`` where a side has no time."""
    left, right = [one for one in base if _timed(one)], [one for one in head if _timed(one)]
    if not left or not right:
        return None
    notes = list(_lost(base, left, "base")) + list(_lost(head, right, "head"))
    pairs = _pairs(left, right)
    if pairs is None:
        notes.append(
            f"{len(left)} ranks against {len(right)}: ranks are not paired; the rank in the middle of each is compared"
        )
        middle = (_middle(left), _middle(right))
        return TimeChange(median=_change(*middle), worst=None, ranks=(), notes=_all(notes, middle))
    pairs.sort(key=lambda pair: (_per_step(pair[1]) - _per_step(pair[0]), pair[1].source.rank or 0))
    chosen = pairs[(len(pairs) - 1) // 2]
    worst = pairs[-1] if len(pairs) > 1 else None
    ranks = [RankTime(rank=two.source.rank, base_ns=_per_step(one), head_ns=_per_step(two)) for one, two in pairs]
    return TimeChange(
        median=_change(*chosen),
        worst=None if worst is None else _change(*worst),
        ranks=tuple(sorted(ranks, key=lambda one: one.rank if one.rank is not None else -1)),
        notes=_all(notes, chosen),
    )


def _timed(trace: Trace) -> bool:
    return not trace.source.events_only and trace.fact(compared_window).total_ns > 0


def _lost(every: Sequence[Trace], timed: Sequence[Trace], side: str) -> list[str]:
    return [] if len(every) == len(timed) else [f"{len(every) - len(timed)} sources of {side} have no times"]


def _per_step(trace: Trace) -> int:
    window = trace.fact(compared_window)
    return (2 * window.total_ns + window.steps) // (2 * window.steps)


def middle_trace(traces: Sequence[Trace]) -> Trace | None:
    """The rank in the middle by its step, of those that have times; ``None`` where none has."""
    timed = [trace for trace in traces if _timed(trace)]
    return _middle(timed) if timed else None


def _middle(traces: Sequence[Trace]) -> Trace:
    return sorted(traces, key=_per_step)[(len(traces) - 1) // 2]


def _pairs(base: Sequence[Trace], head: Sequence[Trace]) -> list[tuple[Trace, Trace]] | None:
    """Traces of the same rank; one against one whatever their ranks; ``None`` where the ranks differ."""
    if len(base) == len(head) == 1:
        return [(base[0], head[0])]
    mine, theirs = {one.source.rank: one for one in base}, {one.source.rank: one for one in head}
    if len(mine) == len(base) and len(theirs) == len(head) and mine.keys() == theirs.keys():
        return [(mine[rank], theirs[rank]) for rank in mine]
    return None


def _change(base: Trace, head: Trace) -> StepChange:
    mine, theirs = accounts(base), accounts(head)
    by_ordinal = {one.ordinal: one for one in mine}
    shared = [one for one in theirs if one.ordinal in by_ordinal]
    if len(mine) == len(theirs) == 1 or not shared:
        return step_change(busiest(mine), busiest(theirs))
    chosen = busiest(shared)
    return step_change(by_ordinal[chosen.ordinal], chosen)


def busiest(held: Sequence[Account]) -> Account:
    """The device that worked most."""
    return max(held, key=lambda one: sum(part.own_ns for part in one.parts if part.key.kind != "idle"))


def _all(notes: Sequence[str], pair: tuple[Trace, Trace]) -> tuple[str, ...]:
    said = list(notes)
    windows = [one.fact(compared_window) for one in pair]
    if any(window.per == "trace" for window in windows):
        whose = " and ".join(
            side for side, window in zip(("base", "head"), windows, strict=True) if window.per == "trace"
        )
        said.append(f"no steps in {whose}: times and counts are of the whole trace there, and of no step")
    elif windows[0].steps != windows[1].steps:
        said.append(f"{windows[0].steps} steps against {windows[1].steps}: all is per step")
    devices = [len(one.rows["devices"]) for one in pair]
    if max(devices) > 1:
        said.append(f"{devices[1]} devices in a source: the one that worked most is shown")
    return tuple(dict.fromkeys(said))
