"""Collectives of compiled XLA programs on the devices of one recording: the devices stand for ranks.

What a profile calls a collective is an instruction; its program says the operation, the replica groups and the bytes.
The k-th time it ran in one execution of the program is the same collective on all devices of a group. As with ranks,
the shortest duration of them is the collective itself, the rest of each other one is waiting.

On a GPU the time is that of the kernel, which the start launches; the done launches nothing. Where start and done are
both recorded as work (TPU), the one is over at once and the other is what was left to wait: neither is the time of the
collective, and such pairs are left out and counted. Collectives of XLA's CPU backend are meetings of threads, and
``programs.rendezvous`` looks at them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfscope.analyzers.hlo.collectives import Collective, collectives
from perfscope.analyzers.hlo.cost.collectives import group_size
from perfscope.analyzers.hlo.executions import executions_of, rows_of
from perfscope.analyzers.hlo.module import MAX_GROUP_IDS, Shape
from perfscope.analyzers.ranks.job import Job, Local, Member, jobs_of, over
from perfscope.analyzers.ranks.matching import Group, Matched, Matching, align, pair
from perfscope.analyzers.ranks.sets import CollectiveKind, Kind, RankSet, RankTotal, groups_of, kind_of, totals_of
from perfscope.model.collectives import algorithm_of
from perfscope.model.finding import AbstainError
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

OPERATIONS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "collective-broadcast": "broadcast",
    "ragged-all-to-all": "ragged_all_to_all",
    "reduce-scatter": "reduce_scatter",
}
"""XLA's names -> those of the table. A permute is between two devices: nobody else is there to hold it against."""

Occurrence = tuple[int, int]
"""Execution of the program, and which time in it the instruction ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSet:
    """The collectives of one recording by kind, the longest first, and what each device spent in them."""

    devices: tuple[int, ...]
    """By number; those that took part in a matched collective."""
    world_size: int | None
    """Devices that the programs were compiled for; None where they differ."""
    kinds: tuple[CollectiveKind, ...]
    totals: tuple[RankTotal, ...]
    collectives: tuple[Matched, ...]
    """The matched ones, by their first start; sides are by device number."""
    unmatched: int
    """Runs of collectives on single devices that were not put together."""
    notes: tuple[str, ...]

    @property
    def matched(self) -> int:
        """How many collectives were put together."""
        return len(self.collectives)

    def label(self) -> str:
        """``devices 0-3 of 8``."""
        listed = list(self.devices)
        dense = listed == list(range(listed[0], listed[-1] + 1))
        shown = f"{listed[0]}-{listed[-1]}" if dense else ", ".join(map(str, listed))
        return f"devices {shown}" + ("" if self.world_size is None else f" of {self.world_size}")


@dataclass(slots=True)
class Left:
    """What was not put together, in runs on single devices."""

    pairs: int = 0
    between_two: int = 0
    groups: int = 0
    alone: int = 0
    unnumbered: int = 0

    def total(self) -> int:
        """All of them."""
        return self.pairs + self.between_two + self.groups + self.alone + self.unnumbered


def device_set(trace: Trace) -> DeviceSet | None:
    """The collectives that several devices of a recording ran together; ``None`` where there are none."""
    ops = trace.rows["hlo_ops"]
    if not trace.hlo or len(np.unique(ops["ordinal"][ops["kernel"] != MISSING])) < 2:
        return None
    kinds: dict[Kind, list[Matched]] = defaultdict(list)
    left, guessed, worlds = Left(), False, set()
    for one in trace.fact(collectives):
        rows = _kernel_rows(trace, one)
        if not len(rows):
            continue
        worlds.add(world_of(one))
        device_at = _device_at(trace, rows)
        groups = _groups(trace, one, rows, device_at, left)
        guessed |= len(groups) > 1 and device_at is None
        for kind, matched in _matched(trace, one, rows, groups, left):
            kinds[kind].append(matched)
    if not kinds:
        return None
    matched_all = sorted((one for found in kinds.values() for one in found), key=first_start)
    devices = tuple(sorted({device for one in matched_all for device in one.sides}))
    traces = dict.fromkeys(devices, trace)
    table = sorted(
        (kind_of(kind, found, None, traces, known=True) for kind, found in kinds.items()),
        key=lambda kind: -sum(kind.duration_ns.values()),
    )
    return DeviceSet(
        devices=devices,
        world_size=worlds.pop() if len(worlds) == 1 else None,
        kinds=tuple(table),
        totals=totals_of(matched_all, devices, table),
        collectives=tuple(matched_all),
        unmatched=left.total(),
        notes=tuple(notes_of(left, guessed=guessed)),
    )


def first_start(one: Matched) -> int:
    """When the first of its sides began, in ns."""
    return min(side.start_ns for side in one.sides.values())


def world_of(one: Collective) -> int:
    """Devices that its program was compiled for."""
    return one.module.num_partitions * one.module.num_replicas


def _kernel_rows(trace: Trace, one: Collective) -> Int64:
    """Rows of ``hlo_ops`` of a collective on devices, its done included."""
    ops = trace.rows["hlo_ops"]
    rows = rows_of(trace, one.module, dict.fromkeys((one.start.name, one.done.name)))
    chosen = (ops["kernel"][rows] != MISSING) & ~ops["encloses"][rows] & (ops["ordinal"][rows] != MISSING)
    return np.asarray(rows[chosen], np.int64)


def _device_at(trace: Trace, rows: Int64) -> dict[int, int] | None:
    """Place in the program's groups -> number of the device there; ``None`` where it is not recorded of all rows."""
    ops = trace.rows["hlo_ops"]
    pairs = np.unique(np.stack([ops["place"][rows], ops["ordinal"][rows]]), axis=1)
    places, numbers = pairs.tolist()
    if MISSING in places or len(set(places)) < len(places) or len(set(numbers)) < len(numbers):
        return None
    return dict(zip(places, numbers, strict=True))


