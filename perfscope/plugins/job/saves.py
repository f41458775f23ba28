"""Asynchronous saves and the steps that were slow while they were stored: staging, cores, the interpreter, bandwidth.

The call of such a save stages a copy and returns; threads or processes store it while steps go on. The recorder samples
what the thread of the steps does meanwhile; compared with the steps of rows without a save, the time that these steps
took longer is divided by the system's own clocks into waiting for a core, running longer, and waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

from msgspec import Struct

from perfscope.plugins.job.charge import COLUMN, Charged
from perfscope.plugins.job.steps import OF_STEPS
from perfscope.profiler.session.checkpoints import SAVE

SLOWER = 1.1
"""Step time while a save is stored over the usual one: less is noise."""
LATE_SHARE = 0.05
"""Increase of the share of the time that samples waited for the interpreter, from which the steps waited for it too: a
whole switch interval (5 ms) at each of ten samples a second."""

Why = Literal[
    "waiting for a core",
    "waiting for the interpreter's lock",
    "running longer: memory bandwidth or caches",
    "waiting for other ranks, a lock or the disk",
]


class AsyncSaves(Struct, frozen=True, kw_only=True):
    """The asynchronous saves at one line; times in ns, medians over saves and ranks."""

    line: str
    saves: int
    """Number over all ranks."""
    staging_ns: float
    """The call, in which no step runs."""
    storing_ns: float
    """From its end until all was stored."""
    slowed: int
    """Saves while which steps took longer."""
    extra_ns: float
    """Time that the steps took longer, median over the slowed ones."""
    step_ns: float
    """Step time while they were stored, over the slowed ones."""
    usual_ns: float
    """Step time otherwise."""
    why: Why | None
    """Most frequent largest part of that time; ``None`` without such saves."""


class OneSave(NamedTuple):
    """One save of one rank."""

    line: str
    staging_ns: int
    storing_ns: int
    step_ns: float
    usual_ns: float
    extra_ns: float
    """0: the steps were as fast as usual."""
    parts: Counter[Why]


class _Usual(NamedTuple):
    """Per step in rows without a save, ns; ``late``: share of the time that samples were late."""

    step: float
    ran: float
    core: float
    late: float


def saves_of(charged: Charged) -> list[OneSave]:
    """The stored asynchronous saves of a process that has steps without one."""
    usual = _usual(charged)
    if usual is None:
        return []
    rows = charged.ledger.rows
    storing = {window[0]: window[1:] for row in rows for window in row.storing}
    saves = []
    for row in rows:
        for kind, _, begin, end, line, ok, stored, _ in row.checkpoints:
            if kind == SAVE and ok and begin in storing:
                saves.append(_one(line, end - begin, max(0, stored - end), storing[begin], usual))
    return saves


def _one(line: str, staging_ns: int, storing_ns: int, window: tuple[int, int, int, int, int], usual: _Usual) -> OneSave:
    steps, wall, ran, core, late = window
    shortest = wall / (steps + 1)  # a step may have begun before the window, and another ended after it
    done = steps + 0.5
    extra = wall - usual.step * done
    if shortest < SLOWER * usual.step or extra <= 0:
        return OneSave(line, staging_ns, storing_ns, wall / done, usual.step, 0.0, Counter())
    waited = max(0.0, core - usual.core * done)
    longer = max(0.0, ran - usual.ran * done)
    blocked = max(0.0, extra - waited - longer)
    locked = late / wall - usual.late >= LATE_SHARE
    parts: Counter[Why] = Counter()
    parts["waiting for a core"] = round(waited)
    parts["running longer: memory bandwidth or caches"] = round(longer)
    other: Why = "waiting for the interpreter's lock" if locked else "waiting for other ranks, a lock or the disk"
    parts[other] = round(blocked)
    return OneSave(line, staging_ns, storing_ns, wall / done, usual.step, extra, parts)


def _usual(charged: Charged) -> _Usual | None:
    rows = charged.ledger.rows
    of_steps = charged.by_row[1:, [COLUMN[cause] for cause in sorted(OF_STEPS)]].sum(axis=1)
    plain = [number for number, row in enumerate(rows) if row.steps and not row.checkpoints][1:-1]
    values = []
    for number in plain:
        row = rows[number]
        length = (row.end or row.begin) - row.begin
        late = row.late[0] / length if length else 0.0
        values.append((int(of_steps[number]) / row.steps, row.ran / row.steps, row.core / row.steps, late))
    if not values:
        return None
    return _Usual(*(median(column) for column in zip(*values, strict=True)))


def async_saves(saves: Sequence[OneSave]) -> tuple[AsyncSaves, ...]:
    """The saves by line, those that cost most first."""
    by_line: dict[str, list[OneSave]] = defaultdict(list)
    for save in saves:
        by_line[save.line].append(save)
    found = [_of_line(line, some) for line, some in by_line.items()]
    return tuple(sorted(found, key=lambda row: -(row.staging_ns * row.saves + row.extra_ns * row.slowed)))


def _of_line(line: str, saves: Sequence[OneSave]) -> AsyncSaves:
    slowed = [save for save in saves if save.extra_ns]
    most = Counter(save.parts.most_common(1)[0][0] for save in slowed)
    return AsyncSaves(
        line=line,
        saves=len(saves),
        staging_ns=median(save.staging_ns for save in saves),
        storing_ns=median(save.storing_ns for save in saves),
        slowed=len(slowed),
        extra_ns=median(save.extra_ns for save in slowed) if slowed else 0.0,
        step_ns=median(save.step_ns for save in slowed) if slowed else 0.0,
        usual_ns=median(save.usual_ns for save in saves),
        why=most.most_common(1)[0][0] if most else None,
    )
