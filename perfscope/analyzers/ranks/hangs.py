"""Dumps of flight recorders compared: ranks that never came to a collective, are stuck in one, or wait in a ring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from perfscope.model.documents.flight_recorder import FlightRecord, RecordedCall

    Calls = dict["GroupKey", dict[int, list[RecordedCall]]]

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Operations that no member can end before all have begun. A root, or a member that only sends to it, may end earlier.
"""

SAME_SIZE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Operations whose input has the same size on all members."""

GroupKey = tuple[str, tuple[int, ...]]
"""Name and members."""


class Waiting(Struct, frozen=True, kw_only=True):
    """A wait of one rank for another at a collective."""

    rank: int
    for_rank: int
    group: GroupKey
    call: RecordedCall


class Stuck(Struct, frozen=True, kw_only=True):
    """A rank that has not ended a collective which others have ended: the first such collective."""

    rank: int
    group: GroupKey
    call: RecordedCall
    ended_by: tuple[int, ...]
    behind: int
    """Number of later collectives of that group which others have ended."""


class Mismatch(Struct, frozen=True, kw_only=True):
    """Different calls by members of a group as the same collective."""

    group: GroupKey
    sequence: int
    sides: Mapping[int, RecordedCall]
    """Call of each rank."""
    what: str
    """``operation`` or ``size``."""


class Hang(Struct, frozen=True, kw_only=True):
    """Combined result of a job's dumps."""

    pending: int
    """Number of ranks with collectives that had not ended."""
    stuck: tuple[Stuck, ...]
    absent: tuple[tuple[int, tuple[Waiting, ...]], ...]
    """(rank, ranks waiting for it) for ranks that never came and wait for no other rank, most waited for first."""
    undumped: tuple[tuple[int, tuple[Waiting, ...]], ...]
    """The same for ranks without a dump, if no other rank is a cause."""
    ring: tuple[Waiting, ...]
    """Ranks that wait for each other, if no other rank is a cause."""
    unending: tuple[tuple[GroupKey, RecordedCall], ...]
    """Collectives that all members have begun and none has ended, if no rank waits for another."""
    mismatches: tuple[Mismatch, ...]


def hang_of(records: Mapping[int, FlightRecord]) -> Hang:
    """Return the causes of a hang; all fields are empty if nothing was pending. ``records``: by rank."""
    calls = _by_group(records)
    stuck = _stuck_ranks(records, calls)
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
    unexplained = not stuck and not known
    return Hang(
        pending=pending,
        stuck=tuple(sorted(stuck, key=lambda stuck: stuck.rank)),
        absent=_most_waited(known),
        undumped=_most_waited(undumped) if unexplained else (),
        ring=tuple(_waiting_ring(waiting)) if unexplained and not undumped else (),
        unending=tuple(_without_end(records, calls)) if unexplained and not waiting else (),
        mismatches=tuple(_mismatches(calls)),
    )


def _by_group(records: Mapping[int, FlightRecord]) -> Calls:
    """Map group -> rank -> its collectives in it; every member with a dump has a list."""
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
    """Return the number of the last collective that the rank enqueued in a group; -1 if unknown."""
    recorded = record.progress[group].enqueued if group in record.progress else -1
    return max([recorded, *(call.sequence for call in calls if call.peer is None)])


def _ended(record: FlightRecord, group: str, calls: Sequence[RecordedCall]) -> int:
    """Return the number of the last collective that the rank ended in a group; -1 if unknown."""
    recorded = record.progress[group].completed if group in record.progress else -1
    return max([recorded, *(call.sequence for call in calls if call.peer is None and not call.pending)])


def _stuck_ranks(records: Mapping[int, FlightRecord], calls: Calls) -> list[Stuck]:
    result: dict[int, Stuck] = {}
    for group, by_rank in calls.items():
        ended = {rank: _ended(records[rank], group[0], mine) for rank, mine in by_rank.items()}
        last = max(ended.values(), default=-1)
        ended_by: dict[int, tuple[int, ...]] = {}
        for rank, mine in by_rank.items():
            recorded_calls = [
                call for call in mine if call.pending and call.peer is None and call.operation in ENDS_TOGETHER
            ]
            passed = [call for call in recorded_calls if last >= call.sequence]
            if not passed:
                continue
            first = min(passed, key=lambda call: call.sequence)
            if first.sequence not in ended_by:
                ended_by[first.sequence] = tuple(sorted(rank for rank, end in ended.items() if end >= first.sequence))
            stuck = Stuck(
                rank=rank, group=group, call=first, ended_by=ended_by[first.sequence], behind=last - first.sequence + 1
            )
            if rank not in result or _earlier(stuck, result[rank]):
                result[rank] = stuck
    return list(result.values())


