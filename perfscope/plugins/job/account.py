"""The account of a job: every second of each rank by cause, over all its processes, to the last nanosecond.

A rank's time goes from the start of its first process to the end of its last one. Time without a process of the rank
is *between attempts*. A process that was killed is followed by its next attempt; what it trained after the last save
that the next attempt restored is *lost work*. Ranks are read one by one (`rank.py`), and only sums of each are kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from perfscope.analyzers.readers import LostTask, cores, work_through
from perfscope.model.errors import DataError
from perfscope.model.plugins import load
from perfscope.plugins.job.causes import CAUSES, KEPT, Cause
from perfscope.plugins.job.charge import Save, saves_in
from perfscope.plugins.job.document import ledger_files, load_ledger, read_rank
from perfscope.plugins.job.hangs import Hang, hangs
from perfscope.plugins.job.nodes import Courses, Node
from perfscope.plugins.job.rank import Attempt, Event, RankAccount, RankTask, rank_account
from perfscope.plugins.job.saves import AsyncSaves, async_saves
from perfscope.plugins.job.steps import RankState, StepChange
from perfscope.plugins.job.timeline import Bin, Timeline
from perfscope.plugins.job.together import RankNote, joined_changes, rank_notes
from perfscope.plugins.job.watched import WatchedChange
from perfscope.plugins.scale_out import PLUGIN

MOST_LINES = 12
"""Lines per cause."""
BYTES_PER_PROCESS = 8 << 20
"""Least size of ledgers for another process that reads: half a second's work."""

Executor = Callable[
    [Callable[[RankTask], RankAccount], Sequence[RankTask]], Iterator[tuple[int, RankAccount | LostTask]]
]
"""Runs the tasks in any order, here or elsewhere: (number, result)."""


class CauseTime(Struct, frozen=True, kw_only=True):
    """Time of a cause over all ranks."""

    cause: Cause
    ns: int
    share: float
    """Share of the time of all ranks."""
    lines: tuple[tuple[str, int], ...]
    """(Line of the program, ns), most first."""


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
    nodes: tuple[Node, ...]
    """Slowest first; without a comparison where all ranks are on one."""
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    changes: tuple[StepChange, ...]
    """Without the ranks that wait for others."""
    hangs: tuple[Hang, ...]
    rank_notes: tuple[RankNote, ...]
    saves: tuple[AsyncSaves, ...]
    watched: tuple[WatchedChange, ...]
    """Changes that the processes found themselves (``--watch``)."""
    width_ns: int
    """Width of ``bins``."""
    bins: tuple[Bin, ...]
    """The time of all ranks over time; they sum to ``causes``."""
    notes: tuple[str, ...]


class _Sums:
    """Sums of the ranks that were read."""

    def __init__(self, notes: list[str]) -> None:
        self.totals: Counter[Cause] = Counter()
        self.lines: Counter[tuple[Cause, str]] = Counter()
        self.timeline = Timeline()
        self.courses = Courses()
        self.read: dict[int, RankAccount] = {}
        self.notes = notes

    def add(self, number: int, rank: RankAccount) -> None:
        """Add a rank; ``number``: its place in the order of ranks."""
        self.totals.update(rank.totals)
        self.lines.update({(cause, line): ns for cause, line, ns in rank.lines})
        if len(self.lines) > 100 * MOST_LINES * len(CAUSES):  # many ranks and programs
            self.lines = Counter(dict(self.lines.most_common(50 * MOST_LINES * len(CAUSES))))
        timeline = Timeline(rank.width_ns, rank.bins)
        self.courses.add(rank, timeline)
        self.timeline.merge(timeline)
        self.read[number] = rank


def job_account(runs: Sequence[Path], read: Executor | None = None) -> JobAccount:
    """The account of the runs of one job; ``DataError`` if none of them has a ledger that can be read.

    ``read``: where ranks are read; by default in as many processes as are useful.
    """
    notes: list[str] = []
    tasks = _tasks(runs, notes)
    sums = _Sums(notes)
    for number, rank in (read or _here)(rank_account, tasks):
        if isinstance(rank, LostTask):
            notes.append(f"rank {tasks[number].rank}: its reader {rank.why}; the rank is left out")
        else:
            sums.add(number, rank)
    if not sums.read:
        names = ", ".join(map(str, runs))
        why = f": {notes[0]}" if notes else "; `perfscope run --ledger` keeps one"
        raise DataError(f"{names}: no ledger{why}")
    return _account(sums)


