"""Causal attention is divided into contiguous pieces of the sequence: ranks with later pieces compute more of it.

Example:
    Before::

        mine = tokens.chunk(ranks, dim=1)[rank]

    After::

        pieces = tokens.chunk(2 * ranks, dim=1)
        mine = torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]], dim=1)

Why it costs:
    A position attends to all positions before it. The last of n contiguous pieces has 2 - 1/n times the mean work of
    attention, and the first one 1/n of it. Every collective waits for the rank with the last piece.

How it is found:
    From traces of all ranks of a group: the time in attention (kernels of fused attention; without a device, ops of
    attention on the host) rises with the place in the group as i + 1/2 does. The time of each rank over the mean is
    fitted to that: the slope is 1 for contiguous pieces and 0 for an even division. A group is flagged if the slope is
    at least half, and the place explains nine tenths of the differences. Two ranks differ by one number, which has many
    causes, so that groups of two are judged only if the program calls them context parallel. The cost is modelled: the
    time of the rank with most less the mean, and at most the time that the rank with least waits in collectives. On
    hosts, where ranks share cores, the finding has no time.

    Attention that is written out as products and softmax is not seen. A compiled JAX program does the same work on
    each device whatever the division, and masks half of it; it is not judged. Ranks whose sequences differ in length
    look alike if their lengths happen to rise with the rank.

Fix:
    Give each rank a piece from the start and one from the end (zigzag), or every n-th position (striped). Positions
    for rotary embeddings and labels are divided alike. `torch.distributed.tensor.experimental.context_parallel`
    divides like that by default for causal attention, and so do Transformer Engine and Megatron-LM
    (`--context-parallel-size`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ranks.job import named_ranks, only_compared
from perfscope.analyzers.ranks.matching import Group
from perfscope.analyzers.ranks.rank_work import RankWork, rank_work
from perfscope.analyzers.ranks.sets import RankSet, comparable
from perfscope.analyzers.time import timed_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Scope, Where
from perfscope.model.trace import Trace

ATTENTION = re.compile(r"attention|attn|flash|sdpa|fmha", re.IGNORECASE)
"""Kernels and ops of fused attention."""

CONTEXT = re.compile(r"(?:^|[^a-z])cp(?:[^a-z]|$)|context", re.IGNORECASE)
"""Names of groups that divide sequences."""

SLOPE = 0.5
"""Smallest slope: halfway between an even division and contiguous pieces. Small pieces are less efficient on a device,
which lowers it.
"""

EXPLAINED = 0.9
"""Smallest share of the squared differences that the place explains: the rest is noise, or has another cause."""

COST_SHARE = 0.02
"""Smallest saving as a share of the steps. It is modelled, so it must exceed the usual 1 % variation between launches.
"""

UNTIMED: dict[str, Any] = {"severity": "medium", "basis": "structural"}
"""On hosts the time of an op contains waits for cores, which ranks on one machine share."""

check = only_compared


class _Divided(Struct, frozen=True, kw_only=True):
    """Attention of the ranks of a group."""

    group: Group
    attention_ns: tuple[int, ...]
    """In the recorded steps, by place in the group."""
    on_device: bool
    slope: float
    explained: float


def examined(trace: Trace) -> Scope:
    """Return an empty scope: a single rank has no finding."""
    return Scope(0, "ranks that compute attention")


def compared(traces: Sequence[Trace]) -> Scope:
    """Count the ranks with attention in jobs of several ranks."""
    return Scope(
        sum(
            _attention_ns(trace.fact(rank_work)) > 0
            for ranks in comparable(traces)
            for trace in ranks.job.traces.values()
        ),
        "ranks that compute attention",
    )


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each job with a group whose attention rises with the place."""
    sets = comparable(traces)
    judged = False
    for ranks in sets:
        divided = [one for group in _groups(ranks) if (one := _divided(ranks, group)) is not None]
        judged |= bool(divided)
        rising = [one for one in divided if one.slope >= SLOPE and one.explained >= EXPLAINED]
        if rising:
            yield from _finding(ranks, rising)
    if sets and not judged:
        raise AbstainError("no group of recorded ranks computes fused attention")


