"""Judge of the launches of an A/B: when there are enough, and the result. It uses the launches only, no clock.

The same launches give the same answer during the comparison, after an interruption and later from the disk.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.compare.ab.environment import drift_remark, environment_of, order_remark
from perfscope.analyzers.compare.statistics.estimators import (
    BUSY,
    BUSY_SHARE,
    CANDIDATES,
    TAILS,
    Chosen,
    choose,
    location,
)
from perfscope.analyzers.compare.statistics.paired import (
    CONFIRM_LEVEL,
    EARLY_LOOK,
    LOOKS,
    are_apart,
    could_settle,
    effect_of,
    is_promising,
    level_for,
    log_ratios,
    looks_for,
)
from perfscope.analyzers.compare.statistics.verdict import MetricResult, compare_exact, confirmed, from_pairs
from perfscope.analyzers.compare.statistics.warm_up import steady_part
from perfscope.model.documents import comparison as document
from perfscope.model.documents.ab import Decision, Launch, Pair, Pairs

STEP_TIME = "step time"
MOST_REJECTED = 1 / 3
"""Share of pairs without a steady state from which the rest is not representative."""
FEW = f"fewer than {LOOKS[0]} pairs whose launches overlap decide nothing"
EXACT_UNITS = {
    "allocated_bytes.all.peak": ("peak memory allocated", "bytes"),
    "reserved_bytes.all.peak": ("peak memory reserved", "bytes"),
    "peak_bytes_in_use": ("peak memory in use", "bytes"),
    "num_ooms": ("allocations that failed", "count"),
    "torch_compilations": ("compilations by torch.compile", "count"),
}
"""Counter of a launch -> name and unit; lower is better for all of them."""


class AbResult(Struct, frozen=True, kw_only=True):
    """Result of an A/B.

    ``gating``: metrics that may fail a build; ``secondary``: shown metrics that never fail a build.
    """

    gating: tuple[MetricResult, ...]
    secondary: tuple[MetricResult, ...]
    estimator: Chosen
    pairs: int
    confirming: int
    remarks: tuple[str, ...]
    launches: tuple[document.Launch, ...] = ()
    """Launches of all complete pairs, in the order of the phases."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Hardware and software of the launches; facts that differed have all their values."""

    @property
    def step(self) -> MetricResult:
        """Verdict on the step time."""
        return self.gating[0]


