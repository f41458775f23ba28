"""Findings of exposed communication with several ranks or devices: whose time it is, and advice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ranks.job import shown_group
from perfscope.analyzers.ranks.waits import Share, summed
from perfscope.analyzers.spans import spans_of_ranks
from perfscope.model.finding import MOST_ROWS, Cell, Finding
from perfscope.model.severity import severity_of
from perfscope.model.units import format_ns

MOST_NAMED = 3
"""Maximum number of late members in a title; the evidence has all."""

UNMATCHED = "not matched"

REPORTED_RATIO = 1.1
"""Ratio to the most exposed member's time besides waiting, from which another member's time is also reported."""


class Side(Struct, frozen=True, kw_only=True):
    """Exposed time of one kind of collective in one member's trace, with its parts by group."""

    finding: Finding
    advice: str
    """Advice to hide or shorten its transfer."""
    shares: tuple[Share, ...]
    whole_ns: int
    """Reference time of shares: the steps, ns."""
    steps: int
    """Number of steps; 0 if unknown."""

    @property
    def matched(self) -> bool:
        """Whether any part is attributed."""
        return self.total.unmatched_ns < self.total.exposed_ns

    @property
    def total(self) -> Share:
        """Sum over all groups."""
        return summed(self.shares)


def exposed_finding(
    sides: Sequence[Side], *, member: str, elsewhere: bool, unclear: str, processes: bool = False
) -> Finding:
    """Return one finding for one kind of collective; ``sides``: at least one, all of that kind.

    ``member``: ``rank`` or ``device``. ``elsewhere``: waiting for late members is the cost of ``straggler`` and
    excluded here. ``unclear``: why some of the time may be either. ``processes``: members have several devices, which
    may have waited for each other.
    """
    sides = sorted(sides, key=lambda side: (-side.total.exposed_ns, side.total.member))
    worst, whole = sides[0], sides[0].total
    costly = max(sides, key=_cost) if elsewhere else worst
    cost = _cost(costly) if elsewhere else whole.exposed_ns
    texts = [f"{format_ns(whole.late_ns)} waiting for {_late(whole, member)}"] if whole.late_ns else []
    for ns, what in (
        (whole.own_ns, f"waiting for another device of the same {member}"),
        (whole.together_ns, f"waiting for {member}s that came last together"),
        (whole.core_ns, "the transfer itself"),
        (whole.unclear_ns, f"waiting or transfer ({unclear})"),
        (whole.unmatched_ns, f"of collectives that no other {member} shows"),
    ):
        if ns:
            texts.append(f"{format_ns(ns)} {what}")
    more = ""
    if elsewhere and cost > REPORTED_RATIO * _cost(worst):
        more = f"; {member} {costly.total.member} has most besides waiting, {format_ns(cost)}"
    return replace(
        worst.finding,
        title=f"exposed {worst.finding.subject} on {member} {whole.member}"
        + (f", {_mostly(whole, member)}" if len(texts) > 1 else ""),
        detail=f"It runs while nothing computes: {', '.join(texts)}{more}.",
        severity=severity_of(cost, costly.whole_ns),
        cost_ns=cost,
        cost_ns_per_step=round(cost / costly.steps) if costly.steps else None,
        ranks=tuple(sorted(side.total.member for side in sides)) if member == "rank" else worst.finding.ranks,
        evidence=tuple(_row(side, share, member, processes=processes) for side in sides for share in side.shares)[
            :MOST_ROWS
        ],
        spans=spans_of_ranks(_pieces(sides)) if member == "rank" else worst.finding.spans,
        advice=_advice(whole, worst.advice, member, elsewhere=elsewhere),
        removes=tuple(
            replace(removed, rank=side.total.member if member == "rank" else None)
            for side in (sides if member == "rank" else (worst,))
            for removed in side.finding.removes
        ),
    )


def _mostly(whole: Share, member: str) -> str:
    waited = whole.late_ns + whole.own_ns + whole.together_ns
    parts = {waited: f"most waiting for {member}s", whole.core_ns: "most transfer"}
    return parts.get(max(waited, whole.core_ns, whole.unclear_ns, whole.unmatched_ns), "transfer or waiting")


def _pieces(sides: Sequence[Side]) -> Iterator[tuple[int | None, int, int]]:
    """Yield the costliest spans of the ranks in turn, starting with the most exposed rank."""
    for each in zip_longest(*(side.finding.spans for side in sides)):
        for side, span in zip(sides, each, strict=True):
            if span is not None:
                yield side.total.member, span.start_ns, span.end_ns


def _cost(side: Side) -> int:
    return side.total.exposed_ns - side.total.late_ns


def _late(share: Share, member: str) -> str:
    """Return ``rank 2`` or ``late ranks (2: 30.0 ms, 5: 1.0 ms)``."""
    late = sorted(share.waiting_ns.items(), key=lambda pair: (-pair[1], pair[0]))
    late = [pair for pair in late if pair[1] and pair[0] != share.member]
    if len(late) == 1:
        return f"{member} {late[0][0]}, which came late"
    named = ", ".join(f"{who}: {format_ns(ns)}" for who, ns in late[:MOST_NAMED])
    return f"late {member}s ({named}{', ...' if len(late) > MOST_NAMED else ''})"


def _advice(whole: Share, transfer: str, member: str, *, elsewhere: bool) -> str:
    """Return the advice for the largest part first: overlap does not fix a late rank, nor an even load a transfer."""
    waited = whole.late_ns + whole.together_ns
    late = (
        f"Make the late {member} come in time: `straggler` names it and what it did before; that part is its cost "
        "and not part of this one."
        if elsewhere
        else f"Make the late {member} come in time: compare what it does before with the other {member}s (shard sizes, "
        "padding, uneven experts or layers)."
    )
    if elsewhere and whole.core_ns:
        transfer += (
            " `nvlink_stall` checks whether another NCCL algorithm or protocol, or other links, would shorten it."
        )
    if not waited:
        return transfer
    if 2 * waited > whole.exposed_ns:
        return f"{late} Only the transfer can be hidden or made smaller: {transfer}"
    return f"{transfer} {late}"


def _row(side: Side, share: Share, member: str, *, processes: bool) -> dict[str, Cell]:
    others = {late: waited for late, waited in share.waiting_ns.items() if late != share.member}
    most = max(others, key=lambda late: others[late], default=None)
    return {
        member: share.member,
        "group": UNMATCHED if share.group is None else shown_group(share.group),
        "kernels": share.collectives,
        "exposed_ns": share.exposed_ns,
        "waiting_ns": share.late_ns,
        "mostly_for": most if share.late_ns else None,
        "for_it_ns": others[most] if most is not None and share.late_ns else None,
        **({"own_device_ns": share.own_ns} if processes else {}),
        "together_ns": share.together_ns,
        "transfer_ns": share.core_ns,
        "unclear_ns": share.unclear_ns,
        "unmatched_ns": share.unmatched_ns,
        "steps_ns": side.whole_ns,
    }


def by_kind(sides: Sequence[Side]) -> Mapping[str, list[Side]]:
    """Group the sides by kind of collective, in order."""
    result: dict[str, list[Side]] = defaultdict(list)
    for side in sides:
        result[side.finding.subject].append(side)
    return dict(sorted(result.items()))