def _groups(
    trace: Trace, one: Collective, rows: Int64, device_at: Mapping[int, int] | None, left: Left
) -> tuple[Group, ...]:
    """Devices of each group, by number; nothing where they are not known, which is counted.

    Groups name places (partitions or replicas). Where ``device_at`` does not say which device is at which place, the
    n-th is taken as the n-th device; where it does, groups with a place that is not in the recording are left out.
    """
    ops = trace.rows["hlo_ops"]
    if one.kind not in OPERATIONS:
        left.between_two += len(rows)
        return ()
    ran = {trace.text(code) for code in np.unique(ops["name"][rows]).tolist()}
    if one.done.name != one.start.name and one.done.name in ran:
        left.pairs += len(rows)
        return ()
    world, size = world_of(one), group_size(one.module, one.op)
    if world > MAX_GROUP_IDS:  # a damaged file may claim any number
        left.groups += len(rows)
        return ()
    here = np.unique(ops["ordinal"][rows]).tolist()
    members = tuple(range(world)) if max(here) < world else tuple(here)
    if len(members) == world == size:
        return (members,)
    listed = listed_groups(one)
    if listed is None or (device_at is None and len(members) != world):
        left.groups += len(rows)
        return ()
    at = dict(enumerate(members)) if device_at is None else device_at
    known = [group for group in listed if len(group) > 1 and all(place in at for place in group)]
    found = tuple(tuple(sorted(at[place] for place in group)) for group in known)
    left.groups += int((~np.isin(ops["ordinal"][rows], [device for group in found for device in group])).sum())
    return found


def listed_groups(one: Collective) -> tuple[Group, ...] | None:
    """The groups of the program by place (replica x partitions + partition); ``None`` where it names none or others."""
    listed, world = one.op.replica_groups, world_of(one)
    crossed = min(one.module.num_partitions, one.module.num_replicas) > 1
    flat = not crossed or one.op.attributes.get("use_global_device_ids") == "true"
    if listed is None or not flat or any(not 0 <= place < world for group in listed for place in group):
        return None
    return tuple(tuple(sorted(group)) for group in listed)


def is_whole(one: Collective) -> bool:
    """Whether all devices of the program are one group."""
    return group_size(one.module, one.op) == world_of(one)


def _matched(
    trace: Trace, one: Collective, rows: Int64, groups: tuple[Group, ...], left: Left
) -> Iterator[tuple[Kind, Matched]]:
    """The runs of one collective, put together over the devices of each group."""
    ran = by_device(trace, rows)
    once = all(len(found) == expected_rows(trace, one, found) for found in ran.values())
    size = one.bytes if one.kind != "ragged-all-to-all" and (once or not one.runs.exact) else None
    dtype = dtype_of(one)
    for group in groups:
        held = {device: ran[device] for device in group if device in ran}
        for at in sorted({at for found in held.values() for at in found}):
            rows_at = {device: found[at] for device, found in held.items() if at in found}
            # a device that is in the recording and lacks this run: the capture began or ended between them
            if len(rows_at) < 2 or len(rows_at) < len(held):
                left.alone += len(rows_at)
                continue
            sides = {device: side_of(trace, row, group, OPERATIONS[one.kind]) for device, row in rows_at.items()}
            last = min(sorted(sides), key=lambda device: sides[device].duration_ns)
            matched = Matched(
                operation=OPERATIONS[one.kind],
                group=group,
                named=True,
                index=at[0],
                sides=sides,
                core_ns=sides[last].duration_ns,
                last=last,
            )
            yield (matched.operation, group, size, dtype, sides[last].algorithm, sides[last].protocol), matched


