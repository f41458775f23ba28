"""Collectives of compiled XLA programs on the devices of one recording or of several processes.

A profile contains a collective as an instruction; the program has its operation, replica groups and bytes. The k-th run
of an instruction in one execution of the program is the same collective on all devices of a group. As with ranks, the
shortest duration is the collective itself, and the rest of the other durations is waiting.

On a GPU the time is that of the kernel, which the start launches; the done launches nothing. If start and done are both
recorded as work (TPU), the start ends at once and the done lasts for the remaining wait: neither is the time of the
collective, so such pairs are omitted and counted. In one recording, collectives of XLA's CPU backend are meetings of
threads; see ``rendezvous``.

If a program runs on the devices of several processes, the processes are ranks and all devices form one set. The groups
contain places (replica x partitions + partition), each recording has the places of its devices, and processes give
an execution of a program the same number, so nothing is matched by order or time. A process is as late to a collective
as the last of its devices, so its side is the shortest duration among its devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.ranks.job import Job, Local, has_ranks, jobs_of, over
from perfscope.analyzers.ranks.matching import Group, Matched, Matching, align, matched_of
from perfscope.analyzers.ranks.sets import (
    CollectiveKind,
    CollectiveTable,
    Kind,
    RankSet,
    RankTotal,
    groups_of,
    kind_of,
    totals_of,
)
from perfscope.model.collectives import algorithm_of
from perfscope.model.finding import AbstainError
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import Collective, Shape

OPERATIONS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "collective-broadcast": "broadcast",
    "ragged-all-to-all": "ragged_all_to_all",
    "reduce-scatter": "reduce_scatter",
}
"""XLA's names -> those of the table. A permute is between two devices and has no third to compare with."""

RANK_NOTE = "a rank is a process with all its devices; its side of a collective is that of the device that arrived last"

Occurrence = tuple[int, int]
"""Execution of the program, and number of the run of the instruction in it."""

Key = tuple[str, str, int, int, Group]
"""Program, instruction, execution, number of the run in it, group by devices."""


class DeviceSet(Struct, frozen=True, kw_only=True):
    """The collectives of devices by kind, longest first, and the time of each device in them."""

    devices: tuple[int, ...]
    """Devices with a matched collective: by number in one recording, by place over several processes."""
    world_size: int | None
    """Number of devices that the programs were compiled for; None if programs differ."""
    kinds: tuple[CollectiveKind, ...]
    totals: tuple[RankTotal, ...]
    collectives: tuple[Matched, ...]
    """Matched collectives by their first start; sides are by device."""
    unmatched: int
    """Runs of collectives on single devices that could not be matched."""
    notes: tuple[str, ...]

    @property
    def table(self) -> CollectiveTable:
        """The table of its collectives, with devices for ranks."""
        return CollectiveTable(kinds=self.kinds, ranks=self.totals, matched=self.collectives)

    @property
    def matched(self) -> int:
        """Number of matched collectives."""
        return len(self.collectives)

    def label(self) -> str:
        """``devices 0-3 of 8``."""
        listed = list(self.devices)
        dense = listed == list(range(listed[0], listed[-1] + 1))
        shown = f"{listed[0]}-{listed[-1]}" if dense else ", ".join(map(str, listed))
        return f"devices {shown}" + ("" if self.world_size is None else f" of {self.world_size}")


class ProcessSet(Struct, frozen=True, kw_only=True):
    """A job of several processes, at least two of which were recorded."""

    ranks: RankSet
    """The processes, compared with each other."""
    devices: DeviceSet
    """Their devices by place, compared with each other."""
    rank_at: Mapping[int, int]
    """Place -> process that owns the device at that place."""


