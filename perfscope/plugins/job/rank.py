"""The account of one rank over all its processes. Ranks are read independently of each other, in any process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from perfscope.model.untrusted_text import NAME_LIMIT, sanitize
from perfscope.plugins.job.causes import CAUSES, Cause
from perfscope.plugins.job.charge import COLUMN, Charged, Save, by_stack, charge, continues, lose, take_off
from perfscope.plugins.job.document import ProcessLedger, load_ledger
from perfscope.plugins.job.hangs import RankStall, stalls_of
from perfscope.plugins.job.saves import OneSave, saves_of
from perfscope.plugins.job.steps import Point, RankState, StepChange, joined, points_of, state_of, step_changes
from perfscope.plugins.job.timeline import Timeline
from perfscope.plugins.job.watched import WatchedChange, watched_changes

MOST_LINES = 200
"""Lines of a rank that are kept, those with most time."""
JUMP_NS = 2_000_000_000
"""Least difference of clocks that is noted: more than a synchronised clock is slewed in a day."""
MOST_EVENTS = 1_000
"""Checkpoints per process, and evaluations."""


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened once."""

    kind: str
    """``save``, ``restore``, ``failed save``, ``failed restore``, ``evaluation``, ``stalled``, ``started``, ``killed``,
    ``ended``."""
    unix_ns: int
    """Its begin; that of an evaluation is known to the row."""
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
    program: str = ""
    """File name of its program."""
    stepped_ns: int | None = None
    """End of the row with its first completed step, since 1970."""


class RankTask(Struct, frozen=True, kw_only=True):
    """The files of a rank."""

    rank: int | None
    files: tuple[Path, ...]
    saves: tuple[Save, ...] = ()
    """Saves of the first rank."""


class RankAccount(Struct, frozen=True, kw_only=True):
    """A rank over all its processes."""

    rank: int | None
    totals: Mapping[Cause, int]
    """ns; they sum to the time from its first start to its last end."""
    lines: tuple[tuple[Cause, str, int], ...]
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    changes: tuple[StepChange, ...]
    stalls: tuple[RankStall, ...]
    saves: tuple[OneSave, ...]
    watched: tuple[WatchedChange, ...]
    state: RankState
    steps: int
    tokens: int
    notes: tuple[str, ...]
    width_ns: int
    bins: Mapping[int, list[int]]
    """`Timeline.rows`."""


def rank_account(task: RankTask) -> RankAccount:
    """Read the processes of a rank, one after the other; ``DataError`` if a file cannot be read."""
    processes = sorted((load_ledger(file) for file in task.files), key=lambda ledger: ledger.head.unix_ns)
    totals: Counter[Cause] = Counter()
    lines: Counter[tuple[Cause, str]] = Counter()
    timeline, points = Timeline(), list[Point]()
    attempts: list[Attempt] = []
    events: list[Event] = []
    stalls: list[RankStall] = []
    saves: list[OneSave] = []
    watched: list[WatchedChange] = []
    at = processes[0].head.unix_ns
    for number, ledger in enumerate(processes):
        following = processes[number + 1] if number + 1 < len(processes) else None
        begin = ledger.head.unix_ns
        if begin > at:
            totals["between attempts"] += begin - at
            timeline.add(np.array([at, begin]), _only("between attempts", begin - at))
        charged = charge(ledger)
        points = joined([*points, *points_of(charged)])
        again = following is not None and continues(ledger, following, task.saves)
        lost = lose(charged, following, task.saves) if following is not None and again else 0
        attempts.append(_attempt(task.rank, ledger, lost))
        end = attempts[-1].end_ns
        take_off(charged, max(0, min(at, end) - begin))  # clocks that jump: time is counted once
        _put(timeline, charged, at)
        at = max(at, end)
        totals.update(charged.totals)
        lines.update(charged.lines)
        events += _events(charged, task.rank, last=following is None)
        stalls += stalls_of(charged, task.rank)
        saves += saves_of(charged)
        watched += watched_changes(ledger, task.rank)
    return RankAccount(
        rank=task.rank,
        totals=dict(totals),
        lines=tuple((cause, line, ns) for (cause, line), ns in lines.most_common(MOST_LINES) if line and ns > 0),
        attempts=tuple(attempts),
        events=tuple(events),
        changes=tuple(step_changes(task.rank, points)),
        stalls=tuple(stalls),
        saves=tuple(saves),
        watched=tuple(watched),
        state=state_of(task.rank, charged),
        steps=sum(attempt.steps for attempt in attempts),
        tokens=sum(row.tokens for ledger in processes for row in ledger.rows),
        notes=tuple(_notes(task.rank, processes, attempts)),
        width_ns=timeline.width_ns,
        bins=timeline.rows,
    )


