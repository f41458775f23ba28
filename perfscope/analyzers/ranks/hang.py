"""Who keeps a hung job hanging, from the flight recorders of its ranks.

Every collective that had not ended is held against the other members of its group:

* A member that never enqueued it keeps the others waiting. If it is itself waiting, somewhere else, for another
  rank, it is held up; if it waits for nobody, it is a cause.
* A member that has not ended a collective which another member has ended is stuck in it: all had arrived, or it
  could not have ended anywhere. Its device or its host stopped. It is a cause, whatever it waits for later.
* Sends and receives wait for their other end, if that has not enqueued it.

What is left is a ring of ranks that wait for each other, or a collective that all have begun and none has ended.
Members without a dump may have died or their files may not have been collected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfscope.model.flight_recorder import FlightRecord, RecordedCall

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Operations that no member can end before all have begun. A root, or who only sends to it, may be done sooner."""

SAME_SIZE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Operations whose input has the same size on all members."""

GroupKey = tuple[str, tuple[int, ...]]
"""Name and members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A rank waits for another one at a collective."""

    rank: int
    for_rank: int
    group: GroupKey
    call: RecordedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A rank has not ended a collective that others have: the first of them."""

    rank: int
    group: GroupKey
    call: RecordedCall
    ended_by: tuple[int, ...]
    behind: int
    """Collectives of that group which others have ended since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Members of a group called different things as the same collective."""

    group: GroupKey
    sequence: int
    sides: Mapping[int, RecordedCall]
    """By rank."""
    what: str
    """``operation`` or ``size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What the dumps of a job say together."""

    pending: int
    """Ranks with collectives that had not ended."""
    stuck: tuple[Stuck, ...]
    absent: tuple[tuple[int, tuple[Waiting, ...]], ...]
    """(rank, who waits for it) of ranks that never came and wait for nobody, the most waited for first."""
    undumped: tuple[tuple[int, tuple[Waiting, ...]], ...]
    """The same of ranks without a dump, where no other rank is a cause."""
    ring: tuple[Waiting, ...]
    """Ranks that wait for each other, where nobody else is a cause."""
    unending: tuple[tuple[GroupKey, RecordedCall], ...]
    """Collectives that all members have begun and none has ended, where nobody waits for a rank."""
    mismatches: tuple[Mismatch, ...]


def hang_of(records: Mapping[int, FlightRecord]) -> Hang:
    """The causes of a hang; nothing in any field if nothing was pending. ``records``: by rank."""
    calls = _by_group(records)
    stuck = _stuck(records, calls)
    waiting = list(_waiting(records, calls))
    pending = sum(1 for record in records.values() if any(call.pending for call in record.calls))
    held_up = {waiting.rank for waiting in waiting}
    by_cause: dict[int, list[Waiting]] = defaultdict(list)
    for wait in waiting:
        by_cause[wait.for_rank].append(wait)
    still = {stuck.rank for stuck in stuck}
    absent = {rank: tuple(waits) for rank, waits in by_cause.items() if rank not in held_up | still}
    known = {rank: waits for rank, waits in absent.items() if rank in records}
    undumped = {rank: waits for rank, waits in absent.items() if rank not in records}
    nobody = not stuck and not known
    return Hang(
        pending=pending,
        stuck=tuple(sorted(stuck, key=lambda stuck: stuck.rank)),
        absent=_most_waited(known),
        undumped=_most_waited(undumped) if nobody else (),
        ring=tuple(_ring(waiting)) if nobody and not undumped else (),
        unending=tuple(_unending(records, calls)) if nobody and not waiting else (),
        mismatches=tuple(_mismatches(calls)),
    )


Calls = dict[GroupKey, dict[int, list[RecordedCall]]]


def _by_group(records: Mapping[int, FlightRecord]) -> Calls:
    """Group -> rank -> its collectives there; every member that has a dump has a list."""
    calls: Calls = {}
    for rank, record in records.items():
        for group in record.groups:
            if group.ranks:
                calls.setdefault((group.name, group.ranks), {}).setdefault(rank, [])
        for call in record.calls:
            recorded_group = record.group(call.group)
            if recorded_group is not None and recorded_group.ranks:
                calls[recorded_group.name, recorded_group.ranks][rank].append(call)
    return calls


def _enqueued(record: FlightRecord, group: str, calls: Sequence[RecordedCall]) -> int:
    """Number of the last collective the rank has enqueued in a group; -1 if none is known."""
    said = record.progress[group].enqueued if group in record.progress else -1
    return max([said, *(call.sequence for call in calls if call.peer is None)])


def _ended(record: FlightRecord, group: str, calls: Sequence[RecordedCall]) -> int:
    """Number of the last collective the rank has ended in a group; -1 if none is known."""
    said = record.progress[group].completed if group in record.progress else -1
    return max([said, *(call.sequence for call in calls if call.peer is None and not call.pending)])


