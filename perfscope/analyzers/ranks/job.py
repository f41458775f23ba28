"""Assignment of traces to the ranks of jobs: duplicate files of a rank, missing ranks, mixed jobs.

Traces belong to one job if they have the same world size and overlap in time. A trace without a world size belongs to a
job if its name differs from another one's by the number of its rank, or if both record the same process group. Traces
do not name their hosts, and clocks of hosts may differ, so recordings within ``APART_NS`` of each other count as
simultaneous. If a rank has two files, the one that overlaps the other ranks is used. Notes report all of this.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import lineage
from perfscope.analyzers.time import whole_ns
from perfscope.model.collectives import algorithm_of, element_size, message_elements, operation_of
from perfscope.model.finding import AbstainError, Finding
from perfscope.model.trace import MISSING, RECORDED, Trace

MOST_ELEMENTS = 1 << 50
"""Limit on the elements of one message, larger than any memory."""

APART_NS = 60 * 10**9
"""Maximum time between recordings of one job: clocks of hosts without synchronization differ by seconds."""

MIXED = "process groups of one name have different members on different ranks: these are not one job"

_WORK = frozenset({"device_work", "host_ops"})
"""Keys of `RECORDED` of a recording of a program, in contrast to a snapshot, a log or a compiled program."""

MOST_RANKS = 1 << 17
"""Maximum ranks of a job: a corrupt file may contain any number, and missing ranks are listed."""

MOST_NAMED = 8
"""Maximum number of ranks or files that a note lists."""

FactT = TypeVar("FactT")


# The collectives of one rank in order of begin, as far as its trace records them.


class Local(Struct, frozen=True, kw_only=True):
    """One collective as recorded by one rank; times on that rank's clock."""

    start_ns: int
    end_ns: int
    operation: str
    ranks: tuple[int, ...] | None
    """Members of the group, if recorded."""
    lane: int
    """Index of its stream among the rank's streams with collectives, by first use; -1 for host collectives."""
    size: int | None
    """Number of ranks in the group, if recorded."""
    algorithm: str | None
    protocol: str | None
    kernel: int
    """Row of ``kernels``; ``MISSING`` for a collective on the host."""
    slice: int
    """Row of ``slices`` of its host side; ``MISSING`` if unknown."""
    group: str | None = None
    """Name of the process group, if recorded."""
    description: str | None = None
    """The program's description of the group, if recorded."""
    sequence: int | None = None
    """Number in its group, if recorded."""
    elements: int | None = None
    """Elements of the input, if recorded."""
    received: int | None = None
    """Elements of the output, if recorded."""
    dtype: str | None = None
    dims: int | None = None
    """Dimensions of the input tensor, if shapes are recorded."""
    launched: bool = True
    """Whether its launch call is in the trace; False if it was launched before the capture began."""
    peer: int | None = None
    """Rank on the other side of a send or receive, if recorded."""

    @property
    def duration_ns(self) -> int:
        """Duration, ns."""
        return self.end_ns - self.start_ns

    def message_bytes(self, size: int | None = None) -> int | None:
        """Return the message bytes in the definition of nccl-tests; ``size``: ranks in the group, if known better."""
        width = element_size(self.dtype)
        elements = message_elements(self.operation, self.elements, self.received, size or self.size)
        return None if width is None or elements is None else width * elements


def locals_of(trace: Trace) -> tuple[Local, ...]:
    """Return the collectives of a trace by start."""
    return tuple(sorted(_read(trace), key=lambda local: (local.start_ns, local.end_ns)))


_READ = (
    "start_ns", "end_ns", "name", "kernel", "slice", "group", "description", "ranks", "group_size", "sequence",
    "elements_in", "elements_out", "dtype", "peer",
)  # fmt: skip
"""Columns of ``collectives`` that are read."""