def _notes(rank: int | None, processes: Sequence[ProcessLedger], attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield a sentence for damage, a clock that was set, or two processes at the same time."""
    of_rank = "" if rank is None else f"rank {rank}: "
    for ledger in processes:
        yield from ledger.notes
        offset = ledger.head.unix_ns - ledger.head.began_ns
        apart = [row.unix - row.end - offset for row in ledger.rows if row.unix and row.end is not None]
        jump = max(apart, key=abs, default=0)
        if abs(jump) > JUMP_NS:
            yield (
                f"{of_rank}the clock of {ledger.head.host} was set by {jump / 1e9:+,.1f} s while it ran; times follow "
                "the clock at its start"
            )
    for before, after in pairwise(attempts):
        both = before.end_ns - after.begin_ns
        if both > JUMP_NS:
            yield (
                f"{of_rank}processes {before.pid} and {after.pid} ran at the same time for {both / 1e9:,.1f} s, which "
                "counts once: these may be two jobs"
            )


def _attempt(rank: int | None, ledger: ProcessLedger, lost: int) -> Attempt:
    offset = ledger.head.unix_ns - ledger.head.began_ns
    stepped = next((row.end for row in ledger.rows if row.steps), None)
    return Attempt(
        rank=rank,
        host=ledger.head.host,
        pid=ledger.head.pid,
        begin_ns=ledger.head.unix_ns,
        end_ns=ledger.end_ns + offset,
        ended=ledger.ended,
        steps=sum(row.steps for row in ledger.rows),
        lost_ns=lost,
        program=sanitize(ledger.head.program, NAME_LIMIT),
        stepped_ns=None if stepped is None else stepped + offset,
    )


def _only(cause: Cause, ns: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    row = np.zeros((1, len(CAUSES) + 1), dtype=np.int64)
    row[0, COLUMN[cause]] = ns
    return row


def _put(timeline: Timeline, charged: Charged, at: int) -> None:
    """Add a process from ``at`` on, since 1970: what is before has been counted."""
    head = charged.ledger.head
    steps = [0, *(row.steps for row in charged.ledger.rows)]
    edges = np.array([head.began_ns, *charged.ends()]) + (head.unix_ns - head.began_ns)
    timeline.add(np.maximum(edges, min(at, int(edges[-1]))), np.column_stack((charged.by_row, steps)))


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
    yield from _evaluations(charged, rank)
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


def _evaluations(charged: Charged, rank: int | None) -> Iterator[Event]:
    """Neighbouring rows with evaluation are one event."""
    column = charged.by_row[:, COLUMN["evaluation"]]
    held = np.flatnonzero(column)
    runs = np.split(held, np.flatnonzero(np.diff(held) > 1) + 1) if len(held) else []
    ends = charged.ends()
    offset = charged.ledger.head.unix_ns - charged.ledger.head.began_ns
    for run in runs[:MOST_EVENTS]:
        first, last = int(run[0]), int(run[-1])
        begin = ends[first] - int(column[first]) if last > first else ends[first - 1]
        yield Event(
            kind="evaluation",
            unix_ns=begin + offset,
            ns=int(column[run].sum()),
            rank=rank,
            line=_line_of(charged, first, last),
        )


def _line_of(charged: Charged, first: int, last: int) -> str:
    """The line with most evaluation in some rows of ``by_row``."""
    lines: Counter[str] = Counter()
    for cause, line, ns in by_stack(charged, first - 1, last):
        if cause == "evaluation":
            lines[line] += ns
    return max(lines, key=lambda line: lines[line], default="")
