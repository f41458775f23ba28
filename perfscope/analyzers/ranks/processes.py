"""Compiled XLA programs that run on the devices of several processes: the processes are ranks, all devices one set.

The groups of a collective name places (replica x partitions + partition), and each recording says at which places its
own devices are; processes give an execution of a program the same number. So a run of a collective is one and the same
where program, instruction, execution, turn in it and group are: nothing is matched by order or by time.

A process is as late to a collective as the last of its devices: the shortest of its devices' durations is its side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfscope.analyzers.hlo.collectives import Collective, collectives
from perfscope.analyzers.hlo.executions import rows_of
from perfscope.analyzers.hlo.module import MAX_GROUP_IDS
from perfscope.analyzers.ranks import devices
from perfscope.analyzers.ranks.clocks import align
from perfscope.analyzers.ranks.devices import OPERATIONS, DeviceSet, Left
from perfscope.analyzers.ranks.groups import groups_of
from perfscope.analyzers.ranks.job import Job, Member, jobs_of, over
from perfscope.analyzers.ranks.local import Local
from perfscope.analyzers.ranks.matching import Group, Matched, Matching
from perfscope.analyzers.ranks.pairs import pair
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.ranks.table import CollectiveKind, Kind, kind_of, totals_of
from perfscope.model.finding import AbstainError
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

RANK_NOTE = "a rank is a process with all its devices: its side of a collective is that of its device which came last"

Key = tuple[str, str, int, int, Group]
"""Program, instruction, number of the execution, turn in it, group by places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSet:
    """A job of several processes, at least two of which were recorded."""

    ranks: RankSet
    """The processes side by side."""
    devices: DeviceSet
    """Their devices side by side, by place."""
    rank_at: Mapping[int, int]
    """Place -> the process that has the device there."""


def is_process(trace: Trace) -> bool:
    """Whether the trace is of a process whose programs have collectives with devices of other processes."""
    return bool(trace.fact(_reaches_out))


def _reaches_out(trace: Trace) -> bool:
    ordinals = trace.rows["hlo_ops"]["ordinal"]
    own = len(np.unique(ordinals[ordinals != MISSING]))
    ran = {int(number) for number in np.unique(trace.rows["hlo_ops"]["program_id"])} if own else set()
    return any(
        devices.world_of(one) > own
        for one in trace.fact(collectives)
        if one.module.program_id is None or one.module.program_id in ran
    )


def comparable_processes(traces: Sequence[Trace]) -> tuple[RankSet, ...]:
    """The jobs whose processes can be held against each other; empty where no trace is of one of several processes.

    ``AbstainError`` where there is one and nothing to hold it against.
    """
    mine = [trace for trace in traces if is_process(trace) and not len(trace.rows["collectives"])]
    if not mine:
        return ()
    sets = tuple(one.ranks for one in process_sets(traces) if one.ranks.matching.matched)
    if not sets:
        raise AbstainError(
            "one process alone does not show who waits for whom: record all of them"
            if len(mine) == 1
            else "which devices of the job the processes' devices are, or which process is which, is not recorded"
        )
    return sets


def process_sets(traces: Sequence[Trace]) -> tuple[ProcessSet, ...]:
    """The jobs that the traces are processes of, the one with most first; computed once."""
    return over(traces, _process_sets) if traces else ()


def _process_sets(traces: tuple[Trace, ...]) -> tuple[ProcessSet, ...]:
    found = [_process_set(job) for job in jobs_of(traces, is_process, _nothing) if len(job.members) > 1]
    return tuple(one for one in found if one is not None)


def _nothing(_: Trace) -> tuple[Local, ...]:
    """Collectives of a process are read with those of the others."""
    return ()


@dataclass(slots=True)
class _Gathered:
    """All runs of collectives on the devices of a job."""

    sides: dict[Key, dict[int, tuple[int, Local]]] = field(default_factory=lambda: defaultdict(dict))
    """Key -> place -> (rank, side)."""
    kinds: dict[tuple[str, str], tuple[str, int | None, str | None]] = field(default_factory=dict)
    """(Program, instruction) -> (operation, bytes, type)."""
    rank_at: dict[int, int] = field(default_factory=dict)
    """Place -> rank, of all that were recorded."""
    left: Left = field(default_factory=Left)
    worlds: set[int] = field(default_factory=set)


def _process_set(job: Job) -> ProcessSet | None:
    gathered = _Gathered()
    for member in job.members:
        for one in member.trace.fact(collectives):
            _gather(gathered, member, one)
    matched = list(_devices_matched(gathered))
    if not matched:
        return None
    traces = {place: job.members[job.ranks.index(rank)].trace for place, rank in gathered.rank_at.items()}
    return ProcessSet(
        ranks=_rank_set(job, gathered),
        devices=_device_set(gathered, matched, traces),
        rank_at=gathered.rank_at,
    )


