"""The account of a job: every second of each rank by cause, over all its processes, to the last nanosecond.

A rank's time goes from the start of its first process to the end of its last one. Time without a process of the rank
is *between attempts*. A process that was killed is followed by its next attempt; what it trained after the last save
that the next attempt restored is *lost work*. Ranks are read one after the other, and only sums of each are kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.plugins.job.causes import CAUSES, KEPT, Cause
from perfscope.plugins.job.charge import Charged, charge, continues, lose, take_off
from perfscope.plugins.job.document import ledger_files, load_ledger, read_rank
from perfscope.plugins.job.steps import Point, RankState, StepChange, joined, points_of, state_of, step_changes

MOST_LINES = 12
"""Lines per cause."""
MOST_EVENTS = 1_000
"""Checkpoints per process."""


class CauseTime(Struct, frozen=True, kw_only=True):
    """Time of a cause over all ranks."""

    cause: Cause
    ns: int
    share: float
    """Share of the time of all ranks."""
    lines: tuple[tuple[str, int], ...]
    """(Line of the program, ns), most first."""


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened once."""

    kind: str
    """``save``, ``restore``, ``failed save``, ``failed restore``, ``stalled``, ``started``, ``killed``, ``ended``."""
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
    """Part of its training that the next attempt did not continue from."""


class JobAccount(Struct, frozen=True, kw_only=True):
    """A job: all ranks of all its attempts."""

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
    """Completed steps of the rank with most; those that were lost and done again count twice."""
    tokens: int
    """Sum over all ranks, counted in the same way; 0 if the program reports no tokens."""
    ranks: tuple[RankState, ...]
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    changes: tuple[StepChange, ...]
    notes: tuple[str, ...]


class _Sums:
    """Sums and rows of the ranks that were read."""

    def __init__(self) -> None:
        self.totals: Counter[Cause] = Counter()
        self.lines: Counter[tuple[Cause, str]] = Counter()
        self.attempts: list[Attempt] = []
        self.events: list[Event] = []
        self.changes: list[StepChange] = []
        self.ranks: list[RankState] = []
        self.steps: list[int] = []
        self.tokens = 0
        self.notes: list[str] = []

    def add_rank(self, rank: int | None, files: Sequence[Path]) -> None:
        """Read the processes of a rank, and add what they did."""
        processes = sorted((load_ledger(file) for file in files), key=lambda ledger: ledger.head.unix_ns)
        at, steps = processes[0].head.unix_ns, 0
        points: list[Point] = []
        for number, ledger in enumerate(processes):
            following = processes[number + 1] if number + 1 < len(processes) else None
            begin = ledger.head.unix_ns
            end = begin + ledger.end_ns - ledger.head.began_ns
            self.totals["between attempts"] += max(0, begin - at)
            charged = charge(ledger)
            points = joined([*points, *points_of(charged)])
            lost = 0 if following is None or not continues(ledger, following) else lose(charged, following)
            take_off(charged, max(0, min(at, end) - begin))  # clocks that jump: time is counted once
            at = max(at, end)
            self.totals.update(charged.totals)
            self.lines.update(charged.lines)
            self._keep_most_lines()
            done = sum(row.steps for row in ledger.rows)
            steps += done
            self.tokens += sum(row.tokens for row in ledger.rows)
            self.notes += ledger.notes
            self.attempts.append(
                Attempt(
                    rank=rank,
                    host=ledger.head.host,
                    pid=ledger.head.pid,
                    begin_ns=begin,
                    end_ns=end,
                    ended=ledger.ended,
                    steps=done,
                    lost_ns=lost,
                )
            )
            self.events += _events(charged, rank, last=following is None)
        self.steps.append(steps)
        self.ranks.append(state_of(rank, charged))
        self.changes += step_changes(rank, points)

    def _keep_most_lines(self) -> None:
        """Bound the lines of a job with many ranks and programs."""
        if len(self.lines) > 100 * MOST_LINES * len(CAUSES):
            self.lines = Counter(dict(self.lines.most_common(50 * MOST_LINES * len(CAUSES))))