def _device_ns(work: RankWork) -> int:
    return sum(time.ns for (_, name, _), time in work.kernels.items() if ATTENTION.search(name))


def _attention_ns(work: RankWork) -> int:
    """Return the time in attention on the device, else on the host, in the recorded steps."""
    return _device_ns(work) or sum(ns for name, ns in work.op_ns.items() if ATTENTION.search(name))


def _groups(ranks: RankSet) -> list[Group]:
    """Return the groups that may divide sequences: those with a name for it, else all of three and more ranks."""
    known = [group for group in ranks.groups if set(group.ranks) <= set(ranks.job.ranks)]
    named = [group.ranks for group in known if CONTEXT.search(group.description or "") and len(group.ranks) > 1]
    if named:
        return named
    whole = [ranks.job.ranks] if not ranks.job.missing else []
    found = dict.fromkeys([*(group.ranks for group in known if group.recorded), *whole])
    return [group for group in found if len(group) > 2]


def _divided(ranks: RankSet, group: Group) -> _Divided | None:
    works = [ranks.job.traces[rank].fact(rank_work) for rank in group]
    times = [_attention_ns(work) for work in works]
    if not all(times):
        return None
    load = np.array(times) / np.mean(times) - 1
    place = (2 * np.arange(len(group)) + 1) / len(group) - 1
    slope = float(load @ place / (place @ place))
    differences = float(load @ load)
    explained = slope**2 * float(place @ place) / differences if differences else 0.0
    return _Divided(
        group=group, attention_ns=tuple(times), on_device=all(map(_device_ns, works)), slope=slope, explained=explained
    )


def _finding(ranks: RankSet, rising: Sequence[_Divided]) -> Iterable[Finding]:
    """Yield the finding unless it saves too little. Groups of a mesh run at the same time: the costliest counts."""
    costs = {one.group: _cost_ns(ranks, one) for one in rising}
    worst = max(rising, key=lambda one: costs[one.group])
    cost, whole = costs[worst.group], ranks.job.whole_ns
    if cost < COST_SHARE * whole or whole <= 0:
        return
    size, last = len(worst.group), worst.group[-1]
    most, mean = worst.attention_ns[-1], sum(worst.attention_ns) / size
    yield Finding(
        subject="causal attention in contiguous pieces",
        title=f"attention takes longer the later the rank: {most / mean:.1f} times the mean on rank {last}",
        detail=f"Over {named_ranks(worst.group)} its time rises with the place as for contiguous pieces of a causal "
        f"sequence (slope {worst.slope:.2f} of 1, {worst.explained:.0%} of the differences explained)."
        + (f" {len(rising):,} groups do so." if len(rising) > 1 else ""),
        **(timed_cost(ranks.job.traces[last], cost, whole, "modelled") if worst.on_device else UNTIMED),
        where=Where(op="attention"),
        ranks=(last,),
        evidence=tuple(
            {
                "rank": rank,
                "attention_ns": ns,
                "of_the_mean": round(ns / mean, 3),
                "of_the_mean_if_contiguous": round((2 * place + 1) / size, 3),
            }
            for place, (rank, ns) in enumerate(zip(worst.group, worst.attention_ns, strict=True))
        )[::-1][:MOST_ROWS],
        advice=f"Divide each sequence into {2 * size:,} pieces and give rank i the pieces i and {2 * size - 1:,} - i "
        "(zigzag): tokens, labels and positions alike.",
    )


def _cost_ns(ranks: RankSet, one: _Divided) -> int:
    """Return the time of the last rank beyond the mean, at most the time that the first one waits."""
    first = one.group[0]
    waited = sum(
        collective.wait_ns(first)
        for collective in ranks.matching.matched
        if first in collective.sides and set(collective.group) >= set(one.group)
    )
    beyond = one.attention_ns[-1] - sum(one.attention_ns) / len(one.group)
    return int(max(0, min(beyond, waited)))