def on_cluster(address: str) -> Executor:
    """Read the ranks on the workers of a Dask scheduler, which see the same paths."""
    executor: Executor = partial(load(PLUGIN.scale_out).work_on_cluster, address=address)
    return executor


def _here(
    work: Callable[[RankTask], RankAccount], tasks: Sequence[RankTask]
) -> Iterator[tuple[int, RankAccount | LostTask]]:
    size = sum(file.stat().st_size for task in tasks for file in task.files)
    return work_through(work, tasks, min(cores(), size // BYTES_PER_PROCESS))


def _account(sums: _Sums) -> JobAccount:
    ranks = [sums.read[number] for number in sorted(sums.read)]
    attempts = [attempt for rank in ranks for attempt in rank.attempts]
    total = sum(sums.totals.values())
    begin = min(attempt.begin_ns for attempt in attempts)
    return JobAccount(
        total_ns=total,
        wall_ns=max(attempt.end_ns for attempt in attempts) - begin,
        begin_unix_ns=begin,
        causes=_cause_times(sums, total),
        goodput=sum(ns for cause, ns in sums.totals.items() if cause in KEPT) / total if total else 0.0,
        steps=max(rank.steps for rank in ranks),
        tokens=sum(rank.tokens for rank in ranks),
        ranks=tuple(rank.state for rank in ranks),
        nodes=sums.courses.nodes(),
        attempts=tuple(sorted(attempts, key=lambda attempt: (attempt.begin_ns, attempt.rank or 0))),
        events=tuple(sorted((event for rank in ranks for event in rank.events), key=lambda event: event.unix_ns)),
        changes=tuple(joined_changes([change for rank in ranks for change in rank.changes])),
        hangs=tuple(hangs([stall for rank in ranks for stall in rank.stalls], _alive(attempts), sums.notes)),
        rank_notes=rank_notes([rank.state for rank in ranks]),
        saves=async_saves([save for rank in ranks for save in rank.saves]),
        watched=tuple(sorted((one for rank in ranks for one in rank.watched), key=lambda one: one.unix_ns)),
        width_ns=sums.timeline.width_ns,
        bins=sums.timeline.bins(),
        notes=(*_two_jobs(attempts), *sums.notes, *(note for rank in ranks for note in rank.notes)),
    )


def _tasks(runs: Sequence[Path], notes: list[str]) -> list[RankTask]:
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
        by_rank = defaultdict(list, {rank: by_rank[rank] for rank in ranks})
    elif stepping:
        by_rank = defaultdict(list, {None: stepping})
    saves = _saves_of_first(next(iter(by_rank.values()), [])) if len(by_rank) > 1 else ()
    return [RankTask(rank=rank, files=tuple(files), saves=saves) for rank, files in by_rank.items()]


def _saves_of_first(files: Sequence[Path]) -> tuple[Save, ...]:
    """Saves of the first rank, which often saves for all, if it has several processes."""
    saves: list[Save] = []
    for file in files if len(files) > 1 else ():
        with suppress(DataError):  # the rank's own task reports it
            saves += saves_in(load_ledger(file))
    return tuple(saves)


def _two_jobs(attempts: Sequence[Attempt]) -> Iterator[str]:
    programs = sorted({attempt.program for attempt in attempts} - {""})
    if len(programs) > 1:
        named = ", ".join(programs[:4])
        yield f"these are {len(programs)} programs ({named}): they are shown as attempts of one job"


def _alive(attempts: Sequence[Attempt]) -> dict[int, list[tuple[int, int]]]:
    """Begin and end of the processes of each rank, since 1970."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for attempt in attempts:
        if attempt.rank is not None:
            spans[attempt.rank].append((attempt.begin_ns, attempt.end_ns))
    return spans


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
