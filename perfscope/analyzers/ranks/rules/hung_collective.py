"""Ranks hang in a collective: which ranks hold up the others, in which collective, and which ranks never came.

Example:
    Before::

        if rank == 0:
            dist.all_reduce(metric)             # the other ranks never come

    After::

        dist.all_reduce(metric)
        if rank == 0:
            log(metric)

Why it costs:
    A collective ends when all its members have come. If one of them never does (it died, it waits for a lock, its
    device faulted, it took another branch), all others wait until the timeout of the process group (10 minutes by
    default) ends the job, and the work since the last checkpoint is lost.

How it is found:
    From the dumps of NCCL's flight recorder of all ranks, which torch.distributed writes at such a timeout. Every
    unfinished collective is compared, by its number, with the other members of its group. A rank is the cause if others
    wait for it and it waits for no rank; ranks that wait for it, also in another group, are not. A rank that has not
    ended a collective which other members have ended is stuck in it: its device or its host stopped. Without such a
    rank there may be a cycle of ranks that wait for each other, or a collective that all have begun and none ends.
    Members that call different operations, or other sizes, with the same number are found as well. The findings follow
    from the dumps alone and have no time.

    A dump lists the collectives that were unfinished when it was written: one taken while the job runs well shows ranks
    that are merely late. A member without a dump may be dead, or its file was not collected. The rule abstains with
    only one rank's dump, because it does not show which ranks never came.

Fix:
    Look at the named rank first: its log, `py-spy dump --pid`, `dmesg` (Xid errors), the device
    (`nvidia-smi -q -d ECC,ROW_REMAPPER`). If operations or sizes differ, ranks took different branches: an uneven
    last batch, `if rank == 0` around a collective, an exception that one rank swallowed::

        with model.join(): ...                     # DDP and uneven inputs
        torch.distributed.monitored_barrier(...)   # names the rank that does not come (gloo)

    To have dumps at the next hang: `TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1`, and
    `TORCH_NCCL_DEBUG_INFO_TEMP_FILE` on storage that outlives the machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct

from perfscope.analyzers.ranks.job import named_ranks
from perfscope.model.documents.flight_recorder import FlightRecord, RecordedCall
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Scope, Where
from perfscope.model.trace import Trace

MOST_NAMED = 8

Causes = Sequence[tuple[int, "tuple[Waiting, ...]"]]


def examined(trace: Trace) -> Scope:
    """Return an empty scope: a single rank has no finding."""
    return Scope(0, "calls in the dumps")


def compared(traces: Sequence[Trace]) -> Scope:
    """Count the calls in the dumps."""
    return Scope(
        sum(len(trace.flight_record.calls) for trace in traces if trace.flight_record is not None), "calls in the dumps"
    )


def check(trace: Trace) -> Iterable[Finding]:
    """Return nothing: a single dump does not show which rank is missing."""
    return ()


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each kind of cause: stuck ranks, ranks that never came, calls that do not agree."""
    dumped = [trace for trace in traces if trace.flight_record is not None]
    if not dumped:
        return
    numbered = [(trace.source.rank, trace.flight_record) for trace in dumped if trace.source.rank is not None]
    records = {rank: record for rank, record in numbered if record is not None}
    if len(records) < len(numbered):
        twice = Counter(rank for rank, _ in numbered).most_common(1)[0][0]
        raise AbstainError(f"several dumps are of rank {twice}, so it is unknown which dumps belong together")
    hang = hang_of(records)
    if hang.pending and not numbered:
        raise AbstainError("the names of the dumps lack their ranks (expected: nccl_trace_rank_3)")
    if hang.pending and len(records) == 1:
        raise AbstainError("a single rank's dump does not show which rank never came: collect the dumps of all ranks")
    yield from _findings(hang, records)


def _findings(hang: Hang, records: dict[int, FlightRecord]) -> Iterator[Finding]:
    if hang.stuck:
        yield _stuck(hang)
    if hang.absent:
        yield _absent(hang, hang.absent, records)
    if hang.undumped:
        yield _undumped(hang, hang.undumped, records)
    if hang.ring:
        yield _ring(hang.ring)
    for group, call in hang.unending[:1]:
        yield _hang(
            subject="a collective that all have begun does not end",
            title=f"all {len(group[1]):,} ranks of a group are in {call.operation} and none has ended it",
            detail=f"They are in {_numbered(group, call)}; {len(hang.unending):,} groups have collectives that had "
            "not ended.",
            call=call,
            ranks=sorted(group[1]),
            evidence=(
                {"group": group[0], "operation": call.operation, "number": call.sequence, "ranks": len(group[1])},
            ),
            advice="Look at the links: NCCL_DEBUG=INFO, ibstat, nvidia-smi nvlink -s. No rank is missing: kernels "
            "queued before it may hang, or the dump was written while the job ran well.",
        )
    yield from map(_mismatch, hang.mismatches)