class AbJudge:
    """Judge of pairs of launches (`perfscope.profiler.ab.runner.Judge`).

    ``pairs``: the maximum; ``least``: relative change that matters; ``estimator``: statistic of a launch, in place of
    the calibration's choice; ``give_up``: end if all pairs would not be enough, but not before the second of `LOOKS`;
    ``early``: also look at `EARLY_LOOK`.
    """

    def __init__(
        self,
        *,
        pairs: int,
        least: float,
        confirm: bool = True,
        estimator: str | None = None,
        give_up: bool = False,
        early: bool = False,
    ) -> None:
        """``ValueError`` if this number of pairs cannot be compared."""
        self._looks = looks_for(pairs, early=early)
        self._early = early
        self._level = level_for(len(self._looks), early=early)
        self._least = least
        self._confirm = confirm
        self._estimator = estimator
        self._give_up = give_up

    def calibrated(self, pairs: Sequence[Pair]) -> str:
        """Return the estimator and the reason for it."""
        return f"estimator: {self._chosen(pairs).reason()}"

    def look(self, calibration: Sequence[Pair], pairs: Sequence[Pair]) -> Decision:
        """Return whether these pairs settle the comparison; only at the planned looks."""
        if len(pairs) not in self._looks:
            return "go on"
        step = self._step(self._chosen(calibration), pairs)
        if self._confirm and is_promising(step.effect, step.p, least=self._least):
            return "confirm"
        if step.verdict != "inconclusive" or len(pairs) == self._looks[-1]:
            return "stop"
        hopeless = self._give_up and len(pairs) > LOOKS[0] and not self._could_settle(calibration, pairs)
        return "stop" if hopeless else "go on"

    def _could_settle(self, calibration: Sequence[Pair], pairs: Sequence[Pair]) -> bool:
        _, *sides = self._sides(self._chosen(calibration), pairs)
        if not sides[0]:
            return False
        effect = effect_of(log_ratios(*sides), alpha=self._level)
        return could_settle(effect, pairs=self._looks[-1], alpha=self._level, least=self._least)

    def result(self, pairs: Pairs) -> AbResult:
        """Return the result of all pairs."""
        chosen = self._chosen(pairs.calibration)
        first = self._step(chosen, pairs.measured)
        step = first
        if pairs.confirming and is_promising(first.effect, first.p, least=self._least):
            second = self._step(chosen, pairs.confirming, level=CONFIRM_LEVEL)
            pooled = self._step(chosen, (*pairs.measured, *pairs.confirming), level=CONFIRM_LEVEL)
            step = confirmed(first, second, pooled)
        both = (*pairs.measured, *pairs.confirming)
        environment = environment_of(both, step, least=self._least)
        gating = (environment.apply(step), *_exact(both))
        return AbResult(
            gating=gating,
            secondary=tuple(self._secondary(both, chosen.name)),
            estimator=chosen,
            pairs=len(pairs.measured),
            confirming=len(pairs.confirming),
            remarks=(*_remarks(pairs, chosen), *environment.remarks),
            environment=environment.facts,
            launches=tuple(_rows(pairs, chosen.name)),
        )

    def _chosen(self, calibration: Sequence[Pair]) -> Chosen:
        chosen = _chosen(calibration)
        if self._estimator is None:
            return chosen
        share = chosen.others_share if chosen.name == self._estimator else None
        return replace(chosen, name=self._estimator, others_share=share)

    @staticmethod
    def _sides(chosen: Chosen, pairs: Sequence[Pair]) -> tuple[int, list[float], list[float]]:
        """Return the number of pairs that reached a steady state, and the estimate of each launch by arm."""
        usable = [pair for pair in pairs if all(_steady(launch) is not None for launch in pair)]
        sides = [[_located(pair[arm], chosen.name) for pair in usable] for arm in (0, 1)]
        base, head = ([value for value in side if value is not None] for side in sides)
        return len(usable), base, head

    def _step(self, chosen: Chosen, pairs: Sequence[Pair], *, level: float | None = None) -> MetricResult:
        usable, base, head = self._sides(chosen, pairs)
        step = from_pairs(
            STEP_TIME,
            base,
            head,
            alpha=self._level if level is None else level,
            least=self._least,
            estimator=chosen.name,
        )
        if self._early and step.verdict != "inconclusive" and not _enough(base, head):
            step = replace(step, verdict="inconclusive", remarks=(*step.remarks, FEW))
        lost = len(pairs) - usable
        if not lost:
            return step
        why = next(
            steady_part(launch.times_ns()).problem for pair in pairs for launch in pair if _steady(launch) is None
        )
        remarks = (*step.remarks, f"{lost} of {len(pairs)} pairs are not used: {why}")
        if lost > MOST_REJECTED * len(pairs):
            return replace(step, verdict="inconclusive", p=None, remarks=remarks)
        return replace(step, remarks=remarks)

    def _secondary(self, pairs: Sequence[Pair], chosen: str) -> list[MetricResult]:
        """Yield mean and tails of the steps: the estimator does not see effects in a few steps."""
        rows = []
        for name in TAILS:
            if name == chosen:
                continue
            values = [tuple(_located(launch, name) for launch in pair) for pair in pairs]
            whole = [(base, head) for base, head in values if base is not None and head is not None]
            if whole:
                rows.append(
                    from_pairs(
                        f"{STEP_TIME}, {name}",
                        [base for base, _ in whole],
                        [head for _, head in whole],
                        least=self._least,
                        estimator=name,
                    )
                )
        return rows


def _enough(base: Sequence[float], head: Sequence[float]) -> bool:
    """Return whether as few pairs as at the early look may give an answer."""
    return len(base) >= LOOKS[0] or (len(base) >= EARLY_LOOK and are_apart(base, head))


