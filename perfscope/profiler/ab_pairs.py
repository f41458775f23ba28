"""Launches of an A/B and their pairs, as plain values: what is kept on disk, and what is judged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Arm = Literal["base", "head"]
Phase = Literal["warm", "calibrate", "measure", "confirm", "profile"]
Decision = Literal["go on", "stop", "confirm"]

WORKTREES_PREFIX = "perfscope-ab-"
"""What the folder begins with that holds the worktrees of a comparison, each named by its arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one launch gave. ``problem``: why its times are of no use, or ``None``."""

    arm: Arm
    phase: Phase
    pair: int
    """Number of the pair in its phase."""
    slot: int
    """0: it ran first in its pair, 1: second."""
    attempt: int = 0
    """Of the pair: it runs again where a launch of it failed."""
    seconds: float
    """From start to end of the process."""
    code: int
    began_unix_s: float = 0.0
    step_source: str | None = None
    steps_seen: int = 0
    step_ns: tuple[int, ...] = ()
    """Duration of each step after the first two, in order, as the host saw it."""
    windows_ns: tuple[int, ...] = ()
    """Where a device works on its own: duration of windows of ``window_steps`` steps, waited for at both ends."""
    window_steps: int = 0
    exact: Mapping[str, int] = field(default_factory=dict)
    """Counters that the program's speed does not change."""
    strays: tuple[str, ...] = ()
    """Modules that came from the checkout, not from the arm's folder."""
    changed_loaded: int | None = None
    """Of the Python files that differ between the commits, how many it imported; ``None``: nobody looked."""
    ranks: int = 1
    """Processes whose steps its times are made of: each step is as long as that of the slowest."""
    remark: str | None = None
    """What to know of its times."""
    run: str | None = None
    """Of a profiled launch: its run folder, relative to the comparison's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it ran on and with, by an allow-list."""
    machine: Mapping[str, float] = field(default_factory=dict)
    """Counters of the machine before, while and after it ran (`ab_machine`)."""
    problem: str | None = None

    def times_ns(self) -> tuple[float, ...]:
        """Times per step, in order: of the windows where there are some, else of the single steps."""
        if self.windows_ns and self.window_steps > 0:
            return tuple(window / self.window_steps for window in self.windows_ns)
        return tuple(map(float, self.step_ns))


Pair = tuple[Launch, Launch]
"""Base and head; of a calibration the one that ran first, and second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The pairs of each phase, in order; of each pair its last attempt that succeeded."""

    calibration: tuple[Pair, ...]
    measured: tuple[Pair, ...]
    confirming: tuple[Pair, ...]
    profiled: tuple[Pair, ...] = ()
    lost: tuple[Launch, ...] = ()
    """Profiled launches that gave nothing; they cost the causes, not the verdict."""


def pairs_of(launches: Sequence[Launch], phase: Phase) -> tuple[Pair, ...]:
    """The whole pairs of a phase by number: both launches of one attempt, without a problem."""
    found: dict[int, Pair] = {}
    for first, second in itertools.pairwise(launches):
        partners = (first.phase, first.pair, first.attempt) == (second.phase, second.pair, second.attempt)
        if first.phase != phase or not partners or (first.slot, second.slot) != (0, 1):
            continue
        if first.problem is None and second.problem is None:
            swap = phase != "calibrate" and first.arm == "head"
            found[first.pair] = (second, first) if swap else (first, second)
    return tuple(found[pair] for pair in sorted(found))
