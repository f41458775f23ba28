"""Everything known of the jobs that a set of traces is of, computed once for all rules and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.ranks.clocks import Clocks, align
from perfscope.analyzers.ranks.groups import RankGroup, groups_of
from perfscope.analyzers.ranks.job import MIXED, Job, has_ranks, jobs_of, over
from perfscope.analyzers.ranks.matching import Matching, match
from perfscope.analyzers.ranks.pairs import NO_PAIRS, Pairing, pair
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

TOLD_NS = 10**6
"""A millisecond: hosts that a time service keeps agree to about that, and nobody need be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    """One job: its ranks, their matched collectives, groups and clocks."""

    job: Job
    matching: Matching
    clocks: Clocks
    groups: tuple[RankGroup, ...]
    pairing: Pairing = NO_PAIRS
    """Its sends and receives."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the ranks, one sentence each."""
        return (*self.job.notes, *self.matching.notes, *self.pairing.notes, *_of_clocks(self.clocks))


def rank_sets(traces: Sequence[Trace]) -> tuple[RankSet, ...]:
    """The jobs that the traces are of, the one with most ranks first; computed once."""
    return over(traces, _rank_sets) if traces else ()


def _rank_sets(traces: tuple[Trace, ...]) -> tuple[RankSet, ...]:
    found = []
    for job in jobs_of(traces):
        matching = match(job)
        clocks = align(matching.matched, job.ranks)
        groups, pairing = groups_of(job, matching.matched), pair(job, clocks)
        found.append(RankSet(job=job, matching=matching, clocks=clocks, groups=groups, pairing=pairing))
    return tuple(found)


def comparable(traces: Sequence[Trace]) -> tuple[RankSet, ...]:
    """The jobs whose ranks can be held against each other; empty where no trace holds a rank's collectives.

    ``AbstainError`` where there are collectives and nothing to hold them against: one rank, or none that match.
    """
    if not any(map(has_ranks, traces)):
        return ()
    sets = rank_sets(traces)
    several = [one for one in sets if len(one.job.members) > 1]
    if not several:
        told = bool(sets)
        raise AbstainError(
            "one rank alone does not show who waits for whom: record all ranks"
            if told or len(traces) == 1
            else "the traces do not tell their ranks"
        )
    usable = [one for one in several if one.job.groups_agree and one.matching.matched]
    if not usable:
        raise AbstainError(_why_not(several[0]))
    return tuple(usable)


def _why_not(ranks: RankSet) -> str:
    """Why its ranks cannot be held against each other."""
    if not ranks.job.groups_agree:
        return MIXED
    nothing = "no collective of one rank is one of another's"
    return f"{nothing}: {ranks.matching.notes[0]}" if ranks.matching.notes else nothing


def _of_clocks(clocks: Clocks) -> tuple[str, ...]:
    notes = []
    if clocks.largest_offset_ns >= TOLD_NS:
        notes.append(
            f"clocks of the ranks are up to {format_ns(clocks.largest_offset_ns)} apart, by the ends of their "
            f"collectives; after aligning, they agree to {format_ns(clocks.worst_ns)}"
        )
    if clocks.unreached:
        notes.append(f"clocks of {len(clocks.unreached):,} ranks are not known: they share no collective")
    return tuple(notes)
