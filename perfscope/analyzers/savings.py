"""The reference time of savings (step, run or span), and the spread of step times."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from perfscope.model.documents.step_time import StepTime, middle, step_time_of
from perfscope.model.finding import ONCE

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.finding import Finding

FEW_STEPS = 10
"""Minimum number of steps for the 10th and 90th percentile; with fewer steps they equal the extremes, so the range is
shown.
"""


SLOW_STEPS = frozenset({"checkpoint_stall", "eval_stall", "slow_steps", "storage_bound"})
"""Rules that find the steps that the program itself makes slow."""

OTHER_STEP = 1.1
"""Savings of ranks whose step differs from the job's by more than this factor are shares of that rank's step."""

SKEWED = 1.25
"""Ratio of mean to median above which the median alone does not describe the steps."""

UNLIKE = 1.5
"""Ratio of the run's other steps to the recorded steps from which these are not representative: a profiler never
shortens a step.
"""


def rank_step_times(analysis: Analysis) -> dict[int | None, StepTime]:
    """Return the step time of each rank; the mean if the program itself makes some steps slow."""
    uneven = any(rule in SLOW_STEPS for rule, _ in analysis.findings())
    windows = {window.rank: (window.duration_ns, window.steps) for window in reversed(analysis.windows)}
    ranks = dict.fromkeys([*(step.rank for step in analysis.steps), *windows])
    times = {
        rank: step_time_of(
            window=windows.get(rank),
            unprofiled=[step.duration_ns for step in analysis.steps if step.rank == rank and not step.traced],
            profiled=[
                step.duration_ns for step in analysis.steps if step.rank == rank and step.traced and not step.compiled
            ],
            uneven=uneven,
            rank=rank,
        )
        for rank in ranks
    }
    return {rank: time for rank, time in times.items() if time is not None}


def step_time(analysis: Analysis) -> StepTime | None:
    """Return the step time that every report of the analysis shows; ``None`` if no step was timed."""
    return middle(rank_step_times(analysis).values())


def step_spread(analysis: Analysis, timed: StepTime) -> Spread | None:
    """Return the spread of the steps of a step time; ``None`` if they were timed together."""
    if timed.of == "window":
        return None
    mine = (step for step in analysis.steps if step.rank == timed.rank and step.traced == (timed.of == "profiled"))
    return Spread.of([step.duration_ns for step in mine if not step.compiled])


WARM = 0.1
"""Largest share of compilation in the account of steps that compile nothing."""


class Reservation(Struct, frozen=True, kw_only=True):
    """Why the recorded steps do not represent the run. Times in ns."""

    why: Literal["unlike", "compiled"]
    """The other steps take longer; or the run compiled for longer than its steps took."""
    recorded_ns: float
    """Median of the recorded steps; for ``compiled``, the compile time."""
    run_ns: float
    """Median of the steps without a profiler; for ``compiled``, the time of all timed steps."""
    warm: bool = True
    """Whether the account is of steps that compile nothing."""


def reservations(analysis: Analysis) -> tuple[Reservation, ...]:
    """Return the reservations that a report shows before the account of the recorded steps."""
    free = [step.duration_ns for step in analysis.steps if not step.traced]
    recorded = [step.duration_ns for step in analysis.steps if step.traced and not step.compiled]
    found = []
    if free and recorded and median(free) >= UNLIKE * median(recorded):
        found.append(Reservation(why="unlike", recorded_ns=median(recorded), run_ns=median(free)))
    torch, jax = analysis.compile.detail, analysis.compile.jax
    compiling = max(0 if torch is None else torch.total_ns, 0 if jax is None else jax.total_ns)
    stepping = sum(free) + sum(step.duration_ns for step in analysis.steps if step.traced)
    stepping = max(stepping, sum(window.duration_ns for window in analysis.windows))
    if compiling > stepping > 0:
        in_steps = sum(sum(account.causes_ns["compilation"]) for account in analysis.accounts)
        in_all = sum(sum(times) for account in analysis.accounts for times in account.causes_ns.values())
        warm = in_steps <= WARM * in_all
        found.append(Reservation(why="compiled", recorded_ns=compiling, run_ns=stepping, warm=warm))
    return tuple(found)


class Share(Struct, frozen=True, kw_only=True):
    """A saving and its reference time, ns."""

    saves_ns: float
    """At most ``of_ns``, unless it is saved only once."""
    of_ns: float | None
    """``None`` if unknown."""
    of: str
    """``'step'``, ``'step of rank 3'``, ``'run'`` or ``'span'`` of the devices; ``ONCE``: ``of_ns`` is the step."""


class Wholes:
    """Reference times of costs: the step time of the report.

    For costs over the whole recording, the span of the devices.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._steps = rank_step_times(analysis)
        self._job = middle(self._steps.values())
        programs = analysis.estimate.programs
        self._modelled_run_ns = programs[0].estimate.step_ns.low if len(programs) == 1 else None
        """Shortest modelled run of the only program, as in the report."""
        self._spans: dict[int | None, int] = {}
        for device in analysis.devices:
            self._spans[device.rank] = max(device.span_ns, self._spans.get(device.rank, 0))
        for account in analysis.accounts:
            self._spans[account.rank] = max(account.whole_ns, self._spans.get(account.rank, 0))

    def share(self, finding: Finding) -> Share | None:
        """Return the saving of a finding and its reference time; ``None`` if no time is known.

        The step is that of the report, unless the affected ranks have a different one (``OTHER_STEP``).
        """
        if finding.once is not None and finding.cost_ns is not None:
            time, _ = self._step(finding.ranks)
            return Share(saves_ns=finding.cost_ns, of_ns=None if time is None else time.ns, of=ONCE)
        if finding.cost_ns_per_step is not None:
            time, of = self._step(finding.ranks)
            saves = finding.cost_ns_per_step
            if finding.untraced_ns_per_step is not None and (time is None or time.of != "profiled"):
                saves = finding.untraced_ns_per_step
            whole = None if time is None else time.ns
            return Share(saves_ns=saves if whole is None else min(saves, whole), of_ns=whole, of=of)
        if finding.cost_ns is None:
            return None
        if finding.run_ns is not None:
            whole = max(finding.run_ns, self._modelled_run_ns or 0)
            return Share(saves_ns=min(finding.cost_ns, whole), of_ns=whole, of="run")
        spans = [span for rank, span in self._spans.items() if not finding.ranks or rank in {*finding.ranks, None}]
        longest = max(spans, default=None)
        return Share(saves_ns=min(finding.cost_ns, longest or finding.cost_ns), of_ns=longest, of="span")

    def _step(self, ranks: Sequence[int]) -> tuple[StepTime | None, str]:
        mine = middle(time for rank, time in self._steps.items() if rank in ranks)
        if mine is None or self._job is None or not ranks:
            return self._job, "step"
        ratio = mine.ns / self._job.ns
        if 1 / OTHER_STEP <= ratio <= OTHER_STEP:
            return self._job, "step"
        return mine, f"step of rank {mine.rank}"


class Spread(Struct, frozen=True, kw_only=True):
    """Median of some durations and their spread: the range, or the 10th to 90th percentile."""

    count: int
    median_ns: float
    low_ns: float
    high_ns: float
    how: str
    """``'min-max'`` or ``'p10-p90'``."""
    mean_ns: float
    """Mean of the durations; far above the median if some of them are much longer than most."""

    @property
    def skewed(self) -> bool:
        """Whether the mean must be shown next to the median."""
        return self.mean_ns >= SKEWED * self.median_ns

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> Spread | None:
        """Return the spread of the durations; ``None`` without durations."""
        if not durations_ns:
            return None
        low, high, how = float(min(durations_ns)), float(max(durations_ns)), "min-max"
        if len(durations_ns) >= FEW_STEPS:
            deciles = quantiles(durations_ns, n=10, method="inclusive")
            low, high, how = deciles[0], deciles[-1], "p10-p90"
        middle, mean = median(durations_ns), fmean(durations_ns)
        return cls(count=len(durations_ns), median_ns=middle, low_ns=low, high_ns=high, how=how, mean_ns=mean)