def _read(trace: Trace) -> Iterator[Local]:
    rows, kernels = {name: trace.rows["collectives"][name].tolist() for name in _READ}, trace.rows["kernels"]
    lanes = _lanes(trace)
    has_links = bool((kernels["call"] >= 0).any()) if len(kernels) else False
    for row in range(len(rows["name"])):
        kernel, slice_row = rows["kernel"][row], rows["slice"][row]
        if kernel != MISSING and slice_row == MISSING:
            slice_row = int(kernels["op"][kernel])
        name, shape, dtype = _host_side(trace, slice_row)
        operation = operation_of(trace.text(rows["name"][row]))
        if operation in ("send_recv", "unknown") and name is not None:
            operation = operation_of(name)
        elements = _known(rows["elements_in"][row])
        recorded_dtype = trace.text(rows["dtype"][row]) or dtype
        if elements is None and shape is not None:
            elements = _count(shape)
        algorithm, protocol = algorithm_of("" if kernel == MISSING else trace.text(int(kernels["name"][kernel])))
        yield Local(
            start_ns=rows["start_ns"][row],
            end_ns=rows["end_ns"][row],
            operation=operation,
            group=trace.text(rows["group"][row]) or None,
            description=trace.text(rows["description"][row]) or None,
            ranks=_ranks(trace.text(rows["ranks"][row])),
            lane=-1 if kernel == MISSING else lanes[int(kernels["device"][kernel]), int(kernels["stream"][kernel])],
            size=_known(rows["group_size"][row]),
            sequence=_known(rows["sequence"][row]),
            elements=elements,
            received=_known(rows["elements_out"][row]),
            dtype=recorded_dtype,
            dims=None if shape is None else len(shape),
            algorithm=algorithm,
            protocol=protocol,
            launched=kernel == MISSING or not has_links or int(kernels["call"][kernel]) != MISSING,
            kernel=kernel,
            slice=slice_row,
            peer=_known(rows["peer"][row]),
        )


def _lanes(trace: Trace) -> dict[tuple[int, int], int]:
    """Map (device row, stream) of kernels of collectives to an index by first use; at one time by stream."""
    kernels, linked = trace.rows["kernels"], trace.rows["collectives"]["kernel"]
    rows = np.union1d(np.flatnonzero(kernels["communication"]), linked[linked != MISSING])
    lanes: dict[tuple[int, int], int] = {}
    order = np.lexsort((kernels["stream"][rows], kernels["device"][rows], kernels["start_ns"][rows]))
    for row in rows[order].tolist():
        lanes.setdefault((int(kernels["device"][row]), int(kernels["stream"][row])), len(lanes))
    return lanes


def _host_side(trace: Trace, row: int) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    """Return (``all_to_all`` for ``nccl:all_to_all``, dims and type of its tensor) from the spans around a row."""
    slices = trace.rows["slices"]
    for around in lineage(trace, row):
        backend, mark, name = trace.text(int(slices["name"][around])).partition(":")
        if mark and backend in ("nccl", "gloo", "mpi", "ucc") and not name.startswith(":"):
            dtypes = _json(trace.text(int(slices["dtypes"][around])))
            dtype = dtypes[0] if isinstance(dtypes, list) and dtypes and isinstance(dtypes[0], str) else None
            return name, _shape(_json(trace.text(int(slices["shapes"][around])))), dtype
    return None, None, None


def _shape(dims: Any) -> tuple[int, ...] | None:
    """Return the dims of the first tensor; several tensors of one call count as one with all their elements."""
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return None
    shapes = [dim for dim in dims if isinstance(dim, list) and dim and all(isinstance(n, int) for n in dim)]
    if not shapes:
        return None
    return tuple(shapes[0]) if len(shapes) == 1 else (sum(map(math.prod, shapes)),)


def _count(shape: tuple[int, ...]) -> int | None:
    """Return the elements of a tensor; ``None`` for an impossible number."""
    elements = math.prod(shape)
    return elements if 0 <= elements <= MOST_ELEMENTS else None


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...] | None:
    """Parse ``"[0, 1]"`` (a JSON string that contains a list, or a list); None if it is cut short (``...``)."""
    result = _json(text)
    if isinstance(result, str):
        result = _json(result)
    if isinstance(result, list) and result and all(isinstance(rank, int) for rank in result):
        return tuple(sorted(result))
    return None


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:  # cut short by the profiler
        return None


