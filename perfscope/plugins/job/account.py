"""The account of a job: every second of each rank by cause, over all its processes, to the last nanosecond.

A rank's time goes from the start of its first process to the end of its last one. Time without a process of the rank
is *between attempts*. A process that was killed is followed by its next attempt; what it trained after the last save
that the next attempt restored is *lost work*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.plugins.job.causes import CAUSES, KEPT, Cause, Place, cause_in, places
from perfscope.plugins.job.checkpoints import RESTORE, SAVE
from perfscope.plugins.job.document import ProcessLedger, Row, Triple, ledger_files, load_ledger

MOST_LINES = 12
"""Lines per cause."""
MOST_EVENTS = 1_000
"""Events of each kind per rank."""


class CauseTime(Struct, frozen=True, kw_only=True):
    """Time of a cause over all ranks."""

    cause: Cause
    ns: int
    share: float
    """Of the time of all ranks."""
    lines: tuple[tuple[str, int], ...]
    """(Line of the program, ns), most first."""


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened once."""

    kind: str
    """``save``, ``restore``, ``stalled``, ``started``, ``killed``, ``ended``."""
    unix_ns: int
    ns: int
    """Its duration; 0 for a moment."""
    rank: int | None
    line: str
    text: str = ""


class Attempt(Struct, frozen=True, kw_only=True):
    """One process of a rank."""

    rank: int | None
    host: str
    pid: int
    begin_ns: int
    """Since 1970."""
    end_ns: int
    ended: bool
    """By itself; else it was killed, or still runs."""
    steps: int
    lost_ns: int
    """Of its training: not in what the next attempt continued from."""


class StepRow(Struct, frozen=True, kw_only=True):
    """Training of one rank in an interval of the ledger."""

    unix_ns: int
    """End of the interval."""
    steps: int
    training_ns: int
    tokens: int
    loss: float | None
    resident: int
    gpu: tuple[float, float, int] | None


class JobAccount(Struct, frozen=True, kw_only=True):
    """A job: all ranks of all its attempts."""

    ranks: int
    total_ns: int
    """Sum over the ranks, from each one's first start to its last end."""
    wall_ns: int
    """From the first start of any rank to the last end."""
    begin_unix_ns: int
    causes: tuple[CauseTime, ...]
    """They sum to ``total_ns``; most first."""
    goodput: float
    """Share of the time in which training steps ran whose results the job kept."""
    steps: int
    """Completed steps of the rank with most, without those that were lost by time."""
    tokens: int
    """Of all ranks."""
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    series: tuple[tuple[int | None, tuple[StepRow, ...]], ...]
    """(Rank, its training over time)."""
    notes: tuple[str, ...]


class _Charged(NamedTuple):
    """A process's rows as causes."""

    ledger: ProcessLedger
    places: list[Place]
    totals: Counter[Cause]
    lines: Counter[tuple[Cause, str]]


def job_account(runs: Sequence[Path]) -> JobAccount:
    """The account of the runs of one job; ``DataError`` if none of them has a ledger."""
    ledgers, notes = _load(runs)
    stepping = [ledger for ledger in ledgers if any(row.steps for row in ledger.rows)]
    if not ledgers:
        names = ", ".join(map(str, runs))
        raise DataError(f"{names}: no ledger; `perfscope run --ledger` keeps one")
    if stepping and len(stepping) < len(ledgers):
        notes.append(f"{len(ledgers) - len(stepping)} processes without steps are left out, such as launchers")
    by_rank: dict[int | None, list[ProcessLedger]] = defaultdict(list)
    for ledger in stepping or ledgers:
        by_rank[ledger.rank].append(ledger)
    totals: Counter[Cause] = Counter()
    lines: Counter[tuple[Cause, str]] = Counter()
    attempts: list[Attempt] = []
    for processes in by_rank.values():
        processes.sort(key=lambda ledger: ledger.head.unix_ns)
        for rank_totals, rank_lines, attempt in _rank(processes):
            totals.update(rank_totals)
            lines.update(rank_lines)
            attempts += [attempt] if attempt is not None else []
    total = sum(totals.values())
    attempts.sort(key=lambda attempt: (attempt.begin_ns, attempt.rank or 0))
    begin = min(attempt.begin_ns for attempt in attempts)
    return JobAccount(
        ranks=len(by_rank),
        total_ns=total,
        wall_ns=max(attempt.end_ns for attempt in attempts) - begin,
        begin_unix_ns=begin,
        causes=_cause_times(totals, lines, total),
        goodput=sum(ns for cause, ns in totals.items() if cause in KEPT) / total if total else 0.0,
        steps=max(sum(attempt.steps for attempt in attempts if attempt.rank == rank) for rank in by_rank),
        tokens=sum(row.tokens for processes in by_rank.values() for ledger in processes for row in ledger.rows),
        attempts=tuple(attempts),
        events=tuple(sorted(_events(by_rank), key=lambda event: event.unix_ns)),
        series=tuple((rank, tuple(_series(processes))) for rank, processes in by_rank.items()),
        notes=tuple(notes),
    )


