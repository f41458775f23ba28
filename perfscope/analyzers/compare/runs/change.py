"""Split the change of a step into parts that sum to it exactly, each divided into change of count and change of time.

A part's time per step is an integer of ns. The causes are those of the report's account, divided by the number of
steps so that they sum to the rounded mean step (``StepAccount.mean_ns``); the parts of each cause sum to it likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct

from perfscope.analyzers.compare.runs.account import Account, Part, in_parts
from perfscope.analyzers.compare.runs.keys import Key, Level, Match, PartKind, align
from perfscope.analyzers.compare.runs.window import account_window
from perfscope.analyzers.time import least_computing, warm_accounts, warm_windows
from perfscope.model.documents.causes import CAUSES, Cause
from perfscope.model.documents.comparison import Account as CausesOfStep
from perfscope.model.documents.comparison import Amount, PartValues, Rank, StepValues
from perfscope.model.intervals import by_largest_remainder
from perfscope.model.trace import Trace

FUSED_FROM = 2
"""Smallest number of kernels that one kernel replaces, on the same line or in the same op, to call it a fusion."""

T = TypeVar("T")

Status = Literal["new", "gone", "more calls", "fewer calls", "fused", "split", "slower", "faster", "same"]


class Side(Struct, frozen=True, kw_only=True):
    """One side of a part. Times in ns per step."""

    keys: tuple[Key, ...]
    ns: int
    """Time of this part; all parts sum to the step."""
    calls: Fraction
    """Per step."""
    example: int
    """Row of ``slices`` of the side's trace."""

    def where(self) -> Key | None:
        """First key with a line, else the first key; ``None`` without keys."""
        return next((key for key in self.keys if key.file), self.keys[0] if self.keys else None)


class PartChange(PartValues, frozen=True, kw_only=True):
    """One part on both sides. ``delta_ns`` of all parts sums to that of the step."""

    kind: PartKind
    base: Side
    head: Side
    level: Level | None
    """Level at which the two sides were matched; ``None`` if only one side has the part."""

    @property
    def delta_ns(self) -> int:
        """ns per step more than before."""
        return self.head.ns - self.base.ns

    @property
    def count_ns(self) -> int:
        """Part of ``delta_ns`` due to the number of calls, at the base's time per call."""
        if not self.countable:
            return 0
        if not self.base.calls or not self.head.calls:
            return self.delta_ns
        return round((self.head.calls - self.base.calls) * self.base.ns / self.base.calls)

    @property
    def each_ns(self) -> int:
        """Part of ``delta_ns`` due to the time per call."""
        return self.delta_ns - self.count_ns

    @property
    def cause(self) -> Cause | Literal[""]:
        """Cause in the account; ``''`` if unknown."""
        return self.key().cause

    @property
    def counts_differ(self) -> bool:
        """Whether the program calls it more or less often, or whether it is new or gone."""
        return self.countable and self.base.calls != self.head.calls

    @property
    def status(self) -> Status:
        """Status in one or two words."""
        if self.counts_differ:
            if not self.base.calls:
                return "new"
            if not self.head.calls:
                return "gone"
            more = self.head.calls > self.base.calls
            fewer, many = sorted((self.base.calls, self.head.calls))
            if self.level in (Level.OTHER_KERNEL, Level.FUSED) and many >= FUSED_FROM * fewer:
                return "split" if more else "fused"
            return "more calls" if more else "fewer calls"
        if not self.countable and not (self.base.keys and self.head.keys):
            return "new" if self.head.keys else "gone"
        return "same" if not self.delta_ns else "slower" if self.delta_ns > 0 else "faster"

    def key(self) -> Key:
        """Displayed key: the head's, else the base's."""
        key = self.head.where() or self.base.where()
        if key is None:
            raise ValueError("a part without a key")
        return key


