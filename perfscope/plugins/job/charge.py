"""The time of one process by cause and line, and what of it was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from perfscope.plugins.job.causes import Cause, Place, cause_in, places
from perfscope.plugins.job.checkpoints import RESTORE, SAVE
from perfscope.plugins.job.document import ProcessLedger, Row, Triple

TRAINS: frozenset[Cause] = frozenset({"training steps", "warm-up steps"})


class Charged(NamedTuple):
    """The rows of a process as causes."""

    ledger: ProcessLedger
    places: list[Place]
    totals: Counter[Cause]
    """They sum to the time from the start of the process to the end of its last row."""
    lines: Counter[tuple[Cause, str]]

    def place(self, node: int) -> Place:
        """The place of a node; that of no stack for one that was lost."""
        return self.places[node] if node < len(self.places) else self.places[-1]


def charge(ledger: ProcessLedger) -> Charged:
    """The time of a process from its start to the end of its last row, by cause and line."""
    known = places(ledger)
    charged = Charged(ledger, known, Counter(), Counter())
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


def _add(charged: Charged, parts: Iterable[Triple], sign: int) -> None:
    for node, phase, ns in parts:
        place = charged.place(node)
        cause = cause_in(place, phase)
        charged.totals[cause] += sign * ns
        charged.lines[cause, place.line] += sign * ns


def _move(charged: Charged, parts: Iterable[Triple], cause: Cause, *, back: bool = False) -> None:
    """Charge parts that were charged by their stacks to one cause, or ``back``."""
    sign = 1 if back else -1
    _add(charged, parts, sign)
    for node, _, ns in parts:
        place = charged.place(node)
        charged.totals[cause] -= sign * ns
        charged.lines[cause, place.line] -= sign * ns


def continues(ledger: ProcessLedger, following: ProcessLedger) -> bool:
    """Whether the next process does the work of this one again: this one was killed, or its save was restored.

    A rank whose peer was killed often ends by an error itself, with all rows written.
    """
    return not ledger.ended or _kept_until(ledger, following) is not None


def lose(charged: Charged, following: ProcessLedger) -> int:
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


def _trains(charged: Charged, part: Triple) -> bool:
    return cause_in(charged.place(part[0]), part[1]) in TRAINS


def _kept_until(ledger: ProcessLedger, following: ProcessLedger) -> int | None:
    """Begin of the save that the next attempt restored; ``None`` if it restored nothing."""
    saves = [event for row in ledger.rows for event in row.checkpoints if event[0] == SAVE and event[5]]
    restored = [event for row in following.rows for event in row.checkpoints if event[0] == RESTORE and event[5]]
    if not saves or not restored:
        return None
    digests = {event[7] for event in restored} - {""}
    same = [event for event in saves if event[7] in digests]
    return max(event[2] for event in (same or saves))


def take_off(charged: Charged, cut: int) -> None:
    """Take time that another process of the same rank has already off the largest causes."""
    for cause, ns in charged.totals.most_common():
        taken = min(cut, ns)
        charged.totals[cause] -= taken
        cut -= taken


def training_lines(charged: Charged, row: Row) -> Counter[str]:
    """Time of a row in training steps, by the program's line."""
    lines: Counter[str] = Counter()
    for node, phase, ns in row.at:
        place = charged.place(node)
        if cause_in(place, phase) in TRAINS:
            lines[place.line] += ns
    return lines