def _load(runs: Sequence[Path]) -> tuple[list[ProcessLedger], list[str]]:
    ledgers, notes = [], []
    for run in runs:
        for file in ledger_files(run):
            try:
                ledger = load_ledger(file)
            except DataError as error:
                notes.append(str(error))
                continue
            notes += ledger.notes
            ledgers.append(ledger)
    return ledgers, notes


def _cause_times(totals: Counter[Cause], lines: Counter[tuple[Cause, str]], total: int) -> tuple[CauseTime, ...]:
    by_cause: dict[Cause, list[tuple[str, int]]] = defaultdict(list)
    for (cause, line), ns in lines.most_common():
        if line and len(by_cause[cause]) < MOST_LINES:
            by_cause[cause].append((line, ns))
    order = sorted((cause for cause in CAUSES if totals[cause]), key=lambda cause: -totals[cause])
    return tuple(
        CauseTime(cause=cause, ns=totals[cause], share=totals[cause] / total, lines=tuple(by_cause[cause]))
        for cause in order
    )


def _rank(
    processes: list[ProcessLedger],
) -> Iterable[tuple[Counter[Cause], Counter[tuple[Cause, str]], Attempt | None]]:
    """Yield the times and the attempt of each process of a rank, and the times between them."""
    at = processes[0].head.unix_ns
    for number, ledger in enumerate(processes):
        following = processes[number + 1] if number + 1 < len(processes) else None
        begin = ledger.head.unix_ns
        if begin > at:
            yield Counter({"between attempts": begin - at}), Counter(), None
        charged = _charge(ledger)
        lost = 0 if ledger.ended or following is None else _lose(charged, following)
        end = begin + ledger.end_ns - ledger.head.began_ns
        cut = max(0, min(at - begin, end - begin))  # clocks that jump: the rank's time is counted once
        if cut:
            _take_off(charged, cut)
        at = max(at, end)
        yield (
            charged.totals,
            charged.lines,
            Attempt(
                rank=ledger.rank,
                host=ledger.head.host,
                pid=ledger.head.pid,
                begin_ns=begin,
                end_ns=end,
                ended=ledger.ended,
                steps=sum(row.steps for row in ledger.rows),
                lost_ns=lost,
            ),
        )


def _charge(ledger: ProcessLedger) -> _Charged:
    """The time of a process from its start to the end of its last row, by cause and line."""
    known = places(ledger)
    charged = _Charged(ledger, known, Counter(), Counter())
    charged.totals["imports"] += max(0, ledger.head.from_ns - ledger.head.began_ns)
    at = ledger.head.from_ns
    stuck: tuple[Triple, ...] = ()
    for row in ledger.rows:
        charged.totals["not recorded"] += row.begin - at
        charged.totals["waiting for a core"] += row.core
        _add(charged, row.at, 1)
        at = row.begin if row.end is None else row.end
        if row.steps:
            stuck = ()
        elif row.stuck:
            _move(charged, stuck, "stalled", back=True)
            stuck = row.stuck
            _move(charged, stuck, "stalled")
    if ledger.rows and ledger.rows[-1].tail and not stuck:
        _move(charged, tuple(part for part in ledger.rows[-1].tail if part[1] > 0), "after the last step")
    return charged


def _add(charged: _Charged, parts: Iterable[Triple], sign: int) -> None:
    for node, phase, ns in parts:
        place = charged.places[node] if node < len(charged.places) else charged.places[-1]
        cause = cause_in(place, phase)
        charged.totals[cause] += sign * ns
        charged.lines[cause, place.line] += sign * ns


