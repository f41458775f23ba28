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

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from perfscope.analyzers.ranks.hangs import GroupKey, Hang, Mismatch, Waiting, hang_of
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
        f"{_hanging(hang)}",
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
        title=f"{named_ranks(sorted(alike))} never came to {missed.call.operation}: {_hanging(hang)}",
        detail=f"{'It waits' if hang.pending == 1 else 'They wait'} in {_numbered(missed.group, missed.call)}"
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
        title=f"{named_ranks(ranks)} left no dump: {_hanging(hang)} in {missed.call.operation}",
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
    many = f"{counts[usual]:,} other{'s' if counts[usual] > 1 else ''}"
    return _hang(
        subject=f"members of a group call another {mismatch.what}",
        title=f"{named_ranks(others)} {call} another {mismatch.what} than {many}",
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


def _hanging(hang: Hang) -> str:
    return "1 rank hangs" if hang.pending == 1 else f"{hang.pending:,} ranks hang"


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