def _hang(
    *,
    subject: str,
    title: str,
    detail: str,
    call: RecordedCall,
    ranks: Sequence[int],
    evidence: Iterable[Mapping[str, Cell]],
    advice: str,
) -> Finding:
    """Return a finding of one cause; ``call``: a collective affected by it."""
    return Finding(
        subject=subject,
        title=title,
        detail=detail,
        severity="high",
        basis="structural",
        where=Where(op=call.operation, file=call.file, line=call.line),
        ranks=tuple(ranks),
        evidence=tuple(evidence)[:MOST_ROWS],
        advice=advice,
    )


def _stuck(hang: Hang) -> Finding:
    first = hang.stuck[0]
    ranks = [stuck.rank for stuck in hang.stuck]
    return _hang(
        subject="ranks are stuck in a collective that others have ended",
        title=f"{named_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} stuck in {first.call.operation}: "
        f"{hang.pending:,} ranks hang",
        detail=f"Rank {first.rank} has not ended {_numbered(first.group, first.call)}, which "
        f"{named_ranks(first.ended_by)} "
        f"{'has' if len(first.ended_by) == 1 else 'have'} ended, and {first.behind - 1:,} more since.",
        call=first.call,
        ranks=ranks,
        evidence=(
            {
                "rank": stuck.rank,
                "stuck_in": stuck.call.label(),
                "number": stuck.call.sequence,
                "group": stuck.group[0],
                "group_ranks": len(stuck.group[1]),
                "state": stuck.call.state,
                "ended_by": ", ".join(map(str, stuck.ended_by[:MOST_NAMED])),
                "ended_since": stuck.behind - 1,
                "timeout_ns": stuck.call.timeout_ns,
                "code": _code(stuck.call),
            }
            for stuck in hang.stuck
        ),
        advice=f"Look at the device and the process of {named_ranks(ranks)}: dmesg (Xid errors), nvidia-smi -q -d ECC, "
        "py-spy dump --pid. All ranks had come to that collective, so the others are victims; take the machine out of "
        "the job if it happens there again.",
    )


def _absent(hang: Hang, causes: Causes, records: dict[int, FlightRecord]) -> Finding:
    ranks = [rank for rank, _ in causes]
    missed = _largest(causes[0][1])
    alike = [rank for rank, waits in causes if any(_same_call(wait, missed) for wait in waits)]
    return _hang(
        subject="ranks never came to a collective",
        title=f"{named_ranks(sorted(alike))} never came to {missed.call.operation}: {hang.pending:,} ranks hang",
        detail=f"They wait in {_numbered(missed.group, missed.call)}"
        + (f"; {named_ranks(sorted(set(ranks) - set(alike)))} never came to others" if set(ranks) - set(alike) else "")
        + f". {named_ranks(sorted(ranks)).capitalize()} wait{'s' if len(ranks) == 1 else ''} for no other rank.",
        call=missed.call,
        ranks=sorted(ranks),
        evidence=(_absent_row(rank, waits, records) for rank, waits in causes),
        advice=f"Look at what {named_ranks(sorted(ranks))} did on the host: py-spy dump --pid, and its log. It may be "
        "in the data loader, a lock, a checkpoint, an exception that was swallowed, or a branch that only this rank "
        "took; its device waits for nothing.",
    )


def _undumped(hang: Hang, causes: Causes, records: dict[int, FlightRecord]) -> Finding:
    ranks = sorted(rank for rank, _ in causes)
    missed = _largest(causes[0][1])
    return _hang(
        subject="ranks that others wait for left no dump",
        title=f"{named_ranks(ranks)} left no dump: {hang.pending:,} ranks hang in {missed.call.operation}",
        detail=f"The first wait in {_numbered(missed.group, missed.call)}.",
        call=missed.call,
        ranks=ranks,
        evidence=(_absent_row(rank, waits, records) for rank, waits in causes),
        advice=f"Collect the dumps of {named_ranks(ranks)}; if they left no dump, these processes died: look at their "
        "logs, dmesg (out of memory, Xid errors) and the scheduler's record of the machine.",
    )


def _ring(ring: Sequence[Waiting]) -> Finding:
    ranks = sorted({waiting.rank for waiting in ring})
    first = ring[0]
    return _hang(
        subject="ranks wait for each other",
        title=f"{named_ranks(ranks)} wait for each other in {first.call.operation}",
        detail=f"Rank {first.rank} waits in {first.call.label()} of {_group(first.group, first.call)} for rank "
        f"{first.for_rank}, and so on in a ring.",
        call=first.call,
        ranks=ranks,
        evidence=(
            {
                "rank": waiting.rank,
                "waits_for": waiting.for_rank,
                "in": waiting.call.label(),
                "number": waiting.call.sequence,
                "group": waiting.group[0],
                "code": _code(waiting.call),
            }
            for waiting in ring
        ),
        advice="Enqueue the collectives of all groups in the same order on each rank; use batch_isend_irecv for "
        "exchanges. Two groups used from two threads, or sends before receives on both ends, close the ring.",
    )