def _move(charged: _Charged, parts: Iterable[Triple], cause: Cause, *, back: bool = False) -> None:
    """Charge parts that were charged by their stacks to one cause, or ``back``."""
    sign = 1 if back else -1
    _add(charged, parts, sign)
    for node, _, ns in parts:
        place = charged.places[node] if node < len(charged.places) else charged.places[-1]
        charged.totals[cause] -= sign * ns
        charged.lines[cause, place.line] -= sign * ns


def _lose(charged: _Charged, following: ProcessLedger) -> int:
    """Charge what a killed process trained after the save that the next attempt restored to *lost work*, ns."""
    kept_until = _kept_until(charged.ledger, following)
    lost = 0
    for row in charged.ledger.rows:
        if kept_until is not None and row.begin < kept_until:
            continue
        trained = [part for part in row.at if _trains(charged, part)]
        _move(charged, trained, "lost work")
        lost += sum(ns for _, _, ns in trained)
    return lost


def _trains(charged: _Charged, part: Triple) -> bool:
    place = charged.places[part[0]] if part[0] < len(charged.places) else charged.places[-1]
    return cause_in(place, part[1]) in ("training steps", "warm-up steps")


def _kept_until(ledger: ProcessLedger, following: ProcessLedger) -> int | None:
    """Begin of the save from which the next attempt went on; ``None`` if it began anew."""
    saves = [event for row in ledger.rows for event in row.checkpoints if event[0] == SAVE and event[5]]
    restored = [event for row in following.rows for event in row.checkpoints if event[0] == RESTORE and event[5]]
    if not saves or not restored:
        return None
    digests = {event[7] for event in restored} - {""}
    same = [event for event in saves if event[7] in digests]
    return max(event[2] for event in (same or saves))


def _take_off(charged: _Charged, cut: int) -> None:
    """Take time that another process of the same rank has already off the largest causes."""
    for cause, ns in charged.totals.most_common():
        taken = min(cut, ns)
        charged.totals[cause] -= taken
        cut -= taken


def _events(by_rank: dict[int | None, list[ProcessLedger]]) -> Iterable[Event]:
    for rank, processes in by_rank.items():
        for number, ledger in enumerate(processes):
            yield from _process_events(ledger, rank, last=number + 1 == len(processes))


def _process_events(ledger: ProcessLedger, rank: int | None, *, last: bool) -> Iterable[Event]:
    offset = ledger.head.unix_ns - ledger.head.began_ns
    where = f"{ledger.head.host}, process {ledger.head.pid}"
    yield Event(kind="started", unix_ns=ledger.head.unix_ns, ns=0, rank=rank, line="", text=where)
    count = 0
    for row in ledger.rows:
        for kind, call, begin, end, line, ok, stored, _ in row.checkpoints:
            count += 1
            if count > MOST_EVENTS:
                break
            later = f"stored {(stored - end) / 1e9:.1f} s later" if stored > end else ""
            yield Event(
                kind=kind if ok else f"failed {kind}",
                unix_ns=begin + offset,
                ns=end - begin,
                rank=rank,
                line=line,
                text=", ".join(filter(None, (call, later))),
            )
    known = places(ledger)
    for stall in ledger.stalls:
        threads = [f"{name}: {known[node].line}" for name, node in stall.stacks if 0 <= node < len(known) - 1]
        main = next((known[node].line for name, node in stall.stacks if name == "MainThread" and node >= 0), "")
        since = stall.stalled or 0
        yield Event(
            kind="stalled", unix_ns=since + offset, ns=0, rank=rank, line=main, text="; ".join(threads[:8])
        )
    if not last or ledger.ended:
        kind = "ended" if ledger.ended else "killed"
        yield Event(kind=kind, unix_ns=ledger.end_ns + offset, ns=0, rank=rank, line="", text=where)


def _series(processes: Iterable[ProcessLedger]) -> Iterable[StepRow]:
    for ledger in processes:
        charged = _Charged(ledger, places(ledger), Counter(), Counter())
        offset = ledger.head.unix_ns - ledger.head.began_ns
        for row in ledger.rows:
            yield StepRow(
                unix_ns=(row.end or row.begin) + offset,
                steps=row.steps,
                training_ns=_training(charged, row),
                tokens=row.tokens,
                loss=row.loss,
                resident=row.resident,
                gpu=row.gpu,
            )


def _training(charged: _Charged, row: Row) -> int:
    return sum(part[2] for part in row.at if _trains(charged, part))
