"""Where an A/B stands, and how long it takes from here at most: everything that may still come is counted."""

from __future__ import annotations

from perfscope.profiler.ab_pairs import Phase, pairs_of
from perfscope.profiler.ab_state import State

LEAST_CONFIRMING = 6
"""Pairs of the second batch: fewer cannot reach the level with a usual spread."""
UNSEEN_PROFILE = 2.0
"""A launch under capture takes about this many times another, until one was seen: profilers load and write files."""


def progress(state: State, phase: Phase, pair: int) -> str:
    """The line before pair ``pair`` of a phase: its number, the time left, and what of it only a change asks for."""
    measured = len(pairs_of(state.launches, "measure"))
    of = {"calibrate": state.plan.calibration, "measure": state.plan.pairs, "profile": state.plan.profile}
    of["confirm"] = max(measured, LEAST_CONFIRMING)
    names = {"calibrate": "base against itself: pair", "confirm": "confirming: pair", "profile": "profiling: pair"}
    sure, maybe = seconds_left(state, phase, pair)
    line = f"{names.get(phase, 'pair')} {pair + 1} of {of[phase]}, {duration(sure)} left at most"
    return f"{line}, and {duration(maybe)} to confirm a change" if maybe else line


def seconds_left(state: State, phase: Phase, pair: int) -> tuple[float, float]:
    """Seconds from before this pair to the end: without a confirmation, and what one would take besides.

    By the median launch so far. A confirmation takes as many pairs as were measured, which may be all.
    """
    plan = state.plan
    plain = _median([one.seconds for one in state.launches if one.problem is None and one.phase != "profile"])
    seen = [one.seconds for one in state.launches if one.problem is None and one.phase == "profile"]
    profiled = _median(seen) if seen else UNSEEN_PROFILE * plain
    profiling = plan.profile - (pair if phase == "profile" else 0)
    left = 0
    maybe = 0
    if phase == "calibrate":
        left = plan.calibration - pair + plan.pairs
    elif phase == "measure":
        left = plan.pairs - pair
    elif phase == "confirm":
        left = max(len(pairs_of(state.launches, "measure")), LEAST_CONFIRMING) - pair
    if phase in ("calibrate", "measure") and plan.confirm:
        maybe = max(plan.pairs, LEAST_CONFIRMING)
    return 2 * left * plain + 2 * profiling * profiled, 2 * maybe * plain


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``1.6 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
