"""The time of one process by row and cause, and by cause and line; what of it was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from perfscope.plugins.job.causes import CAUSES, Cause, Place, cause_in, places
from perfscope.plugins.job.document import ProcessLedger, Triple
from perfscope.profiler.session.checkpoints import RESTORE, SAVE

TRAINS: frozenset[Cause] = frozenset({"training steps", "warm-up steps"})
COLUMN: dict[Cause, int] = {cause: column for column, cause in enumerate(CAUSES)}
PHASES = 4

Ints = npt.NDArray[np.int64]


class Charged(NamedTuple):
    """The rows of a process as causes."""

    ledger: ProcessLedger
    places: list[Place]
    by_row: Ints
    """(1 + rows, causes), ns: the time before the first row, and each row with the gap before it."""
    lines: Counter[tuple[Cause, str]]
    parts: Ints
    """(parts, 4) of all rows: row from 0, node, phase, ns."""
    moved: Counter[tuple[Cause, str]]
    """Time that was charged to stalls, by the cause and line of its stacks."""

    def place(self, node: int) -> Place:
        """The place of a node; that of no stack for one that was lost."""
        return self.places[node] if node < len(self.places) else self.places[-1]

    @property
    def totals(self) -> Counter[Cause]:
        """Time by cause; sums to the time from the start of the process to the end of its last row."""
        return Counter({cause: int(ns) for cause, ns in zip(CAUSES, self.by_row.sum(axis=0), strict=True)})

    def ends(self) -> list[int]:
        """Ends of the rows of ``by_row``, ``perf_counter_ns``; each begins where the one before ended."""
        return [self.ledger.head.from_ns, *(row.begin if row.end is None else row.end for row in self.ledger.rows)]


def charge(ledger: ProcessLedger) -> Charged:
    """The time of a process from its start to the end of its last row, by cause and line."""
    charged = _by_stack(ledger)
    stuck: tuple[Triple, ...] = ()
    stuck_at = 0
    for number, row in enumerate(ledger.rows, 1):
        if row.steps:
            _move(charged, stuck, stuck_at, "stalled")
            stuck = ()
        elif row.stuck:  # since the last step: what an earlier row has is in it
            stuck, stuck_at = row.stuck, number
    _move(charged, stuck, stuck_at, "stalled")
    if ledger.rows and ledger.rows[-1].tail and not stuck:
        tail = tuple(part for part in ledger.rows[-1].tail if part[1] > 0)
        _move(charged, tail, len(ledger.rows), "after the last step")
    return charged


def _by_stack(ledger: ProcessLedger) -> Charged:
    """Each part by the cause of its stack."""
    known = places(ledger)
    parts = _parts(ledger)
    columns = np.array([[COLUMN[cause_in(place, phase)] for phase in range(PHASES)] for place in known])
    by_row = np.zeros((1 + len(ledger.rows), len(CAUSES)), dtype=np.int64)
    by_row[0, COLUMN["imports"]] = max(0, ledger.head.from_ns - ledger.head.began_ns)
    begins = np.array([row.begin for row in ledger.rows], dtype=np.int64)
    ends = np.array([row.begin if row.end is None else row.end for row in ledger.rows], dtype=np.int64)
    by_row[1:, COLUMN["not recorded"]] = begins - np.concatenate(([ledger.head.from_ns], ends[:-1]))[: len(begins)]
    by_row[1:, COLUMN["waiting for a core"]] = [row.core for row in ledger.rows]
    row, node, phase, ns = parts.T
    node[node >= len(known)] = -1
    np.add.at(by_row, (row + 1, columns[node, phase]), ns)
    sums = np.zeros((len(known), PHASES), dtype=np.int64)
    np.add.at(sums, (node, phase), ns)
    lines: Counter[tuple[Cause, str]] = Counter()
    for at, phase_at in zip(*(index.tolist() for index in np.nonzero(sums)), strict=True):
        lines[CAUSES[columns[at, phase_at]], known[at].line] += int(sums[at, phase_at])
    return Charged(ledger, known, by_row, lines, parts, Counter())


def _parts(ledger: ProcessLedger) -> Ints:
    counts = [len(row.at) for row in ledger.rows]
    flat = chain.from_iterable(chain.from_iterable(row.at for row in ledger.rows))
    triples = np.fromiter(flat, dtype=np.int64, count=3 * sum(counts)).reshape(-1, 3)
    return np.column_stack((np.repeat(np.arange(len(counts)), counts), triples))


def _move(charged: Charged, parts: Sequence[Triple], last: int, cause: Cause) -> None:
    """Charge parts of the rows up to ``last`` to another cause, newest rows first."""
    left: Counter[Cause] = Counter()
    for node, phase, ns in parts:
        place = charged.place(node)
        own = cause_in(place, phase)
        left[own] += ns
        charged.lines[own, place.line] -= ns
        charged.lines[cause, place.line] += ns
        charged.moved[own, place.line] += ns
    for own, ns in left.items():
        row = last
        while ns and row >= 0:
            moved = min(ns, int(charged.by_row[row, COLUMN[own]]))
            charged.by_row[row, COLUMN[own]] -= moved
            charged.by_row[row, COLUMN[cause]] += moved
            ns -= moved
            row -= 1


class Save(NamedTuple):
    """A save of the rank that saves for all."""

    unix_ns: int
    """Its begin."""
    place: str
    """Digest of its path."""


def saves_in(ledger: ProcessLedger) -> list[Save]:
    """Saves of a process that succeeded."""
    offset = ledger.head.unix_ns - ledger.head.began_ns
    events = (event for row in ledger.rows for event in row.checkpoints)
    return [Save(event[2] + offset, event[7]) for event in events if event[0] == SAVE and event[5]]


def continues(ledger: ProcessLedger, following: ProcessLedger, others: Sequence[Save]) -> bool:
    """Whether the next process does the work of this one again: this one was killed, or its save was restored.

    A rank whose peer was killed often ends by an error itself, with all rows written. ``others``: saves of the first
    rank, which often saves for all.
    """
    return not ledger.ended or _kept_until(ledger, following, others) is not None


def lose(charged: Charged, following: ProcessLedger, others: Sequence[Save]) -> int:
    """Charge what a killed process trained after the save that the next attempt restored to *lost work*, ns."""
    kept_until = _kept_until(charged.ledger, following, others)
    rows = charged.ledger.rows
    first = 0 if kept_until is None else next((n for n, row in enumerate(rows) if row.begin >= kept_until), len(rows))
    trained = [COLUMN[cause] for cause in sorted(TRAINS)]
    after = charged.by_row[1 + first :]
    lost = int(after[:, trained].sum())
    after[:, COLUMN["lost work"]] += after[:, trained].sum(axis=1)
    after[:, trained] = 0
    for cause, line, ns in by_stack(charged, first, len(rows)):
        if cause in TRAINS:
            moved = min(max(0, ns - charged.moved[cause, line]), charged.lines[cause, line])
            charged.lines[cause, line] -= moved
            charged.lines["lost work", line] += moved
    return lost


def by_stack(charged: Charged, first: int, last: int) -> Iterator[tuple[Cause, str, int]]:
    """(Cause, line, ns) of the stacks in the rows of the ledger from ``first`` to before ``last``; lines may repeat."""
    low, high = np.searchsorted(charged.parts[:, 0], [first, last])
    sums = np.zeros((len(charged.places), PHASES), dtype=np.int64)
    _, node, phase, ns = charged.parts[low:high].T
    np.add.at(sums, (node, phase), ns)
    for at, phase_at in zip(*(index.tolist() for index in np.nonzero(sums)), strict=True):
        place = charged.places[at]
        yield cause_in(place, phase_at), place.line, int(sums[at, phase_at])


def _kept_until(ledger: ProcessLedger, following: ProcessLedger, others: Sequence[Save]) -> int | None:
    """Begin of the save that the next attempt restored, on this process's clock; ``None`` if it restored nothing."""
    offset = ledger.head.unix_ns - ledger.head.began_ns
    during = [save for save in others if ledger.head.unix_ns <= save.unix_ns <= ledger.end_ns + offset]
    saves = [*saves_in(ledger), *during]
    restored = [event for row in following.rows for event in row.checkpoints if event[0] == RESTORE and event[5]]
    begins = not any(row.steps for row in following.rows)  # and will restore the last save
    if not saves or not (restored or begins):
        return None
    places = {event[7] for event in restored} - {""}
    same = [save for save in saves if save.place in places]
    return max(save.unix_ns for save in (same or saves)) - offset


