"""Which traces are ranks of one job: files of one rank twice, ranks that are missing, jobs that were mixed.

Traces are of one job if they name the same world size and lie at the same time. Hosts are not read from
traces, and clocks of hosts may differ: recordings that lie within ``APART_NS`` of each other count as one
time. Of two files of one rank the one that lies beside the other ranks is kept. All of it is said in notes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from perfscope.analyzers.ranks.local import Local, locals_of
from perfscope.model.trace import Trace

APART_NS = 60 * 10**9
"""A minute. Ranks record the same steps, and clocks of hosts differ by seconds even where nobody sets them."""

MIXED = "process groups of one name have different members on different ranks: these are not one job"

MOST_NAMED = 8
"""Ranks or files a note names one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of a job."""

    rank: int
    trace: Trace
    collectives: tuple[Local, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks of one job that were recorded, by rank."""

    members: tuple[Member, ...]
    world_size: int | None
    missing: tuple[int, ...]
    """Ranks of the world that no trace is of."""
    notes: tuple[str, ...]
    """What a reader must know of how it was put together."""
    groups_agree: bool = True
    """False: a process group of one name has different members on two ranks that are in both of them."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The recorded ranks."""
        return tuple(member.rank for member in self.members)

    def label(self) -> str:
        """``ranks 0-3 of 8``, for a reader who sees several jobs."""
        ranks = self.ranks
        span = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        return f"rank{'s' if len(ranks) > 1 else ''} {span}" + (f" of {self.world_size}" if self.world_size else "")


def has_ranks(trace: Trace) -> bool:
    """Whether a trace holds one rank's collectives (XLA's CPU backend records those of all its devices at once)."""
    return bool(len(trace.rows["collectives"])) and not len(trace.rows["hlo_ops"])


def jobs_of(
    traces: Sequence[Trace],
    holds: Callable[[Trace], bool] = has_ranks,
    read: Callable[[Trace], tuple[Local, ...]] = locals_of,
) -> tuple[Job, ...]:
    """The jobs that the traces are of, the one with most ranks first. Traces that tell no rank are in none.

    ``holds``: whether a trace has a rank's collectives; ``read``: those of a trace.
    """
    told = [trace for trace in traces if holds(trace) and trace.source.rank is not None]
    untold = sum(1 for trace in traces if holds(trace) and trace.source.rank is None)
    clusters = [cluster for same in _by_world(told) for cluster in _by_time(same)]
    clusters.sort(key=lambda cluster: -len({trace.source.rank for trace in cluster}))
    shared = []
    if untold:
        shared.append(f"{untold:,} traces with collectives do not tell their rank and are left out of the comparison")
    if len(clusters) > 1:
        shared.append(f"traces of {len(clusters):,} jobs were mixed: {_why_apart(clusters)}; each is judged by itself")
    return tuple(_job(cluster, shared, read) for cluster in clusters)


def _by_world(traces: Sequence[Trace]) -> list[list[Trace]]:
    """By world size; those that do not tell it are with the others where there is one size only."""
    by_size: dict[int | None, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_size[trace.source.world_size].append(trace)
    sizes = [size for size in by_size if size is not None]
    if len(sizes) == 1 and None in by_size:
        by_size[sizes[0]] += by_size.pop(None)
    return list(by_size.values())


def _by_time(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Traces in a row, each of which begins before ``APART_NS`` have passed since all before it ended."""
    found: list[list[Trace]] = []
    reach = 0
    for trace in sorted(traces, key=lambda one: one.span_ns()):
        start, end = trace.span_ns()
        if not found or start > reach + APART_NS:
            found.append([])
            reach = end
        found[-1].append(trace)
        reach = max(reach, end)
    return found


def _why_apart(clusters: Sequence[Sequence[Trace]]) -> str:
    worlds = sorted({cluster[0].source.world_size or 0 for cluster in clusters})
    if len(worlds) > 1:
        return "world sizes " + ", ".join(str(size) if size else "not told" for size in worlds)
    return f"they were recorded more than {APART_NS // 10**9} s apart"


def _job(cluster: Sequence[Trace], shared: Sequence[str], read: Callable[[Trace], tuple[Local, ...]]) -> Job:
    by_rank: dict[int, list[Trace]] = defaultdict(list)
    for trace in cluster:
        by_rank[trace.source.rank if trace.source.rank is not None else 0].append(trace)
    notes = list(shared)
    chosen = {}
    for rank, files in sorted(by_rank.items()):
        if len(files) == 1:
            chosen[rank] = files[0]
            continue
        others = [other for number, found in by_rank.items() if number != rank for other in found]
        ranked = [(_beside(trace, others), trace.source.events_read, trace) for trace in files]
        chosen[rank] = max(ranked, key=lambda one: one[:2])[2]
        name = Path(chosen[rank].source.path).name
        notes.append(f"{len(files):,} files are of rank {rank}; {name} is used: it lies beside the other ranks")
    world = next((trace.source.world_size for trace in chosen.values() if trace.source.world_size is not None), None)
    members = tuple(Member(rank=rank, trace=trace, collectives=trace.fact(read)) for rank, trace in chosen.items())
    missing = tuple(rank for rank in range(world or max(chosen) + 1) if rank not in chosen)
    if missing:
        notes.append(
            f"{len(missing):,} of {world or max(chosen) + 1:,} ranks are missing ({_named(missing)}): what they waited "
            "and whom they kept waiting is not known"
        )
    agree = _groups_agree(members)
    if not agree:
        notes.append(MIXED)
    return Job(members=members, world_size=world, missing=missing, notes=tuple(notes), groups_agree=agree)


def _beside(trace: Trace, others: Sequence[Trace]) -> int:
    """ns for which a trace lies beside the others, summed."""
    start, end = trace.span_ns()
    return sum(max(0, min(end, other.span_ns()[1]) - max(start, other.span_ns()[0])) for other in others)


def _groups_agree(members: Sequence[Member]) -> bool:
    """Whether two ranks that are in a group of one name hold it to have the same members."""
    held: dict[tuple[str, int], tuple[int, ...]] = {}
    recorded = {member.rank for member in members}
    for member in members:
        for group, ranks in {(one.group, one.ranks) for one in member.collectives}:
            if group is None or ranks is None or member.rank not in ranks:
                continue
            if any(held.setdefault((group, rank), ranks) != ranks for rank in recorded.intersection(ranks)):
                return False
    return True


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MOST_NAMED:,} more" if len(ranks) > MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


# A fact over several traces, computed once and kept with the first of them.


FactT = TypeVar("FactT")


@dataclass(frozen=True, slots=True)
class _Over:
    """``derive`` of all of ``traces`` as a fact of one of them; two are equal if both parts are."""

    derive: Callable[[tuple[Trace, ...]], Any]
    traces: tuple[Trace, ...]

    def __call__(self, _: Trace) -> Any:
        return self.derive(self.traces)


def over(traces: Sequence[Trace], derive: Callable[[tuple[Trace, ...]], FactT]) -> FactT:
    """``derive(traces)``, computed once for these traces in this order. There is at least one trace."""
    held = tuple(traces)
    return cast("FactT", held[0].fact(_Over(derive, held)))