def _known(value: Any) -> int | None:
    return None if int(value) < 0 else int(value)


class Member(Struct, frozen=True, kw_only=True):
    """One rank of a job."""

    rank: int
    trace: Trace
    collectives: tuple[Local, ...]


class Job(Struct, frozen=True, kw_only=True):
    """The recorded ranks of one job, by rank."""

    members: tuple[Member, ...]
    world_size: int | None
    missing: tuple[int, ...]
    """Ranks of the world without a trace."""
    notes: tuple[str, ...]
    """Notes about how the job was assembled."""
    groups_agree: bool = True
    """False if a process group name has different members on two ranks that both belong to it."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The recorded ranks."""
        return tuple(member.rank for member in self.members)

    @property
    def traces(self) -> dict[int, Trace]:
        """The traces by rank."""
        return {member.rank: member.trace for member in self.members}

    @property
    def whole_ns(self) -> int:
        """Reference time of costs, ns: the steps of the rank with the longest steps, or its span."""
        return max(whole_ns(member.trace) for member in self.members)

    def label(self) -> str:
        """Label of the job for reports with several jobs: ``ranks 0-3 of 8``."""
        ranks = self.ranks
        span = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        return f"rank{'s' if len(ranks) > 1 else ''} {span}" + (f" of {self.world_size}" if self.world_size else "")


def has_ranks(trace: Trace) -> bool:
    """Whether a trace has one rank's collectives (XLA's CPU backend records those of all its devices together)."""
    return bool(len(trace.rows["collectives"])) and not len(trace.rows["hlo_ops"])


def only_compared(trace: Trace) -> Iterable[Finding]:
    """``check`` of a rule that only compares ranks: a single rank has no finding.

    ``AbstainError`` if no collective was recorded.
    """
    if not has_ranks(trace):
        raise AbstainError(f"not recorded: {RECORDED['collectives']}", ("collectives",))
    return ()


def jobs_of(
    traces: Sequence[Trace],
    holds: Callable[[Trace], bool] = has_ranks,
    read: Callable[[Trace], tuple[Local, ...]] = locals_of,
) -> tuple[Job, ...]:
    """Return the jobs that the traces belong to, largest first, without traces of unknown rank.

    ``holds``: whether a trace has a rank's collectives; ``read``: returns those of a trace.
    """
    with_rank = [trace for trace in traces if holds(trace) and trace.source.rank is not None]
    without_rank = sum(1 for trace in traces if holds(trace) and trace.source.rank is None)
    clusters = _clusters(with_rank)
    clusters.sort(key=lambda cluster: -len({trace.source.rank for trace in cluster}))
    shared = []
    if without_rank:
        shared.append(f"{without_rank:,} traces with collectives have no rank and are excluded from the comparison")
    if len(clusters) > 1:
        shared.append(
            f"traces of {len(clusters):,} jobs are mixed: {_why_apart(clusters)}; each job is analyzed separately"
        )
    return tuple(_job(cluster, shared, read) for cluster in clusters)


def main_job(traces: Sequence[Trace]) -> tuple[int, ...]:
    """Return the indices of a folder's traces that are analyzed together, in order.

    They are those of its run, else of the job with the most traces, else of the latest. Sources without work of the
    host or a device (memory snapshots, compiled programs) do not name their job: they are kept if there is one job.
    """
    in_run = [index for index, trace in enumerate(traces) if trace.source.format == "run"]
    loose = [trace for trace in traces if trace.source.format != "run" and trace.recorded & _WORK]
    jobs = _one_world(_clusters(loose))
    if len(jobs) + bool(in_run) < 2:
        return tuple(range(len(traces)))
    if in_run:
        return tuple(in_run)
    largest = max(jobs, key=lambda job: (len(job), max(trace.span_ns()[1] for trace in job)))
    return tuple(index for index, trace in enumerate(traces) if any(trace is member for member in largest))