class StepChange(StepValues, frozen=True, kw_only=True):
    """The change of one rank's step. Times in ns per ``per``."""

    parts: tuple[PartChange, ...]
    """Largest changes first; they sum to the change of the step."""
    notes: tuple[str, ...] = ()

    @property
    def delta_ns(self) -> int:
        """ns per step more than before."""
        return self.head_ns - self.base_ns

    @property
    def share(self) -> float:
        """Change relative to the base; 0 if the base is 0."""
        return self.delta_ns / self.base_ns if self.base_ns else 0.0

    def by_kind(self) -> dict[PartKind, tuple[int, int]]:
        """(base, head) in ns by kind of part; the values sum to the step on both sides."""
        return _sums((part.kind, part) for part in self.parts)

    def by_cause(self) -> dict[Cause | Literal[""], tuple[int, int]]:
        """(base, head) in ns by cause of the account, in its order; the values sum to the step on both sides."""
        found = _sums((part.cause, part) for part in self.parts)
        return {cause: found[cause] for cause in (*CAUSES, "") if cause in found}

    def check(self) -> None:
        """``ValueError`` unless the parts of both sides, and the changes, sum to the whole."""
        base, head = sum(part.base.ns for part in self.parts), sum(part.head.ns for part in self.parts)
        if (base, head) != (self.base_ns, self.head_ns):
            raise ValueError(f"parts sum to {base} and {head} ns, not to {self.base_ns} and {self.head_ns}")


def _sums(parts: Iterable[tuple[T, PartChange]]) -> dict[T, tuple[int, int]]:
    result: dict[T, tuple[int, int]] = {}
    for name, part in parts:
        base, head = result.get(name, (0, 0))
        result[name] = base + part.base.ns, head + part.head.ns
    return result


def step_change(base: Account, head: Account) -> StepChange:
    """Return the change from one account to another, with every part of both."""
    left, right = _sides(base), _sides(head)
    matches = align(left, right)
    parts = [_part(match, left, right, base.steps, head.steps) for match in matches]
    change = StepChange(
        rank=head.rank,
        device=head.device,
        per="step" if base.per == head.per == "step" else "trace",
        base_ns=sum(ns for _, ns in left.values()),
        head_ns=sum(ns for _, ns in right.values()),
        base_steps=base.steps,
        head_steps=head.steps,
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.delta_ns), -part.head.ns, part.key().name()))),
        notes=tuple(dict.fromkeys((*base.notes, *head.notes))),
    )
    change.check()
    return change


_Held = tuple[Part, int]


def _sides(account: Account) -> dict[Key, _Held]:
    """Return part and ns per step by key."""
    causes: dict[str, list[Part]] = {cause: [] for cause in (*CAUSES, "")}
    for part in account.parts:
        causes[part.key.cause].append(part)
    wholes = np.array([sum(part.own_ns for part in parts) for parts in causes.values()], np.int64)
    held: dict[Key, _Held] = {}
    for parts, whole in zip(causes.values(), by_largest_remainder(wholes, account.steps).tolist(), strict=True):
        amounts = np.array([part.own_ns for part in parts], np.int64)
        each = by_largest_remainder(amounts, account.steps, whole).tolist()
        held.update((part.key, (part, ns)) for part, ns in zip(parts, each, strict=True))
    return held


def _part(
    match: Match, left: dict[Key, _Held], right: dict[Key, _Held], base_steps: int, head_steps: int
) -> PartChange:
    mine, theirs = [left[key] for key in match.base], [right[key] for key in match.head]
    return PartChange(
        kind=(match.head or match.base)[0].kind,
        base=_side(mine, base_steps),
        head=_side(theirs, head_steps),
        level=match.level,
        countable=all(part.countable for part, _ in (*mine, *theirs)),
    )


def _side(parts: Sequence[_Held], steps: int) -> Side:
    ordered = sorted(parts, key=lambda part: -part[1])
    return Side(
        keys=tuple(part.key for part, _ in ordered),
        ns=sum(ns for _, ns in ordered),
        calls=Fraction(sum(part.calls for part, _ in ordered), steps),
        example=ordered[0][0].example if ordered else -1,
    )


# Ranks of two jobs: the rank whose step changed most, and the median rank.


class TimeChange(Struct, frozen=True, kw_only=True):
    """Change of a job's step."""

    median: StepChange
    """Change of the median rank by change."""
    worst: StepChange | None
    """Change of the rank whose step grew most; ``None`` with one rank."""
    ranks: tuple[Rank, ...]
    """Changes by rank; empty if ranks could not be paired."""
    notes: tuple[str, ...]