def expected_rows(trace: Trace, one: Collective, found: Mapping[Occurrence, int]) -> float:
    """Rows on a device of a collective whose every run is one; more of them are parts, whose bytes are not known."""
    numbers = {run for run, _ in found}
    if MISSING not in numbers:
        return len(numbers) * one.runs.times
    ran = executions_of(trace, one.module)
    return 0 if ran is None else ran.rounds * one.runs.times


def by_device(trace: Trace, rows: Int64) -> dict[int, dict[Occurrence, int]]:
    """Device -> occurrence -> row of ``hlo_ops``. Without numbers of executions all count as one execution."""
    ops = trace.rows["hlo_ops"]
    found: dict[int, dict[Occurrence, int]] = defaultdict(dict)
    turns: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows[np.argsort(ops["start_ns"][rows], kind="stable")].tolist():
        device, run = int(ops["ordinal"][row]), int(ops["run_id"][row])
        found[device][run, turns[device, run]] = row
        turns[device, run] += 1
    return found


def side_of(trace: Trace, row: int, group: Group, operation: str) -> Local:
    """The side of the device of a row of ``hlo_ops``: its kernel, or the op of the CPU backend."""
    ops, kernels = trace.rows["hlo_ops"], trace.rows["kernels"]
    kernel = int(ops["kernel"][row])
    named = "" if kernel == MISSING else trace.text(int(kernels["name"][kernel]))
    algorithm, protocol = algorithm_of(named)
    return Local(
        start_ns=int(ops["start_ns"][row]),
        end_ns=int(ops["end_ns"][row]),
        operation=operation,
        group=None,
        description=None,
        ranks=group,
        lane=-1,
        size=len(group),
        sequence=None,
        elements=None,
        received=None,
        dtype=None,
        dims=None,
        algorithm=algorithm,
        protocol=protocol,
        launched=True,
        kernel=kernel,
        slice=int(ops["slice"][row]),
    )


def dtype_of(one: Collective) -> str | None:
    """The type of all its tensors; ``None`` where they differ."""
    found = {shape.dtype for name in one.start.operands for shape in _leaves(one.computation.by_name[name].shape)}
    return found.pop() if len(found) == 1 else None


def _leaves(shape: Shape) -> Iterator[Shape]:
    if shape.dtype != "tuple":
        yield shape
    for part in shape.parts:
        yield from _leaves(part)


def notes_of(left: Left, *, guessed: bool) -> Iterator[str]:
    """What was left out, a sentence each. ``guessed``: which device is which was not recorded."""
    counts: Mapping[str, int] = {
        "of start and done: what is recorded of them is not the time of the collective": left.pairs,
        "between two devices (permute): they are not matched": left.between_two,
        "whose groups cannot be told by devices": left.groups,
        "not on all recorded devices of their group": left.alone,
        "of executions without a number": left.unnumbered,
    }
    for what, count in counts.items():
        if count:
            yield f"left out: {count:,} runs of collectives on a device, {what}"
    if guessed:
        yield "which device is which partition is not recorded: the n-th is taken as the n-th"


# Compiled XLA programs that run on the devices of several processes: the processes are ranks, all devices one set.
#
# The groups of a collective name places (replica x partitions + partition), and each recording says at which places
# its
# own devices are; processes give an execution of a program the same number. So a run of a collective is one and the
# same
# where program, instruction, execution, turn in it and group are: nothing is matched by order or by time.
#
# A process is as late to a collective as the last of its devices: the shortest of its devices' durations is its side.


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
        world_of(one) > own
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
    ops, world = trace.rows["hlo_ops"], world_of(one)
    ran = {trace.text(code) for code in np.unique(ops["name"][rows]).tolist()}
    if one.done.name != one.start.name and one.done.name in ran:
        left.pairs += len(rows)
        return
    listed = listed_groups(one) if world <= MAX_GROUP_IDS else None
    if listed is None and world <= MAX_GROUP_IDS and is_whole(one):
        listed = (tuple(range(world)),)
    group_at = {place: group for group in listed or () for place in group if len(group) > 1}
    gathered.worlds.add(world)
    for found in by_device(trace, rows).values():
        exact = len(found) == expected_rows(trace, one, found)
        name = (one.module.name, one.start.name)
        size = one.bytes if one.kind != "ragged-all-to-all" and (exact or not one.runs.exact) else None
        told = (OPERATIONS[one.kind], size, dtype_of(one))
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
                side = side_of(trace, row, group, OPERATIONS[one.kind])
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
        one = _matched_processes(operation, key[4], number, sides)
        whole += len(sides)
        yield (operation, key[4], size, dtype, sides[one.last].algorithm, sides[one.last].protocol), one
    gathered.left.alone += sum(map(len, gathered.sides.values())) - whole


def _matched_processes(operation: str, group: Group, number: int, sides: dict[int, Local]) -> Matched:
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
            *notes_of(gathered.left, guessed=False),
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
        matched.append(_matched_processes(gathered.kinds[key[:2]][0], group, number, sides))
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