def _gather(gathered: _Gathered, member: Member, one: Collective) -> None:
    """The runs of one collective of a process's program, with those of the others."""
    trace, left = member.trace, gathered.left
    rows = _rows(trace, one)
    if not len(rows):
        return
    if one.kind not in OPERATIONS:
        left.between_two += len(rows)
        return
    ops, world = trace.rows["hlo_ops"], devices.world_of(one)
    ran = {trace.text(code) for code in np.unique(ops["name"][rows]).tolist()}
    if one.done.name != one.start.name and one.done.name in ran:
        left.pairs += len(rows)
        return
    listed = devices.listed_groups(one) if world <= MAX_GROUP_IDS else None
    if listed is None and world <= MAX_GROUP_IDS and devices.is_whole(one):
        listed = (tuple(range(world)),)
    group_at = {place: group for group in listed or () for place in group if len(group) > 1}
    gathered.worlds.add(world)
    for found in devices.by_device(trace, rows).values():
        exact = len(found) == devices.expected_rows(trace, one, found)
        name = (one.module.name, one.start.name)
        size = one.bytes if one.kind != "ragged-all-to-all" and (exact or not one.runs.exact) else None
        told = (OPERATIONS[one.kind], size, devices.dtype_of(one))
        if gathered.kinds.setdefault(name, told) != told:
            gathered.kinds[name] = (told[0], None, None)
        for (run, turn), row in found.items():
            place = int(ops["place"][row])
            group = group_at.get(place)
            if group is None:
                left.groups += 1
            elif run == MISSING:
                left.unnumbered += 1
            else:
                gathered.rank_at[place] = member.rank
                side = devices.side_of(trace, row, group, OPERATIONS[one.kind])
                gathered.sides[*name, run, turn, group][place] = (member.rank, side)


def _rows(trace: Trace, one: Collective) -> Int64:
    """Rows of ``hlo_ops`` of a collective on the devices, its done included."""
    ops = trace.rows["hlo_ops"]
    rows = rows_of(trace, one.module, dict.fromkeys((one.start.name, one.done.name)))
    return np.asarray(rows[~ops["encloses"][rows] & (ops["ordinal"][rows] != MISSING)], np.int64)


def _complete(gathered: _Gathered) -> Iterator[tuple[int, Key, Mapping[int, tuple[int, Local]]]]:
    """(Number, key, sides) of the runs that all recorded devices of their group show, by start."""
    held = [(key, sides) for key, sides in gathered.sides.items()]
    held.sort(key=lambda one: min(side.start_ns for _, side in one[1].values()))
    for number, (key, sides) in enumerate(held):
        if len(sides) > 1 and len(sides) == sum(place in gathered.rank_at for place in key[4]):
            yield number, key, sides


def _devices_matched(gathered: _Gathered) -> Iterator[tuple[Kind, Matched]]:
    """The collectives by devices."""
    whole = 0
    for number, key, placed in _complete(gathered):
        operation, size, dtype = gathered.kinds[key[:2]]
        sides = {place: side for place, (_, side) in sorted(placed.items())}
        one = _matched(operation, key[4], number, sides)
        whole += len(sides)
        yield (operation, key[4], size, dtype, sides[one.last].algorithm, sides[one.last].protocol), one
    gathered.left.alone += sum(map(len, gathered.sides.values())) - whole


def _matched(operation: str, group: Group, number: int, sides: dict[int, Local]) -> Matched:
    last = min(sorted(sides), key=lambda who: sides[who].duration_ns)
    return Matched(
        operation=operation,
        group=group,
        named=True,
        index=number,
        sides=sides,
        core_ns=sides[last].duration_ns,
        last=last,
    )


def _device_set(gathered: _Gathered, matched: Sequence[tuple[Kind, Matched]], traces: Mapping[int, Trace]) -> DeviceSet:
    by_kind: dict[Kind, list[Matched]] = defaultdict(list)
    for kind, one in matched:
        by_kind[kind].append(one)
    kinds: list[CollectiveKind] = [kind_of(kind, found, None, traces, known=True) for kind, found in by_kind.items()]
    kinds.sort(key=lambda kind: -sum(kind.duration_ns.values()))
    places = tuple(sorted({place for _, one in matched for place in one.sides}))
    return DeviceSet(
        devices=places,
        world_size=next(iter(gathered.worlds)) if len(gathered.worlds) == 1 else None,
        kinds=tuple(kinds),
        totals=totals_of([one for _, one in matched], places, kinds),
        collectives=tuple(one for _, one in matched),
        unmatched=gathered.left.total(),
        notes=(
            f"devices of {len(set(gathered.rank_at.values())):,} processes, by their place in the program's groups",
            *devices.notes_of(gathered.left, guessed=False),
        ),
    )


def _rank_set(job: Job, gathered: _Gathered) -> RankSet:
    """The collectives that cross processes, a side each process."""
    matched, within = [], 0
    for number, key, placed in _complete(gathered):
        last: dict[int, Local] = {}
        for rank, side in placed.values():
            if rank not in last or side.duration_ns < last[rank].duration_ns:
                last[rank] = side
        if len(last) < 2:
            within += 1
            continue
        group = tuple(sorted(last))
        sides = {rank: replace(last[rank], ranks=group, size=len(group), sequence=number) for rank in group}
        matched.append(_matched(gathered.kinds[key[:2]][0], group, number, sides))
    members = tuple(
        replace(member, collectives=tuple(one.sides[member.rank] for one in matched if member.rank in one.sides))
        for member in job.members
    )
    told = replace(job, members=members, notes=(*job.notes, RANK_NOTE))
    clocks = align(matched, told.ranks)
    return RankSet(
        job=told,
        matching=Matching(
            matched=tuple(matched),
            alone=within,
            disagreeing=0,
            point_to_point=0,
            notes=(f"{within:,} collectives are between devices of one process",) if within else (),
        ),
        clocks=clocks,
        groups=groups_of(told, matched),
        pairing=pair(told, clocks),
    )