class _Runs(Struct):
    """Runs of collectives on devices, and the number of omitted runs by reason."""

    sides: dict[Key, dict[int, tuple[int, Local]]] = field(default_factory=lambda: defaultdict(dict))
    """Key -> device -> (rank, side)."""
    kinds: dict[tuple[str, str], tuple[str, int | None, str | None]] = field(default_factory=dict)
    """(Program, instruction) -> (operation, bytes, type); None for values that differ between devices."""
    rank_at: dict[int, int] = field(default_factory=dict)
    """Device -> rank, for all recorded devices."""
    worlds: set[int] = field(default_factory=set)
    pairs: int = 0
    between_two: int = 0
    groups: int = 0
    alone: int = 0
    unnumbered: int = 0

    def notes(self) -> Iterator[str]:
        """Yield one sentence per reason for omitted runs."""
        counts: Mapping[str, int] = {
            "with start and done, whose recorded times are not the time of the collective": self.pairs,
            "between two devices (permute), which are not matched": self.between_two,
            "whose groups could not be mapped to devices": self.groups,
            "not on all recorded devices of their group": self.alone,
            "of executions without a number": self.unnumbered,
        }
        for what, count in counts.items():
            if count:
                yield f"omitted: {count:,} runs of collectives on a device, {what}"

    def complete(self) -> Iterator[tuple[int, Key, Mapping[int, tuple[int, Local]]]]:
        """Yield (number, key, sides) of the runs that all recorded devices of their group contain, by start."""
        by_start = sorted(self.sides.items(), key=lambda run: min(side.start_ns for _, side in run[1].values()))
        for number, (key, sides) in enumerate(by_start):
            if len(sides) > 1 and len(sides) == sum(device in self.rank_at for device in key[4]):
                yield number, key, sides


def device_set(trace: Trace) -> DeviceSet | None:
    """Return the collectives that several devices of a recording ran together; ``None`` without any."""
    ops = trace.rows["hlo_ops"]
    if not trace.hlo or len(np.unique(ops["ordinal"][ops["kernel"] != MISSING])) < 2:
        return None
    from perfscope.analyzers.hlo import collectives

    runs, guessed = _Runs(), False
    for number, collective in enumerate(trace.fact(collectives)):
        rows = _rows(trace, collective)
        rows = rows[ops["kernel"][rows] != MISSING]
        if not _is_comparable(runs, trace, collective, rows):
            continue
        device_at = _device_at(trace, rows)
        groups = _groups_of_devices(trace, collective, rows, device_at)
        guessed |= len(groups) > 1 and device_at is None
        _gather(runs, trace, collective, rows, groups, program=str(number))
    device_set = _device_set(runs, dict.fromkeys(runs.rank_at, trace))
    note = "the mapping from devices to partitions is not recorded; the n-th device is assumed to be the n-th partition"
    return replace(device_set, notes=(*device_set.notes, note)) if device_set is not None and guessed else device_set


def is_process(trace: Trace) -> bool:
    """Whether the trace is of a process whose programs have collectives with devices of other processes."""
    return bool(trace.fact(_reaches_out))


def _reaches_out(trace: Trace) -> bool:
    if not trace.hlo and "hlo" not in trace.recorded:
        return False
    from perfscope.analyzers.hlo import collectives

    ordinals = trace.rows["hlo_ops"]["ordinal"]
    own = len(np.unique(ordinals[ordinals != MISSING]))
    ran = {int(number) for number in np.unique(trace.rows["hlo_ops"]["program_id"])} if own else set()
    return any(
        _world_of(collective) > own
        for collective in trace.fact(collectives)
        if collective.module.program_id is None or collective.module.program_id in ran
    )


def comparable_processes(traces: Sequence[Trace]) -> tuple[RankSet, ...]:
    """Return the jobs whose processes can be compared; empty if no trace is of one of several processes.

    ``AbstainError`` if there is only one such process.
    """
    mine = [trace for trace in traces if is_process(trace) and not has_ranks(trace)]
    if not mine:
        return ()
    sets = tuple(process_set.ranks for process_set in process_sets(traces) if process_set.ranks.matching.matched)
    if not sets:
        raise AbstainError(
            "a single process does not show which process waits for which; record all processes"
            if len(mine) == 1
            else "the recording lacks the places of the processes' devices in the job, or the numbers of the processes"
        )
    return sets