def _stuck(records: Mapping[int, FlightRecord], calls: Calls) -> list[Stuck]:
    result: dict[int, Stuck] = {}
    for group, by_rank in calls.items():
        ended = {rank: _ended(records[rank], group[0], mine) for rank, mine in by_rank.items()}
        for rank, mine in by_rank.items():
            recorded_calls = [
                call for call in mine if call.pending and call.peer is None and call.operation in ENDS_TOGETHER
            ]
            passed = [call for call in recorded_calls if any(end >= call.sequence for end in ended.values())]
            if not passed:
                continue
            first = min(passed, key=lambda call: call.sequence)
            others = tuple(sorted(other for other, end in ended.items() if end >= first.sequence))
            stuck = Stuck(
                rank=rank, group=group, call=first, ended_by=others,
                behind=max(ended.values()) - first.sequence + 1,
            )  # fmt: skip
            if rank not in result or _earlier(stuck, result[rank]):
                result[rank] = stuck
    return list(result.values())


def _earlier(stuck: Stuck, other: Stuck) -> bool:
    """By when the host enqueued it; the one with more members where that is not recorded."""
    if stuck.call.created_ns is not None and other.call.created_ns is not None:
        return stuck.call.created_ns < other.call.created_ns
    return len(stuck.group[1]) > len(other.group[1])


def _waiting(records: Mapping[int, FlightRecord], calls: Calls) -> Iterator[Waiting]:
    for group, by_rank in calls.items():
        name, members = group
        reached = {rank: _enqueued(records[rank], name, mine) for rank, mine in by_rank.items()}
        for rank, mine in by_rank.items():
            for call in mine:
                if not call.pending:
                    continue
                for other in members:
                    if other == rank:
                        continue
                    if call.peer is None:
                        came = other in reached and reached[other] >= call.sequence
                    else:
                        came = not _is_peer(call, members, rank, other) or _has_end(call, by_rank.get(other, ()))
                    if not came:
                        yield Waiting(rank=rank, for_rank=other, group=group, call=call)


def _is_peer(call: RecordedCall, members: Sequence[int], rank: int, other: int) -> bool:
    """Whether ``other`` is the other end of a rank's send or receive."""
    sender, receiver = call.peer or (-1, -1)
    end = receiver if call.operation == "send" else sender
    return 0 <= end < len(members) and members[end] == other != rank


def _has_end(call: RecordedCall, theirs: Sequence[RecordedCall]) -> bool:
    """Whether the other end of a send or receive is enqueued too, and has not ended either."""
    return any(
        candidate.peer == call.peer and candidate.operation != call.operation and candidate.pending
        for candidate in theirs
    )


def _most_waited(found: Mapping[int, tuple[Waiting, ...]]) -> tuple[tuple[int, tuple[Waiting, ...]], ...]:
    return tuple(sorted(found.items(), key=lambda item: (-len({waiting.rank for waiting in item[1]}), item[0])))


def _ring(waiting: Sequence[Waiting]) -> Iterator[Waiting]:
    """Waits of ranks that, followed from rank to rank, come back to themselves."""
    after: dict[int, set[int]] = defaultdict(set)
    for wait in waiting:
        after[wait.rank].add(wait.for_rank)
    seen = set()
    for wait in waiting:
        if (wait.rank, wait.for_rank) not in seen and _leads(after, wait.for_rank, wait.rank):
            seen.add((wait.rank, wait.for_rank))
            yield wait


def _leads(after: Mapping[int, set[int]], start: int, goal: int) -> bool:
    reached, front = {start}, [start]
    while front:
        if goal in reached:
            return True
        front = [rank for reached_rank in front for rank in after.get(reached_rank, ()) if rank not in reached]
        reached.update(front)
    return goal in reached


def _unending(records: Mapping[int, FlightRecord], calls: Calls) -> Iterator[tuple[GroupKey, RecordedCall]]:
    """The first pending collective of each group that has one."""
    for group, by_rank in calls.items():
        recorded_calls = [call for mine in by_rank.values() for call in mine if call.pending]
        if recorded_calls and all(rank in records for rank in group[1]):
            yield group, min(recorded_calls, key=lambda call: call.sequence)


def _mismatches(calls: Calls) -> Iterator[Mismatch]:
    """The first collective of each group that its members call differently."""
    for group, by_rank in calls.items():
        sides: dict[int, dict[int, RecordedCall]] = defaultdict(dict)
        for rank, mine in by_rank.items():
            for call in mine:
                if call.peer is None:
                    sides[call.sequence][rank] = call
        for sequence, found in sorted(sides.items()):
            operations = {call.operation for call in found.values()}
            sizes = {(call.input_sizes, call.dtypes) for call in found.values()}
            differ = "operation" if len(operations) > 1 else "size"
            if len(operations) > 1 or (len(sizes) > 1 and operations <= SAME_SIZE):
                yield Mismatch(group=group, sequence=sequence, sides=found, what=differ)
                break