def take_off(charged: Charged, cut: int) -> None:
    """Take the first ``cut`` ns off, which another process of the same rank has already."""
    for row in charged.by_row:
        for column in np.argsort(-row):
            taken = min(cut, int(row[column]))
            row[column] -= taken
            cut -= taken
        if not cut:
            return


Key = TypeVar("Key", bound=Hashable)


def grouped(charged: Charged, groups: Ints, key: Callable[[Place, int], Key | None]) -> list[Counter[Key]]:
    """Time of groups of rows, ns by key; ``groups``: the group of each row, -1: none.

    ``key``: of a place in a phase; ``None``: not counted. Parts that were charged to stalls or to lost work since count
    too.
    """
    keys: dict[Key, int] = {}
    key_of = np.full((len(charged.places), PHASES), -1)
    for number, place in enumerate(charged.places):
        for phase in range(PHASES):
            found = key(place, phase)
            if found is not None:
                key_of[number, phase] = keys.setdefault(found, len(keys))
    counters: list[Counter[Key]] = [Counter() for _ in range(int(groups.max(initial=-1)) + 1)]
    row, node, phase_of, ns = charged.parts.T
    at = key_of[node, phase_of]
    chosen = (at >= 0) & (groups[row] >= 0)
    sums = np.zeros((len(counters), len(keys)), dtype=np.int64)
    np.add.at(sums, (groups[row[chosen]], at[chosen]), ns[chosen])
    known = list(keys)
    filled, columns = np.nonzero(sums)
    triples = zip(filled.tolist(), columns.tolist(), sums[filled, columns].tolist(), strict=True)
    for group, number, total in triples:
        counters[group][known[number]] = total
    return counters
