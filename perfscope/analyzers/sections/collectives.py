"""Ranks and collectives of all traces as one bounded section; a failure in it does not affect the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from perfscope.analyzers.sections import guarded
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.analyzers.ranks import Clocks, CollectiveKind, DeviceSet, PairKind, RankGroup, RankSet, RankTotal

MOST_JOBS = 4
"""Most jobs of a section: several jobs are a mistake, and a few show it."""

MOST_KINDS = 20
"""Most kinds of collectives of a job: those below the twentieth take a percent or two each."""

MOST_GROUPS = 20
"""Process groups of a job: a large mesh has hundreds of each axis."""

MOST_RANKS = 32
"""Most ranks of a job, longest waits first: four nodes of eight."""


MOST_PAIRS = 20
"""Kinds of messages between two ranks: a pipeline of eight stages has fourteen of its activations and gradients."""


class JobCollectives(Struct, frozen=True, kw_only=True):
    """One job: its ranks compared, and its collectives by kind, longest first."""

    label: str
    """``ranks 0-7 of 8``."""
    members: Literal["rank", "device"] = "rank"
    """The members compared: ranks, or the devices of one process, by number."""
    world_size: int | None
    recorded: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks of the world that no trace is of."""
    matched: int
    unmatched: int
    """Collectives of single ranks that were not matched, including sends and receives."""
    paired: int = 0
    """Messages between two ranks whose send and receive were matched."""
    pairs: tuple[PairKind, ...] = ()
    """These messages by sender, receiver and size, longest first."""
    pairs_left: int = 0
    clock_offset_ns: int
    """The largest difference between two ranks' clocks."""
    clock_uncertainty_ns: int
    """To which the ends agree after aligning."""
    groups: tuple[RankGroup, ...]
    groups_left: int
    kinds: tuple[CollectiveKind, ...]
    """The longest first."""
    kinds_left: int
    ranks: tuple[RankTotal, ...]
    """By rank."""
    ranks_left: int
    notes: tuple[str, ...]


class CollectivesSection(Struct, frozen=True, kw_only=True):
    """The compared jobs; empty if no two traces are ranks of one job and no trace has several devices."""

    jobs: tuple[JobCollectives, ...] = ()
    """Jobs whose ranks were compared, the one with most ranks first."""
    jobs_left: int = 0
    problems: tuple[str, ...] = ()
    """Why collectives are missing."""


NO_COLLECTIVES = CollectivesSection()


def collectives_section(traces: Sequence[Trace]) -> CollectivesSection:
    """The section of all traces; ranks whose collectives cause an error are named in ``problems``."""
    from perfscope.analyzers.ranks import device_set, has_ranks, process_sets, rank_sets

    jobs: list[JobCollectives] = []
    problems: list[str] = []
    with guarded("the collectives could not be summed up", traces[0].source.path if traces else "", problems):
        if sum(map(has_ranks, traces)) > 1:
            jobs += [_job(rank_set) for rank_set in rank_sets(traces) if _shown(rank_set)]
        processes = process_sets(traces)
        joined = {id(member.trace) for process in processes for member in process.ranks.job.members}
        several = [one for trace in traces if id(trace) not in joined and (one := trace.fact(device_set)) is not None]
        jobs += [_of_devices(device_set) for device_set in (*(process.devices for process in processes), *several)]
    if problems:
        return CollectivesSection(problems=tuple(problems))
    return CollectivesSection(jobs=tuple(jobs[:MOST_JOBS]), jobs_left=max(0, len(jobs) - MOST_JOBS))


def _shown(ranks: RankSet) -> bool:
    """Whether ranks communicated, also if sender and receiver are unknown, which the notes state."""
    return bool(ranks.matching.matched or ranks.pairing.pairs or ranks.pairing.without_peer)


def _job(ranks: RankSet) -> JobCollectives:
    from perfscope.analyzers.ranks import kinds_of, table_of

    table = table_of(ranks)
    clocks: Clocks = ranks.clocks
    worst = sorted(table.ranks, key=lambda total: -total.wait_ns)[:MOST_RANKS]
    pairs = kinds_of(ranks.pairing)
    return JobCollectives(
        label=ranks.job.label(),
        world_size=ranks.job.world_size,
        recorded=ranks.job.ranks,
        missing=ranks.job.missing,
        matched=len(ranks.matching.matched),
        unmatched=ranks.matching.alone + ranks.matching.disagreeing + ranks.pairing.unpaired,
        paired=len(ranks.pairing.pairs),
        pairs=pairs[:MOST_PAIRS],
        pairs_left=max(0, len(pairs) - MOST_PAIRS),
        clock_offset_ns=clocks.largest_offset_ns,
        clock_uncertainty_ns=clocks.worst_ns,
        groups=ranks.groups[:MOST_GROUPS],
        groups_left=max(0, len(ranks.groups) - MOST_GROUPS),
        kinds=table.kinds[:MOST_KINDS],
        kinds_left=max(0, len(table.kinds) - MOST_KINDS),
        ranks=tuple(sorted(worst, key=lambda total: total.rank)),
        ranks_left=max(0, len(table.ranks) - MOST_RANKS),
        notes=ranks.notes,
    )


def _of_devices(device_set: DeviceSet) -> JobCollectives:
    worst = sorted(device_set.totals, key=lambda total: -total.wait_ns)[:MOST_RANKS]
    return JobCollectives(
        label=device_set.label(),
        members="device",
        world_size=device_set.world_size,
        recorded=device_set.devices,
        missing=(),
        matched=device_set.matched,
        unmatched=device_set.unmatched,
        clock_offset_ns=0,
        clock_uncertainty_ns=0,
        groups=(),
        groups_left=0,
        kinds=device_set.kinds[:MOST_KINDS],
        kinds_left=max(0, len(device_set.kinds) - MOST_KINDS),
        ranks=tuple(sorted(worst, key=lambda total: total.rank)),
        ranks_left=max(0, len(device_set.totals) - MOST_RANKS),
        notes=device_set.notes,
    )