def job_account(runs: Sequence[Path]) -> JobAccount:
    """The account of the runs of one job; ``DataError`` if none of them has a ledger that can be read."""
    sums = _Sums()
    for rank, files in _ranks(runs, sums.notes).items():
        sums.add_rank(rank, files)
    if not sums.attempts:
        names = ", ".join(map(str, runs))
        why = f": {sums.notes[0]}" if sums.notes else "; `perfscope run --ledger` keeps one"
        raise DataError(f"{names}: no ledger{why}")
    total = sum(sums.totals.values())
    begin = min(attempt.begin_ns for attempt in sums.attempts)
    return JobAccount(
        total_ns=total,
        wall_ns=max(attempt.end_ns for attempt in sums.attempts) - begin,
        begin_unix_ns=begin,
        causes=_cause_times(sums, total),
        goodput=sum(ns for cause, ns in sums.totals.items() if cause in KEPT) / total if total else 0.0,
        steps=max(sums.steps),
        tokens=sums.tokens,
        ranks=tuple(sums.ranks),
        attempts=tuple(sorted(sums.attempts, key=lambda attempt: (attempt.begin_ns, attempt.rank or 0))),
        events=tuple(sorted(sums.events, key=lambda event: event.unix_ns)),
        changes=tuple(sorted(sums.changes, key=lambda change: change.unix_ns)),
        notes=tuple(sums.notes),
    )


def _ranks(runs: Sequence[Path], notes: list[str]) -> dict[int | None, list[Path]]:
    """Files of the job itself by rank: its ranks; without ranks those with steps; without either all. No launchers."""
    by_rank: dict[int | None, list[Path]] = defaultdict(list)
    stepping: list[Path] = []
    for run in runs:
        for file in ledger_files(run):
            try:
                rank, steps = read_rank(file)
            except DataError as error:
                notes.append(str(error))
                continue
            by_rank[rank].append(file)
            if rank is None and steps:
                stepping.append(file)
    ranks = sorted(rank for rank in by_rank if rank is not None)
    if ranks:
        return {rank: by_rank[rank] for rank in ranks}
    return {None: stepping} if stepping else dict(by_rank)


def _cause_times(sums: _Sums, total: int) -> tuple[CauseTime, ...]:
    by_cause: dict[Cause, list[tuple[str, int]]] = defaultdict(list)
    for (cause, line), ns in sums.lines.most_common():
        if line and ns > 0 and len(by_cause[cause]) < MOST_LINES:
            by_cause[cause].append((line, ns))
    order = sorted((cause for cause in CAUSES if sums.totals[cause]), key=lambda cause: -sums.totals[cause])
    return tuple(
        CauseTime(cause=cause, ns=sums.totals[cause], share=sums.totals[cause] / total, lines=tuple(by_cause[cause]))
        for cause in order
    )


def _events(charged: Charged, rank: int | None, *, last: bool) -> Iterator[Event]:
    ledger = charged.ledger
    offset = ledger.head.unix_ns - ledger.head.began_ns
    where = f"{ledger.head.host}, process {ledger.head.pid}"
    yield Event(kind="started", unix_ns=ledger.head.unix_ns, ns=0, rank=rank, line="", text=where)
    checkpoints = [event for row in ledger.rows for event in row.checkpoints]
    for kind, call, begin, end, line, ok, stored, _ in checkpoints[:MOST_EVENTS]:
        later = f"stored {(stored - end) / 1e9:.1f} s later" if stored > end else ""
        yield Event(
            kind=kind if ok else f"failed {kind}",
            unix_ns=begin + offset,
            ns=end - begin,
            rank=rank,
            line=line,
            text=", ".join(filter(None, (call, later))),
        )
    for stall in ledger.stalls:
        threads = [(name, charged.place(node).line) for name, node in stall.stacks if node >= 0]
        yield Event(
            kind="stalled",
            unix_ns=(stall.stalled or 0) + offset,
            ns=0,
            rank=rank,
            line=next((line for name, line in threads if name == "MainThread"), ""),
            text="; ".join(f"{name}: {line}" for name, line in threads[:8]),
        )
    if not last or ledger.ended:
        kind = "ended" if ledger.ended else "killed"
        yield Event(kind=kind, unix_ns=ledger.end_ns + offset, ns=0, rank=rank, line="", text=where)