def time_change(base: Sequence[Trace], head: Sequence[Trace]) -> TimeChange | None:
    """Return the change of the ranks' steps; ``None`` if a side has no time."""
    left, right = [trace for trace in base if _timed(trace)], [trace for trace in head if _timed(trace)]
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
    ranks = [Rank(rank=two.source.rank, base_ns=_per_step(trace), head_ns=_per_step(two)) for trace, two in pairs]
    return TimeChange(
        median=_change(*chosen),
        worst=None if worst is None else _change(*worst),
        ranks=tuple(sorted(ranks, key=lambda rank_time: rank_time.rank if rank_time.rank is not None else -1)),
        notes=_all(notes, chosen),
    )


def _timed(trace: Trace) -> bool:
    return not trace.source.events_only and trace.fact(warm_windows).whole_ns > 0


def _lost(every: Sequence[Trace], timed: Sequence[Trace], side: str) -> list[str]:
    return [] if len(every) == len(timed) else [f"{len(every) - len(timed)} sources of {side} have no times"]


def _per_step(trace: Trace) -> int:
    windows = trace.fact(warm_windows)
    steps = max(1, len(windows.numbers))
    return (2 * windows.whole_ns + steps) // (2 * steps)


def middle_trace(traces: Sequence[Trace]) -> Trace | None:
    """Return the trace of the rank with the median step; ``None`` if no rank has times."""
    timed = [trace for trace in traces if _timed(trace)]
    return _middle(timed) if timed else None


def _middle(traces: Sequence[Trace]) -> Trace:
    return sorted(traces, key=_per_step)[(len(traces) - 1) // 2]


def _pairs(base: Sequence[Trace], head: Sequence[Trace]) -> list[tuple[Trace, Trace]] | None:
    """Pair traces of the same rank, and single traces whatever their ranks; ``None`` if the ranks differ."""
    if len(base) == len(head) == 1:
        return [(base[0], head[0])]
    mine, theirs = {trace.source.rank: trace for trace in base}, {trace.source.rank: trace for trace in head}
    if len(mine) == len(base) and len(theirs) == len(head) and mine.keys() == theirs.keys():
        return [(mine[rank], theirs[rank]) for rank in mine]
    return None


def _change(base: Trace, head: Trace) -> StepChange:
    """Compare the device that computes least in the head, as in its report, with the same device of the base."""
    mine, theirs = base.fact(warm_accounts), head.fact(warm_accounts)
    shared = {account.ordinal for account in mine if account.whole_ns} & {account.ordinal for account in theirs}
    after = least_computing(account for account in theirs if account.ordinal in shared or not shared)
    same = [account for account in mine if after is not None and account.ordinal == after.ordinal]
    return step_change(in_parts(base, least_computing(same or mine)), in_parts(head, after))


def _all(notes: Sequence[str], pair: tuple[Trace, Trace]) -> tuple[str, ...]:
    texts = list(notes)
    windows = [trace.fact(account_window) for trace in pair]
    if any(window.per == "trace" for window in windows):
        whose = " and ".join(
            side for side, window in zip(("base", "head"), windows, strict=True) if window.per == "trace"
        )
        texts.append(f"no steps in {whose}: times and counts are of the whole trace there, and of no step")
    elif windows[0].steps != windows[1].steps:
        texts.append(f"{windows[0].steps} steps against {windows[1].steps}: all is per step")
    devices = [len(trace.rows["devices"]) for trace in pair]
    if max(devices) > 1:
        texts.append(f"{max(devices)} devices in a source: the device that computes least is shown, as in reports")
    return tuple(dict.fromkeys(texts))


# Mean step by cause on both sides.


def account_change(step: StepChange) -> CausesOfStep | None:
    """Return the causes of both sides; ``None`` if unknown, or if one account is of the host and one of a device."""
    causes: dict[str, Amount] = {
        cause: Amount(base_ns=base, head_ns=head) for cause, (base, head) in step.by_cause().items() if base or head
    }
    on_host = [ns > 0 for ns in step.by_kind().get("host", (0, 0))]
    if not causes or "" in causes or on_host[0] is not on_host[1]:
        return None
    return CausesOfStep(base_ns=step.base_ns, head_ns=step.head_ns, on_host=on_host[0], causes=causes)