def _mismatch(mismatch: Mismatch) -> Finding:
    labels = _labels_apart(mismatch.sides)
    counts = Counter(labels.values())
    usual = counts.most_common(1)[0][0]
    others = sorted(rank for rank, label in labels.items() if label != usual)
    odd = mismatch.sides[others[0]]
    call, calls = ("call" if len(others) > 1 else "calls"), ("calls" if counts[usual] == 1 else "call")
    return _hang(
        subject=f"members of a group call another {mismatch.what}",
        title=f"{named_ranks(others)} {call} another {mismatch.what} than {counts[usual]:,} others",
        detail=f"{named_ranks(others).capitalize()} {call} {labels[others[0]]} as number {mismatch.sequence} of "
        f"{_group(mismatch.group, odd)}, where {counts[usual]:,} {calls} {usual}.",
        call=odd,
        ranks=others,
        evidence=(
            {"rank": rank, "call": labels[rank], "number": call.sequence, "state": call.state, "code": _code(call)}
            for rank, call in sorted(mismatch.sides.items(), key=lambda side: labels[side[0]] == usual)
        ),
        advice="Make all ranks take the same branches: an even last batch (drop_last=True), no condition on the rank. "
        "Parameters that only some ranks use (find_unused_parameters=True), or another order of layers, do the same.",
    )


def _labels_apart(sides: Mapping[int, RecordedCall]) -> dict[int, str]:
    """Return a label of each rank's call that differs if the calls do: for many inputs, the first that differs."""
    labels = {rank: call.label() for rank, call in sides.items()}
    inputs = {rank: tuple(zip_longest(call.input_sizes, call.dtypes)) for rank, call in sides.items()}
    if len(set(labels.values())) == len({(call.operation, inputs[rank]) for rank, call in sides.items()}):
        return labels
    columns = zip_longest(*inputs.values())
    number = next((index for index, column in enumerate(columns) if len(set(column)) > 1), 0)
    return {rank: f"{call.operation} ({_input(inputs[rank], number)})" for rank, call in sides.items()}


def _input(inputs: Sequence[tuple[tuple[int, ...] | None, str | None]], number: int) -> str:
    if number >= len(inputs):
        return f"no input {number + 1}"
    size, dtype = inputs[number]
    return " ".join(filter(None, (f"input {number + 1}:", "x".join(map(str, size or ())), dtype)))


def _largest(waits: Sequence[Waiting]) -> Waiting:
    """Return the most informative wait: for a collective rather than a send, in the largest group, first in order."""
    return min(
        waits,
        key=lambda waiting: (
            waiting.call.peer is not None,
            -len(waiting.group[1]),
            waiting.call.created_ns or 0,
            waiting.call.sequence,
        ),
    )


def _same_call(waiting: Waiting, other: Waiting) -> bool:
    return (waiting.group, waiting.call.sequence, waiting.call.peer) == (
        other.group,
        other.call.sequence,
        other.call.peer,
    )


def _numbered(group: GroupKey, call: RecordedCall) -> str:
    return f"{call.label()} (number {call.sequence} of {_group(group, call)})"


def _group(group: GroupKey, call: RecordedCall) -> str:
    return f"{call.description or 'group'} {group[0]}, {len(group[1]):,} ranks"


def _code(call: RecordedCall) -> str | None:
    return None if call.file is None else f"{call.file}:{call.line}"


def _absent_row(rank: int, waits: Sequence[Waiting], records: dict[int, FlightRecord]) -> dict[str, Cell]:
    missed = _largest(waits)
    record = records.get(rank)
    return {
        "rank": rank,
        "never_came_to": missed.call.label(),
        "number": missed.call.sequence,
        "group": missed.group[0],
        "group_ranks": len(missed.group[1]),
        "waiting_ranks": len({wait.rank for wait in waits}),
        "groups_that_wait": len({wait.group for wait in waits}),
        "own_calls_pending": None if record is None else sum(call.pending for call in record.calls),
        "timeout_ns": missed.call.timeout_ns,
        "code": _code(missed.call),
    }


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
    nobody = not stuck and not known
    return Hang(
        pending=pending,
        stuck=tuple(sorted(stuck, key=lambda stuck: stuck.rank)),
        absent=_most_waited(known),
        undumped=_most_waited(undumped) if nobody else (),
        ring=tuple(_waiting_ring(waiting)) if nobody and not undumped else (),
        unending=tuple(_without_end(records, calls)) if nobody and not waiting else (),
        mismatches=tuple(_mismatches(calls)),
    )


Calls = dict[GroupKey, dict[int, list[RecordedCall]]]


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