def process_sets(traces: Sequence[Trace]) -> tuple[ProcessSet, ...]:
    """Return the jobs that the traces are processes of, largest first. Cached."""
    return over(traces, _process_sets) if traces else ()


def _process_sets(traces: tuple[Trace, ...]) -> tuple[ProcessSet, ...]:
    results = [_process_set(job) for job in jobs_of(traces, is_process, _nothing) if len(job.members) > 1]
    return tuple(process_set for process_set in results if process_set is not None)


def _nothing(_: Trace) -> tuple[Local, ...]:
    """Return (): collectives of a process are read together with those of the other processes."""
    return ()


def _process_set(job: Job) -> ProcessSet | None:
    from perfscope.analyzers.hlo import collectives

    runs = _Runs()
    for member in job.members:
        for collective in member.trace.fact(collectives):
            rows = _rows(member.trace, collective)
            if _is_comparable(runs, member.trace, collective, rows):
                groups = _groups_of_places(collective)
                _gather(runs, member.trace, collective, rows, groups, program=collective.module.name, rank=member.rank)
    device_set = _device_set(runs, {place: job.traces[rank] for place, rank in runs.rank_at.items()})
    if device_set is None:
        return None
    note = f"devices of {len(set(runs.rank_at.values())):,} processes, by their place in the program's groups"
    devices = replace(device_set, notes=(note, *device_set.notes))
    return ProcessSet(ranks=_rank_set(job, runs), devices=devices, rank_at=runs.rank_at)


def _rank_set(job: Job, runs: _Runs) -> RankSet:
    """Return the collectives that cross processes, with one side per process."""
    matched, within = [], 0
    for number, key, placed in runs.complete():
        last: dict[int, Local] = {}
        for rank, side in placed.values():
            if rank not in last or side.duration_ns < last[rank].duration_ns:
                last[rank] = side
        if len(last) < 2:
            within += 1
            continue
        group = tuple(sorted(last))
        sides = {rank: replace(last[rank], ranks=group, size=len(group), sequence=number) for rank in group}
        matched.append(matched_of(runs.kinds[key[:2]][0], group, number, sides))
    members = tuple(
        replace(
            member,
            collectives=tuple(
                collective.sides[member.rank] for collective in matched if member.rank in collective.sides
            ),
        )
        for member in job.members
    )
    of_processes = replace(job, members=members, notes=(*job.notes, RANK_NOTE))
    notes = (f"{within:,} collectives are between devices of one process",) if within else ()
    return RankSet(
        job=of_processes,
        matching=Matching(matched=tuple(matched), alone=within, disagreeing=0, notes=notes),
        clocks=align(matched, job.ranks),
        groups=groups_of(of_processes, matched),
    )


def _world_of(collective: Collective) -> int:
    """Return the number of devices that the program was compiled for."""
    return collective.module.num_partitions * collective.module.num_replicas


def _rows(trace: Trace, collective: Collective) -> Int64:
    """Return the rows of ``hlo_ops`` of a collective on devices, including its done."""
    from perfscope.analyzers.hlo import rows_of

    ops = trace.rows["hlo_ops"]
    rows = rows_of(trace, collective.module, dict.fromkeys((collective.start.name, collective.done.name)))
    return np.asarray(rows[~ops["encloses"][rows] & (ops["ordinal"][rows] != MISSING)], np.int64)


def _is_comparable(runs: _Runs, trace: Trace, collective: Collective, rows: Int64) -> bool:
    """Whether the rows are the time of a collective with other devices; other rows are counted as omitted."""
    if not len(rows):
        return False
    runs.worlds.add(_world_of(collective))
    if collective.kind not in OPERATIONS:
        runs.between_two += len(rows)
        return False
    ran = {trace.text(code) for code in np.unique(trace.rows["hlo_ops"]["name"][rows]).tolist()}
    if collective.done.name != collective.start.name and collective.done.name in ran:
        runs.pairs += len(rows)
        return False
    return True