def _earlier(stuck: Stuck, other: Stuck) -> bool:
    """Whether ``stuck`` was enqueued first by the host; if unknown, whether its group is larger."""
    if stuck.call.created_ns is not None and other.call.created_ns is not None:
        return stuck.call.created_ns < other.call.created_ns
    return len(stuck.group[1]) > len(other.group[1])


def _waiting(records: Mapping[int, FlightRecord], calls: Calls) -> Iterator[Waiting]:
    for group, by_rank in calls.items():
        name, members = group
        reached = {rank: _enqueued(records[rank], name, mine) for rank, mine in by_rank.items()}
        not_come: dict[int, list[int]] = {}
        ends = {rank: _pending_ends(mine) for rank, mine in by_rank.items()}
        for rank, mine in by_rank.items():
            for call in mine:
                if not call.pending:
                    continue
                if call.peer is not None:
                    other = _peer_of(call, members, rank)
                    absent = [] if other is None or _has_end(call, ends.get(other, {})) else [other]
                else:
                    if call.sequence not in not_come:
                        not_come[call.sequence] = [
                            other for other in members if other not in reached or reached[other] < call.sequence
                        ]
                    absent = not_come[call.sequence]
                yield from (
                    Waiting(rank=rank, for_rank=other, group=group, call=call) for other in absent if other != rank
                )


def _peer_of(call: RecordedCall, members: Sequence[int], rank: int) -> int | None:
    """Return the other end of a rank's send or receive; ``None`` if it is not another member."""
    sender, receiver = call.peer or (-1, -1)
    end = receiver if call.operation == "send" else sender
    return members[end] if 0 <= end < len(members) and members[end] != rank else None


def _pending_ends(mine: Sequence[RecordedCall]) -> dict[tuple[int, int], set[str]]:
    """Return the pending sends and receives: operations by (sender, receiver)."""
    ends: dict[tuple[int, int], set[str]] = defaultdict(set)
    for call in mine:
        if call.peer is not None and call.pending:
            ends[call.peer].add(call.operation)
    return ends


def _has_end(call: RecordedCall, theirs: Mapping[tuple[int, int], set[str]]) -> bool:
    """Whether the other end of a send or receive is enqueued and pending too."""
    return call.peer is not None and bool(theirs.get(call.peer, set()) - {call.operation})


def _most_waited(found: Mapping[int, tuple[Waiting, ...]]) -> tuple[tuple[int, tuple[Waiting, ...]], ...]:
    return tuple(sorted(found.items(), key=lambda item: (-len({waiting.rank for waiting in item[1]}), item[0])))


def _waiting_ring(waiting: Sequence[Waiting]) -> Iterator[Waiting]:
    """Yield the waits of ranks that form a cycle, one per pair of ranks."""
    after: dict[int, dict[int, None]] = defaultdict(dict)
    for wait in waiting:
        after[wait.rank][wait.for_rank] = None
    circle = _circles(after)
    seen = set()
    for wait in waiting:
        pair = wait.rank, wait.for_rank
        if pair not in seen and circle[wait.rank] == circle[wait.for_rank]:
            seen.add(pair)
            yield wait


def _circles(after: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """Map each rank to a representative of all ranks that wait for each other (strongly connected parts, by Tarjan)."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    circle: dict[int, int] = {}
    open_ranks: list[int] = []
    for start in after:
        if start in number:
            continue
        number[start] = lowest[start] = len(number)
        open_ranks.append(start)
        path = [(start, iter(after[start]))]
        while path:
            rank, others = path[-1]
            other = next((other for other in others if other not in circle), None)
            if other is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[rank])
                while lowest[rank] == number[rank] and rank not in circle:
                    circle[open_ranks.pop()] = rank
            elif other in number:
                lowest[rank] = min(lowest[rank], number[other])
            else:
                number[other] = lowest[other] = len(number)
                open_ranks.append(other)
                path.append((other, iter(after.get(other, ()))))
    return circle


def _without_end(records: Mapping[int, FlightRecord], calls: Calls) -> Iterator[tuple[GroupKey, RecordedCall]]:
    """Yield the first pending collective of each group."""
    for group, by_rank in calls.items():
        recorded_calls = [call for mine in by_rank.values() for call in mine if call.pending]
        if recorded_calls and all(rank in records for rank in group[1]):
            yield group, min(recorded_calls, key=lambda call: call.sequence)


def _mismatches(calls: Calls) -> Iterator[Mismatch]:
    """Yield the first collective of each group that its members call differently."""
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
