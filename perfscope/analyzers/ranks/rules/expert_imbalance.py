"""Ranks receive very different amounts in an all-to-all: some experts get many tokens, others few.

Example:
    Before::

        loss = task_loss

    After::

        loss = task_loss + 0.01 * experts * (share_of_tokens * mean_probability).sum()

Why it costs:
    An all-to-all ends when the rank that receives most has all of it, and the experts after it take as long as the
    fullest one. The others wait, at the next collective at the latest. All ranks lose the time for the tokens that one
    rank receives beyond the mean.

How it is found:
    From traces of all ranks of a group, if the profiler recorded the number of elements that each rank sends and
    receives (`Out msg nelems` of an all-to-all with split sizes). A rank's load is its received amount over the mean of
    its group. The cost is modelled, and an upper bound for the all-to-alls alone: the time of each, without waiting,
    less the time if the fullest rank received the mean, at most the exposed time. The cost of the experts' work is not
    included; it appears as a `straggler` at the next collective. All-to-alls of even size, incomplete groups, and
    traces without the sizes are not judged.

    Exchanges on hosts (gloo) have their amounts in the shapes of `c10d::alltoall_base_`, which the detail pass of
    `perfscope run` records; the k-th of every rank is taken for the same exchange. As ranks on hosts share cores, such
    a finding has no time. All-to-alls of compiled JAX programs have a fixed size. The number of tokens in
    them and of dropped tokens is not recorded, and the rule abstains: return the router's counts from the step.

Fix:
    Balance the router: an auxiliary loss on the load, a bias for each expert that is moved against its load, or a
    capacity factor that drops or re-routes the excess (1.25 is usual). Replicate the fullest experts over ranks, or
    place them on ranks with little load. In embeddings (torchrec), let the planner split or replicate the hottest
    tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from perfscope.analyzers.ranks.job import only_compared
from perfscope.analyzers.ranks.matching import Group, Matched, shorter_transfers
from perfscope.analyzers.ranks.rank_work import received_on_host
from perfscope.analyzers.ranks.sets import RankSet, comparable
from perfscope.analyzers.spans import spans_of_ranks
from perfscope.analyzers.time import exposed_communication, timed_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Scope, Where
from perfscope.model.trace import MISSING, Trace

LOADED = 1.25
"""Load of the fullest rank, relative to the mean, from which it is uneven: the usual capacity factor of routers."""

COST_SHARE = 0.02
"""Smallest saving as a share of the steps. It is modelled, so it must exceed the usual 1 % variation between launches.
"""

ROUTER = (
    "Balance the router: an auxiliary loss on the load, a bias against the load of each expert, or a capacity factor "
    "of 1.25."
)

FIXED = "all-to-alls of compiled programs have a fixed size; how many tokens they hold is not recorded"


def check(trace: Trace) -> Iterable[Finding]:
    """Return nothing: a single rank has no finding. ``AbstainError`` if no amount can be recorded."""
    if trace.hlo or len(trace.rows["hlo_ops"]):
        raise AbstainError(FIXED)
    return only_compared(trace)


class _Uneven(Struct, frozen=True, kw_only=True):
    """An all-to-all with the amount that each rank received."""

    collective: Matched
    received: Mapping[int, int]
    exposed_ns: int
    """Exposed time of the fullest rank."""

    @property
    def fullest(self) -> int:
        return max(sorted(self.received), key=lambda rank: self.received[rank])

    @property
    def load(self) -> float:
        """Amount received by the fullest rank, relative to the mean."""
        return _load(self.received)

    @property
    def cost_ns(self) -> int:
        return int(min(self.collective.core_ns * (1 - 1 / self.load), self.exposed_ns)) if self.load > 1 else 0


def examined(trace: Trace) -> Scope:
    """Return an empty scope: a single rank has no finding."""
    return Scope(0, "all-to-alls that several ranks show")


def compared(traces: Sequence[Trace]) -> Scope:
    """Count the matched all-to-alls."""
    return Scope(
        sum(
            collective.operation == "all_to_all"
            for ranks in comparable(traces)
            for collective in ranks.matching.matched
        ),
        "all-to-alls that several ranks show",
    )


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each group of a job whose all-to-alls are uneven."""
    sets = comparable(traces)
    looked = False
    exchanges = 0
    for ranks in sets:
        uneven: dict[Group, list[_Uneven]] = defaultdict(list)
        for collective in ranks.matching.matched:
            if collective.operation != "all_to_all":
                continue
            exchanges += 1
            result = _uneven(collective, ranks)
            if result is not None:
                looked = True
                uneven[collective.group].append(result)
        whole = ranks.job.whole_ns
        for exchanged in uneven.values():
            heavy = sorted((item for item in exchanged if item.load >= LOADED), key=lambda item: -item.cost_ns)
            cost = sum(item.cost_ns for item in heavy)
            if heavy and cost >= COST_SHARE * whole > 0:
                yield _finding(ranks, heavy, len(exchanged), cost, whole)
        amounts = () if uneven else _on_host(ranks)
        looked |= bool(amounts)
        filled = [held for held in amounts if _load(held) >= LOADED]
        if filled:
            yield _host_finding(filled, len(amounts))
    if exchanges and not looked:
        raise AbstainError(
            "the amount that each rank receives in its all-to-alls is not recorded, or a rank is missing"
        )