def _device_at(trace: Trace, rows: Int64) -> dict[int, int] | None:
    """Map places in the program's groups to device numbers; ``None`` unless recorded for all rows."""
    ops = trace.rows["hlo_ops"]
    pairs = np.unique(np.stack([ops["place"][rows], ops["ordinal"][rows]]), axis=1)
    places, numbers = pairs.tolist()
    if MISSING in places or len(set(places)) < len(places) or len(set(numbers)) < len(numbers):
        return None
    return dict(zip(places, numbers, strict=True))


def _groups_of_devices(
    trace: Trace, collective: Collective, rows: Int64, device_at: Mapping[int, int] | None
) -> tuple[Group, ...]:
    """Return the devices of each group, by number; empty if unknown.

    Groups contain places (partitions or replicas). If ``device_at`` is unknown, the n-th place is assumed to be the
    n-th device; otherwise groups with a place that was not recorded are omitted.
    """
    from perfscope.analyzers.hlo import MAX_GROUP_IDS, group_size

    world = _world_of(collective)
    if world > MAX_GROUP_IDS:  # a corrupt file may contain any number
        return ()
    here = np.unique(trace.rows["hlo_ops"]["ordinal"][rows]).tolist()
    members = tuple(range(world)) if max(here) < world else tuple(here)
    if len(members) == world == group_size(collective.module, collective.op):
        return (members,)
    listed = _listed_groups(collective)
    if listed is None or (device_at is None and len(members) != world):
        return ()
    at = dict(enumerate(members)) if device_at is None else device_at
    known = [group for group in listed if all(place in at for place in group)]
    return tuple(tuple(sorted(at[place] for place in group)) for group in known if len(group) > 1)


def _groups_of_places(collective: Collective) -> tuple[Group, ...]:
    """Return the places of each group; empty if unknown."""
    from perfscope.analyzers.hlo import MAX_GROUP_IDS, group_size

    world = _world_of(collective)
    if world > MAX_GROUP_IDS:
        return ()
    listed = _listed_groups(collective)
    if listed is None and group_size(collective.module, collective.op) == world:
        return (tuple(range(world)),)
    return listed or ()


def _listed_groups(collective: Collective) -> tuple[Group, ...] | None:
    """Return the program's groups by place (replica x partitions + partition).

    ``None`` if it lists none or other groups.
    """
    listed, world = collective.op.replica_groups, _world_of(collective)
    crossed = min(collective.module.num_partitions, collective.module.num_replicas) > 1
    flat = not crossed or collective.op.attributes.get("use_global_device_ids") == "true"
    if listed is None or not flat or any(not 0 <= place < world for group in listed for place in group):
        return None
    return tuple(tuple(sorted(group)) for group in listed)


def _gather(
    runs: _Runs,
    trace: Trace,
    collective: Collective,
    rows: Int64,
    groups: Sequence[Group],
    *,
    program: str,
    rank: int | None = None,
) -> None:
    """Add the runs of a collective.

    ``rank``: process whose devices are identified by place; None: identified by number.
    """
    ops = trace.rows["hlo_ops"]
    group_at = {device: group for group in groups for device in group if len(group) > 1}
    name = (program, collective.start.name)
    for ran in _by_device(trace, rows).values():
        # with more rows than expected, each row is a part of a run with unknown bytes
        whole = len(ran) == _expected_rows(trace, collective, ran)
        size = (
            collective.bytes
            if collective.kind != "ragged-all-to-all" and (whole or not collective.runs.exact)
            else None
        )
        kind = (OPERATIONS[collective.kind], size, _dtype_of(collective))
        before = runs.kinds.get(name, kind)
        runs.kinds[name] = (
            before[0], size if size == before[1] else None, kind[2] if kind[2] == before[2] else None,
        )  # fmt: skip
        for (run, turn), row in ran.items():
            device = int(ops["ordinal" if rank is None else "place"][row])
            group = group_at.get(device)
            if group is None:
                runs.groups += 1
            elif run == MISSING and rank is not None:
                runs.unnumbered += 1
            else:
                runs.rank_at[device] = rank or 0
                side = _side_of(trace, row, group, OPERATIONS[collective.kind])
                runs.sides[*name, run, turn, group][device] = (rank or 0, side)