def _one_world(clusters: Iterable[list[Trace]]) -> list[list[Trace]]:
    """Join recordings made at different times that complete each other: same world, no rank twice, clocks that differ.

    Each process of a world of one rank is a separate job.
    """
    result: list[list[Trace]] = []
    for cluster in clusters:
        world = _world(cluster)
        if world == 1:
            result += [[trace] for trace in cluster]
            continue
        ranks = {trace.source.rank for trace in cluster}
        fitting = (
            job
            for job in result
            if world is not None
            and _world(job) == world
            and None not in ranks
            and ranks.isdisjoint({None, *(trace.source.rank for trace in job)})
        )
        job = next(fitting, None)
        if job is None:
            result.append(list(cluster))
        else:
            job += cluster
    return result


def _world(cluster: Sequence[Trace]) -> int | None:
    return next((trace.source.world_size for trace in cluster if trace.source.world_size is not None), None)


def _clusters(traces: Sequence[Trace]) -> list[list[Trace]]:
    return [job for same in _by_world(traces) for cluster in _by_time(same) for job in _related(cluster)]


_NUMBER = re.compile(r"\d+")


def _related(cluster: Sequence[Trace]) -> list[list[Trace]]:
    """Divide recordings of one time; those without a world size are strangers unless they have a mark in common."""
    if all(trace.source.world_size is not None for trace in cluster):
        return [list(cluster)]
    ranks: dict[str, set[int | None]] = defaultdict(set)
    for trace in cluster:
        ranks[_pattern(trace)].add(trace.source.rank)
    leader = list(range(len(cluster)))
    first: dict[Hashable, int] = {}
    for index, trace in enumerate(cluster):
        marks = list(_marks(trace))
        if len(ranks[_pattern(trace)] - {None}) > 1:
            marks.append(("name", _pattern(trace)))
        for mark in marks:
            leader[_leader(leader, index)] = _leader(leader, first.setdefault(mark, index))
    groups: dict[int, list[Trace]] = defaultdict(list)
    for index, trace in enumerate(cluster):
        groups[_leader(leader, index)].append(trace)
    return list(groups.values())


def _leader(leader: list[int], index: int) -> int:
    """Return the index that represents the group of ``index``."""
    while leader[index] != index:
        index = leader[index]
    return index


def _pattern(trace: Trace) -> str:
    """The path with its numbers left out."""
    return _NUMBER.sub("#", trace.source.path)


def _marks(trace: Trace) -> Iterator[Hashable]:
    """Yield what recordings of one job have in common: world, file, profile of JAX, process groups with members."""
    source, rows = trace.source, trace.rows["collectives"]
    if source.world_size is not None:
        yield "world", source.world_size
    yield "file", source.path
    if source.format == "xspace":  # JAX writes the files of all hosts into one folder
        yield "folder", str(Path(source.path).parent)
    for group, members in np.unique(np.stack((rows["group"], rows["ranks"])), axis=1).T.tolist():
        named = trace.text(members)
        if group != MISSING and len(_ranks(named) or ()) > 1:
            yield "group", trace.text(group), named


