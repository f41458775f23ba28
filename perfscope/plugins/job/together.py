"""Ranks compared with each other: which rank causes a change and which wait, which are slow or silent."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec
from msgspec import Struct

from perfscope.plugins.job.steps import RankState, StepChange

CAUSES_HALF = 0.5
"""Share of a change that must be a rank's own time so that the rank caused it."""
SLOW = 1.1
"""Own time per step over the median of the other ranks."""
LEAST_OF_STEP = 0.03
"""The same difference as a share of the longest own time of a step: less is noise on a shared machine."""
SILENT_S = 150.0
"""Time without a row while other ranks write some: rows come every 2 to 60 seconds."""


class RankNote(Struct, frozen=True, kw_only=True):
    """A rank that differs from the others."""

    rank: int
    host: str
    what: Literal["slow", "silent", "killed"]
    """``silent``: it writes no rows and may be dead; ``killed``: its last process was killed, and others ended."""
    own_ns: float | None
    """Time per step in which a slow rank did not wait for others."""
    others_ns: float | None
    """The same, median of the other ranks."""
    since_ns: int
    """Last row of a silent or killed rank, since 1970; else 0."""


def joined_changes(changes: Sequence[StepChange]) -> list[StepChange]:
    """The changes that are not an effect of another rank's, with the ranks that wait for each, by time.

    Ranks that change at the same time wait for those whose own time changed by half of it; a wait for data may shrink
    meanwhile. If there are no such ranks, all stay: on a GPU the waits are on the device, and a recording shows who is
    late.
    """
    left = sorted(changes, key=lambda change: change.unix_ns)
    found = []
    while left:
        first = left[0]
        group = [first, *(other for other in left[1:] if _together(first, other))]
        left = [change for change in left if change not in group]
        lead = max(group, key=lambda change: abs(change.own_ns))
        causing = [change for change in group if _causes(change, lead)]
        if not causing:
            found += group
            continue
        ranks = {change.rank for change in causing}
        waits = tuple(sorted({change.rank for change in group if change.rank is not None} - ranks))
        found += [msgspec.structs.replace(change, waits=waits) for change in causing]
    return sorted(found, key=lambda change: change.unix_ns)


def _causes(change: StepChange, lead: StepChange) -> bool:
    """Whether a rank's own time explains its change, in the direction of the largest own change of the group."""
    size, direction = abs(change.after_ns - change.before_ns), 1 if lead.own_ns > 0 else -1
    own = change.own_ns * direction
    return own >= CAUSES_HALF * size and own >= CAUSES_HALF * CAUSES_HALF * abs(lead.own_ns)


def rank_notes(ranks: Sequence[RankState]) -> tuple[RankNote, ...]:
    """Slow, silent and killed ranks, by rank; empty for a job of one rank."""
    known = [state for state in ranks if state.rank is not None]
    if len(known) < 2:
        return ()
    newest = max(state.last_ns for state in known)
    longest = max((state.own_ns or 0.0 for state in known), default=0.0)
    notes = []
    for state in known:
        others = [other.own_ns for other in known if other is not state and other.own_ns is not None]
        typical = median(others) if others else None
        silent = not state.ended and newest - state.last_ns > SILENT_S * 1e9
        if silent:
            ended = any(other.ended for other in known)
            notes.append(_note(state, "killed" if ended else "silent", None, since_ns=state.last_ns))
        elif state.own_ns is not None and typical is not None:
            more = state.own_ns - typical
            if state.own_ns >= SLOW * typical and more >= LEAST_OF_STEP * longest:
                notes.append(_note(state, "slow", typical, since_ns=0))
    return tuple(notes)


def _note(
    state: RankState, what: Literal["slow", "silent", "killed"], others_ns: float | None, *, since_ns: int
) -> RankNote:
    assert state.rank is not None
    own_ns = state.own_ns if what == "slow" else None
    return RankNote(rank=state.rank, host=state.host, what=what, own_ns=own_ns, others_ns=others_ns, since_ns=since_ns)


def _together(first: StepChange, other: StepChange) -> bool:
    apart = abs(first.unix_ns - other.unix_ns)
    return other.rank != first.rank and apart <= 2 * max(first.within_ns, other.within_ns)