def _device_set(runs: _Runs, traces: Mapping[int, Trace]) -> DeviceSet | None:
    """Return the collectives by device; ``None`` if none was matched. ``traces``: by rank."""
    by_kind: dict[Kind, list[Matched]] = defaultdict(list)
    matched = []
    for number, key, placed in runs.complete():
        operation, size, dtype = runs.kinds[key[:2]]
        collective = matched_of(
            operation, key[4], number, {device: side for device, (_, side) in sorted(placed.items())}
        )
        matched.append(collective)
        last = collective.sides[collective.last]
        by_kind[operation, key[4], size, dtype, last.algorithm, last.protocol].append(collective)
    if not matched:
        return None
    runs.alone += sum(map(len, runs.sides.values())) - sum(len(collective.sides) for collective in matched)
    kinds = [kind_of(kind, collectives, None, traces, known=True) for kind, collectives in by_kind.items()]
    kinds.sort(key=lambda kind: -sum(kind.duration_ns.values()))
    devices = tuple(sorted({device for collective in matched for device in collective.sides}))
    return DeviceSet(
        devices=devices,
        world_size=next(iter(runs.worlds)) if len(runs.worlds) == 1 else None,
        kinds=tuple(kinds),
        totals=totals_of(matched, devices, kinds),
        collectives=tuple(matched),
        unmatched=runs.pairs + runs.between_two + runs.groups + runs.alone + runs.unnumbered,
        notes=tuple(runs.notes()),
    )


def _expected_rows(trace: Trace, collective: Collective, ran: Mapping[Occurrence, int]) -> float:
    """Return the expected rows per device if each run of the collective has one row."""
    from perfscope.analyzers.hlo import executions_of

    numbers = {run for run, _ in ran}
    if MISSING not in numbers:
        return len(numbers) * collective.runs.times
    executions = executions_of(trace, collective.module)
    return 0 if executions is None else executions.rounds * collective.runs.times


def _by_device(trace: Trace, rows: Int64) -> dict[int, dict[Occurrence, int]]:
    """Map device -> occurrence -> row of ``hlo_ops``. Without execution numbers, everything counts as one execution."""
    ops = trace.rows["hlo_ops"]
    result: dict[int, dict[Occurrence, int]] = defaultdict(dict)
    turns: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows[np.argsort(ops["start_ns"][rows], kind="stable")].tolist():
        device, run = int(ops["ordinal"][row]), int(ops["run_id"][row])
        result[device][run, turns[device, run]] = row
        turns[device, run] += 1
    return result


def _side_of(trace: Trace, row: int, group: Group, operation: str) -> Local:
    """Return the device's side of a row of ``hlo_ops``: its kernel, or the op of the CPU backend."""
    ops, kernels = trace.rows["hlo_ops"], trace.rows["kernels"]
    kernel = int(ops["kernel"][row])
    algorithm, protocol = algorithm_of("" if kernel == MISSING else trace.text(int(kernels["name"][kernel])))
    return Local(
        start_ns=int(ops["start_ns"][row]),
        end_ns=int(ops["end_ns"][row]),
        operation=operation,
        ranks=group,
        lane=-1,
        size=len(group),
        algorithm=algorithm,
        protocol=protocol,
        kernel=kernel,
        slice=int(ops["slice"][row]),
    )


def _dtype_of(collective: Collective) -> str | None:
    """Return the type of all its tensors; ``None`` if they differ."""
    results = {
        shape.dtype
        for name in collective.start.operands
        for shape in _leaves(collective.computation.by_name[name].shape)
    }
    return results.pop() if len(results) == 1 else None


def _leaves(shape: Shape) -> Iterator[Shape]:
    if shape.dtype != "tuple":
        yield shape
    for part in shape.parts:
        yield from _leaves(part)