def _by_world(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Group the traces by world size; traces without one join the others if there is a single size."""
    by_size: dict[int | None, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_size[trace.source.world_size].append(trace)
    sizes = [size for size in by_size if size is not None]
    if len(sizes) == 1 and None in by_size:
        by_size[sizes[0]] += by_size.pop(None)
    return list(by_size.values())


def _by_time(traces: Sequence[Trace]) -> list[list[Trace]]:
    """Group the traces by time: each begins less than ``APART_NS`` after the end of all previous ones."""
    result: list[list[Trace]] = []
    reach = 0
    for trace in sorted(traces, key=lambda trace: trace.span_ns()):
        start, end = trace.span_ns()
        if not result or start > reach + APART_NS:
            result.append([])
            reach = end
        result[-1].append(trace)
        reach = max(reach, end)
    return result


def _why_apart(clusters: Sequence[Sequence[Trace]]) -> str:
    worlds = sorted({cluster[0].source.world_size or 0 for cluster in clusters})
    if len(worlds) > 1:
        return "world sizes " + ", ".join(str(size) if size else "not told" for size in worlds)
    if any(cluster[0].source.world_size is None for cluster in clusters):
        return "no world size, and neither the rank in the name nor a process group relates them"
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
        ranked = [(_overlap_ns(trace, others), trace.source.events_read, trace) for trace in files]
        chosen[rank] = max(ranked, key=lambda candidate: candidate[:2])[2]
        name = Path(chosen[rank].source.path).name
        notes.append(
            f"{len(files):,} files are of rank {rank}; {name} is used because it overlaps the other ranks in time"
        )
    world = next((trace.source.world_size for trace in chosen.values() if trace.source.world_size is not None), None)
    members = tuple(Member(rank=rank, trace=trace, collectives=trace.fact(read)) for rank, trace in chosen.items())
    count = world or max(chosen) + 1
    missing = tuple(rank for rank in range(min(count, MOST_RANKS)) if rank not in chosen)
    if count > MOST_RANKS:
        notes.append(f"{count:,} ranks exceed any real job; only the first {MOST_RANKS:,} are considered")
    if missing:
        notes.append(
            f"{len(missing):,} of {count:,} ranks are missing ({named_ranks(missing)}): their wait times are unknown"
        )
    agree = _groups_agree(members)
    if not agree:
        notes.append(MIXED)
    return Job(members=members, world_size=world, missing=missing, notes=tuple(notes), groups_agree=agree)


def _overlap_ns(trace: Trace, others: Sequence[Trace]) -> int:
    """Return for how many ns a trace overlaps the others, summed."""
    start, end = trace.span_ns()
    return sum(max(0, min(end, other.span_ns()[1]) - max(start, other.span_ns()[0])) for other in others)


def _groups_agree(members: Sequence[Member]) -> bool:
    """Whether all ranks of a group with one name record the same members."""
    held: dict[tuple[str, int], tuple[int, ...]] = {}
    recorded = {member.rank for member in members}
    for member in members:
        for group, ranks in {(collective.group, collective.ranks) for collective in member.collectives}:
            if group is None or ranks is None or member.rank not in ranks:
                continue
            if any(held.setdefault((group, rank), ranks) != ranks for rank in recorded.intersection(ranks)):
                return False
    return True


def named_ranks(ranks: Sequence[int], most: int = MOST_NAMED) -> str:
    """Return ``rank 3``, ``ranks 0, 1, 2`` or ``ranks 0, 1, 2, 3 and 60 more``, with at most ``most`` ranks listed."""
    more = f" and {len(ranks) - most:,} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:most]))}{more}"


def shown_group(group: Sequence[int], unit: str = "") -> str:
    """Return ``0-7``, ``0,2,4`` or ``0,8,... (16)``; ``unit`` follows the number."""
    if len(group) > 1 and list(group) == list(range(group[0], group[-1] + 1)):
        return f"{group[0]}-{group[-1]}"
    return ",".join(map(str, group)) if len(group) <= 8 else f"{group[0]},{group[1]},... ({len(group)}{unit})"


# A fact over several traces, computed once and stored with the first of them.


class _Over(Struct, frozen=True):
    """``derive`` of all ``traces`` as a fact of one of them; equal if both fields are equal."""

    derive: Callable[[tuple[Trace, ...]], Any]
    traces: tuple[Trace, ...]

    def __call__(self, _: Trace) -> Any:
        return self.derive(self.traces)


def over(traces: Sequence[Trace], derive: Callable[[tuple[Trace, ...]], FactT]) -> FactT:
    """Return ``derive(traces)``, computed once for these traces in this order; at least one trace is required."""
    held = tuple(traces)
    return cast("FactT", held[0].fact(_Over(derive, held)))