def _on_host(ranks: RankSet) -> tuple[Mapping[int, int], ...]:
    """Return the amounts by rank of each exchange of a step on hosts; empty if a rank's are unknown."""
    received = {rank: trace.fact(received_on_host) for rank, trace in ranks.job.traces.items()}
    counts = set(map(len, received.values()))
    if ranks.job.missing or len(received) < 2 or len(counts) > 1:
        return ()
    return tuple({rank: amounts[k] for rank, amounts in received.items()} for k in range(counts.pop()))


def _load(received: Mapping[int, int]) -> float:
    """Return the amount of the fullest rank, relative to the mean."""
    return max(received.values()) * len(received) / max(1, sum(received.values()))


def _uneven(collective: Matched, ranks: RankSet) -> _Uneven | None:
    """Return the amount that each rank received; None unless it is recorded for all ranks."""
    received = {rank: side.received for rank, side in collective.sides.items() if side.received is not None}
    if (
        len(received) < len(collective.group)
        or (not collective.named and ranks.job.missing)
        or not sum(received.values())
    ):
        return None
    fullest = max(sorted(received), key=lambda rank: received[rank])
    trace = ranks.job.traces[fullest]
    kernel = collective.sides[fullest].kernel
    if kernel == MISSING:
        return None
    exposed = int(trace.fact(exposed_communication)[kernel])
    return _Uneven(collective=collective, received=received, exposed_ns=exposed)


def _finding(ranks: RankSet, heavy: Sequence[_Uneven], exchanges: int, cost: int, whole: int) -> Finding:
    worst = heavy[0]
    fullest: dict[int, int] = defaultdict(int)
    for item in heavy:
        fullest[item.fullest] += 1
    rank = max(sorted(fullest), key=lambda held: fullest[held])
    trace = ranks.job.traces[rank]
    steady = fullest[rank] > len(heavy) / 2
    who = f"rank {rank} is the fullest in {fullest[rank]:,} of them" if steady else "ranks are the fullest in turn"
    return Finding(
        subject="all-to-alls are uneven",
        title=f"{len(heavy):,} of {exchanges:,} all-to-alls are uneven",
        detail=f"Over {worst.collective.size} ranks the fullest receives up to {max(item.load for item in heavy):.1f} "
        f"times the mean; {who}. The cost is that of the exchanges alone.",
        **timed_cost(trace, cost, whole, "modelled"),
        where=Where(op="all_to_all"),
        ranks=(rank,) if steady else tuple(sorted(fullest)),
        evidence=tuple(_row(item) for item in heavy[:MOST_ROWS]),
        spans=spans_of_ranks(
            (item.fullest, item.collective.sides[item.fullest].start_ns, item.collective.sides[item.fullest].end_ns)
            for item in heavy
        ),
        advice=(f"Replicate the experts or tables of rank {rank}, or place hot ones on other ranks. " if steady else "")
        + ROUTER,
        removes=shorter_transfers((item.collective, 1 / item.load) for item in heavy),
    )


def _host_finding(filled: Sequence[Mapping[int, int]], exchanges: int) -> Finding:
    filled = sorted(filled, key=_load, reverse=True)
    fullest = Counter(max(sorted(held), key=lambda rank: held[rank]) for held in filled)
    rank, times = fullest.most_common(1)[0]
    steady = times > len(filled) / 2
    who = f"rank {rank} is the fullest in {times:,} of them" if steady else "ranks are the fullest in turn"
    return Finding(
        subject="all-to-alls are uneven",
        title=f"{len(filled):,} of {exchanges:,} all-to-alls are uneven",
        detail=f"Over {len(filled[0]):,} ranks the fullest receives up to {_load(filled[0]):.1f} times the mean, in a "
        f"step with shapes; {who}, and its experts have as much more to do.",
        severity="medium",
        basis="structural",
        where=Where(op="all_to_all"),
        ranks=(rank,) if steady else tuple(sorted(fullest)),
        evidence=tuple(
            {
                "ranks": len(held),
                "fullest_rank": max(sorted(held), key=lambda one: held[one]),
                "elements_most": max(held.values()),
                "elements_mean": sum(held.values()) // len(held),
                "emptiest_rank": min(sorted(held), key=lambda one: held[one]),
                "elements_least": min(held.values()),
            }
            for held in filled[:MOST_ROWS]
        ),
        advice=(f"Replicate the experts or tables of rank {rank}, or place hot ones on other ranks. " if steady else "")
        + ROUTER,
    )


def _row(item: _Uneven) -> dict[str, Cell]:
    received = item.received
    emptiest = min(sorted(received), key=lambda rank: received[rank])
    return {
        "number": item.collective.index,
        "ranks": item.collective.size,
        "fullest_rank": item.fullest,
        "elements_most": received[item.fullest],
        "elements_mean": sum(received.values()) // len(received),
        "emptiest_rank": emptiest,
        "elements_least": received[emptiest],
        "core_ns": item.collective.core_ns,
        "exposed_ns": item.exposed_ns,
        "saves_ns": item.cost_ns,
    }