def estimator_for(launches: Sequence[Launch]) -> str:
    """Return the estimator for a machine that is as busy as during ``launches``, without a look at their times.

    So the choice cannot favour a verdict, also where the launches that are judged are the only ones.
    """
    shares = [share for launch in launches if (share := launch.machine.get("others_share")) is not None]
    return BUSY if shares and statistics.median(shares) > BUSY_SHARE else CANDIDATES[0]


def _chosen(pairs: Sequence[Pair]) -> Chosen:
    steady = [tuple(_steady(launch) for launch in pair) for pair in pairs]
    shares = [share for pair in pairs for launch in pair if (share := launch.machine.get("others_share")) is not None]
    return choose(
        [(first, second) for first, second in steady if first is not None and second is not None],
        others_share=statistics.median(shares) if shares else None,
    )


def _steady(launch: Launch) -> tuple[float, ...] | None:
    times = launch.times_ns()
    part = steady_part(times)
    return None if part.problem is not None else times[part.dropped :]


def _located(launch: Launch, estimator: str) -> float | None:
    steady = _steady(launch)
    return None if steady is None else location(steady, estimator)


def _rows(all_pairs: Pairs, estimator: str) -> Iterator[document.Launch]:
    for pairs in (all_pairs.calibration, all_pairs.measured, all_pairs.confirming, all_pairs.profiled):
        for launch in (launch for pair in pairs for launch in sorted(pair, key=lambda launch: launch.slot)):
            yield document.Launch(
                arm=launch.arm,
                phase=launch.phase,
                pair=launch.pair,
                ns=_located(launch, estimator),
                seconds=launch.seconds,
            )


def _exact(pairs: Sequence[Pair]) -> list[MetricResult]:
    """Return the counters that both arms have; none if the arms take different numbers of steps."""
    if not pairs or _steps(pairs, 0) != _steps(pairs, 1):
        return []
    result = []
    for counter, (name, unit) in EXACT_UNITS.items():
        sides = [[pair[arm].exact[counter] for pair in pairs if counter in pair[arm].exact] for arm in (0, 1)]
        if sides[0] or sides[1]:
            result.append(compare_exact(name, sides[0], sides[1], unit=unit))
    return result


def _steps(pairs: Sequence[Pair], arm: int) -> set[int]:
    return {pair[arm].steps_seen for pair in pairs}


def _remarks(pairs: Pairs, chosen: Chosen) -> list[str]:
    both = (*pairs.measured, *pairs.confirming)
    remarks: list[str | None] = []
    if both and _steps(both, 0) != _steps(both, 1):
        taken = [statistics.median(_steps(both, arm)) for arm in (0, 1)]
        remarks.append(
            f"base takes {taken[0]:g} steps and head {taken[1]:g}, so counters of whole launches are not compared"
        )
    loaded = [launch.changed_loaded for pair in both for launch in pair]
    if loaded and all(count == 0 for count in loaded):
        remarks.append(
            "neither arm imported a Python file that differs between the commits: if the program uses them, it "
            "takes them from another installation, and the same code ran twice"
        )
    remarks += dict.fromkeys(launch.remark for pair in both for launch in pair if launch.remark is not None)
    ranks = {launch.ranks for pair in both for launch in pair}
    if ranks - {1}:
        remarks.append(f"{' or '.join(map(str, sorted(ranks)))} ranks: each step is as long as that of the slowest")
    sources = {launch.step_source for pair in both for launch in pair}
    if len(sources) > 1:
        remarks.append(f"steps were found in different ways: {', '.join(sorted(map(str, sources)))}")
    bases = [launch for pair in pairs.calibration for launch in pair] + [base for base, _ in both]
    levels = [_located(launch, chosen.name) for launch in bases]
    remarks.append(drift_remark([value for value in levels if value is not None]))
    ordered = [sorted(pair, key=lambda launch: launch.slot) for pair in both]
    placed = [[_located(launch, chosen.name) for launch in pair] for pair in ordered]
    whole = [(first, second) for first, second in placed if first is not None and second is not None]
    remarks.append(order_remark([first for first, _ in whole], [second for _, second in whole]))
    return [remark for remark in remarks if remark is not None]
