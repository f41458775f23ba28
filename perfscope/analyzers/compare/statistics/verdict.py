"""The result of comparing one metric: values, effect, interval, verdict, and how that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from perfscope.analyzers.compare.statistics.paired import Effect, effect_of, log_ratios
from perfscope.analyzers.compare.statistics.sequential import MOST_PAIRS, Better, Verdict, agrees, judge, pairs_needed

Known = Literal["paired launches", "exact", "single captures", "sets of runs"]
"""How a verdict is known. ``single captures``, ``sets of runs`` (launches that are no pairs, or too few of them): low
confidence, and it never fails a build."""

STEP_LEAST = 0.02
"""Change of the step time that matters: twice the usual 1% between launches of one program."""
KERNEL_LEAST = 0.05
"""Of one kernel: there are hundreds, and a step holds what matters of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """One metric of head against base. ``effect`` and its interval are relative: 0.03 is 3% more than the base."""

    name: str
    unit: str
    """``ns``, ``bytes``, ``FLOP``, ``count`` or ``text``."""
    better: Better
    verdict: Verdict
    known: Known
    base: float | str | None
    """Typical value: the median of the launches' values; ``None`` if there is none."""
    head: float | str | None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    """Of the interval: 0.95 with one look, more with several."""
    p: float | None = None
    p_sign_flip: float | None = None
    robust: float | None = None
    """Hodges-Lehmann estimate of the effect."""
    pairs: int = 0
    estimator: str | None = None
    """What stands for a launch."""
    least: float | None = None
    """The smallest change that matters, relative."""
    needed_pairs: int | None = None
    """Pairs in all that would settle what is inconclusive, by the spread so far."""
    confirmed: bool | None = None
    """Whether a second batch agreed; ``None``: none was run."""
    remarks: tuple[str, ...] = ()

    @property
    def gates(self) -> bool:
        """Whether the verdict may fail a build."""
        return self.known in ("paired launches", "exact")

    def to_json(self) -> dict[str, Any]:
        """As plain values; a number that is not finite is ``None``."""
        values = asdict(self)
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        } | {"remarks": list(self.remarks), "gates": self.gates}


def from_pairs(
    name: str,
    base: Sequence[float],
    head: Sequence[float],
    *,
    alpha: float = 0.05,
    least: float = STEP_LEAST,
    estimator: str,
    unit: str = "ns",
    better: Better = "lower",
) -> MetricResult:
    """A metric from one number a launch, ``base[i]`` and ``head[i]`` being a pair; ``alpha``: the level of this look.

    Without a pair the verdict is inconclusive. ``ValueError`` where a number is not positive, or pairs are not pairs.
    """
    ratios = log_ratios(base, head)
    empty = MetricResult(
        name=name,
        unit=unit,
        better=better,
        verdict="inconclusive",
        known="paired launches",
        base=_median(base),
        head=_median(head),
        estimator=estimator,
        least=least,
        pairs=len(base),
    )
    if not ratios.size:
        return replace(empty, remarks=("no pair of launches can be used",))
    effect = effect_of(ratios, alpha=alpha)
    verdict = judge(effect, alpha=alpha, least=least, better=better)
    needed = pairs_needed(effect, least=least, alpha=alpha) if verdict == "inconclusive" else None
    if needed is not None and needed <= effect.pairs:
        needed = None  # the interval is narrow enough: it lies across the bound, and a few more may not move it
    return replace(
        empty,
        verdict=verdict,
        effect=effect.effect,
        low=effect.low,
        high=effect.high,
        level=1 - alpha,
        p=effect.p,
        p_sign_flip=effect.p_sign_flip,
        robust=effect.robust,
        needed_pairs=needed,
        remarks=tuple(_remarks(effect, verdict, alpha=alpha, least=least, needed=needed)),
    )


def confirmed(first: MetricResult, second: MetricResult, pooled: MetricResult) -> MetricResult:
    """What stands after a second batch: the first verdict with the numbers of both, or inconclusive.

    ``pooled``: both batches as one. Its interval leans a little toward the first batch, which was chosen for its size.
    """
    effects = [_effect_like(one) for one in (first, second)]
    if None in effects or first.verdict not in ("regression", "improvement"):
        return replace(first, confirmed=False)
    before, after = effects
    assert before is not None
    assert after is not None
    large = pooled.effect is not None and abs(math.log1p(pooled.effect)) >= math.log1p(pooled.least or 0)
    if agrees(before, after, first.verdict, better=first.better) and large:
        return replace(
            pooled,
            verdict=first.verdict,
            confirmed=True,
            needed_pairs=None,
            remarks=(
                *pooled.remarks,
                f"confirmed by a second batch: {first.effect:+.1%} in {first.pairs} pairs, "
                f"then {second.effect:+.1%} in {second.pairs}",
            ),
        )
    return replace(
        pooled,
        verdict="inconclusive",
        confirmed=False,
        remarks=(
            *pooled.remarks,
            f"the second batch did not confirm it: {first.effect:+.1%} in {first.pairs} pairs, "
            f"then {second.effect:+.1%} in {second.pairs}",
        ),
    )


def _effect_like(result: MetricResult) -> Effect | None:
    if result.effect is None or result.robust is None:
        return None
    return Effect(
        pairs=result.pairs,
        alpha=1 - (result.level or 0.95),
        effect=result.effect,
        spread=None,
        low=result.low,
        high=result.high,
        p=result.p,
        p_sign_flip=result.p_sign_flip,
        robust=result.robust,
        two_groups=None,
    )


def _remarks(effect: Effect, verdict: Verdict, *, alpha: float, least: float, needed: int | None) -> list[str]:
    said = []
    if effect.two_groups is not None:
        low, high = effect.two_groups
        said.append(
            f"the pairs fall into two groups, around {low:+.1%} and {high:+.1%}: another algorithm or placement is "
            "picked from launch to launch; pin it, or take more pairs"
        )
    if verdict != "inconclusive":
        if effect.p is not None and effect.p < alpha and effect.p_sign_flip is not None and effect.p_sign_flip > 0.05:
            said.append(f"sign flips, which assume no distribution, give p {effect.p_sign_flip:.2g}")
        return said
    if effect.p is None:
        said.append("one pair says nothing of the spread: take at least six")
    elif effect.p < alpha:
        said.append(f"it changed, but by less than the {least:.1%} that matters, or it cannot be told")
    if needed is not None and needed > MOST_PAIRS:
        said.append("a quieter machine or longer launches help more than so many pairs")
    return said


def _median(values: Sequence[float]) -> float | None:
    import statistics

    return float(statistics.median(values)) if len(values) else None
