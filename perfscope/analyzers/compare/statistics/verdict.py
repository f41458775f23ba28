"""The result of comparing one metric: values, effect, interval, verdict, and its evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from perfscope.analyzers.compare.statistics.paired import (
    MOST_PAIRS,
    Better,
    Effect,
    Verdict,
    agrees,
    effect_of,
    judge,
    log_ratios,
    pairs_needed,
)
from perfscope.model.documents.comparison import Kernel, MetricValues

Known = Literal["paired launches", "exact", "single captures", "sets of runs"]
"""Evidence for a verdict. ``single captures`` and ``sets of runs`` (launches without pairs, or too few of them) have
low confidence and never fail a build.
"""

STEP_LEAST = 0.02
"""Change of the step time that matters: twice the usual 1% between launches of one program."""
KERNEL_LEAST = 0.05
"""Change of one kernel that matters; a step has hundreds, and the step time has the sum."""


class MetricResult(MetricValues, frozen=True, kw_only=True):
    """A metric as it was judged."""

    better: Better
    known: Known

    @property
    def gates(self) -> bool:
        """Whether the verdict may fail a build."""
        return self.known in ("paired launches", "exact")

    def to_json(self) -> dict[str, Any]:
        """Return plain values; a number that is not finite is ``None``."""
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
    """Return a metric from one number per launch; ``base[i]`` and ``head[i]`` are a pair.

    ``alpha``: level of this look.

    Without a pair the verdict is inconclusive. ``ValueError`` if a number is not positive, or the sides differ in
    length.
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
        needed = None  # The interval is narrow enough but crosses the bound, so a few more pairs may not move it.
    before, after = levels(base, head, effect.effect)
    return replace(
        empty,
        base=before,
        head=after,
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


def levels(base: Sequence[float], head: Sequence[float], effect: float | None) -> tuple[float | None, float | None]:
    """Return typical values of both sides that differ by the ``effect`` that was judged.

    Medians of the sides alone drift with the machine, and a faster head may even have the larger median. The level
    comes from both sides, the difference from the effect.
    """
    before, after = _median(base), _median(head)
    if before is None or after is None or effect is None:
        return before, after
    level = math.sqrt(before * after)
    return level / math.sqrt(1 + effect), level * math.sqrt(1 + effect)


def confirmed(first: MetricResult, second: MetricResult, pooled: MetricResult) -> MetricResult:
    """Return the result after a second batch: the direction of both with the numbers of both, or inconclusive.

    ``pooled``: both batches as one, at ``CONFIRM_LEVEL``. Its interval leans slightly toward the first batch, which was
    selected for its size.
    """
    if first.effect is None or second.effect is None or pooled.effect is None or pooled.p is None:
        return replace(pooled, verdict="inconclusive", confirmed=False)
    agree = agrees(first.effect, second.effect, pooled.p, least=pooled.least or 0.0)
    verdict: Verdict = "inconclusive"
    if agree:
        verdict = "regression" if (pooled.effect > 0) is (pooled.better == "lower") else "improvement"
    return replace(
        pooled,
        verdict=verdict,
        confirmed=agree,
        needed_pairs=None if agree else pooled.needed_pairs,
        remarks=(
            *pooled.remarks,
            f"{'confirmed by a second batch' if agree else 'the second batch did not confirm it'}: "
            f"{first.effect:+.1%} in {first.pairs} pairs, then {second.effect:+.1%} in {second.pairs}",
        ),
    )


def _remarks(effect: Effect, verdict: Verdict, *, alpha: float, least: float, needed: int | None) -> list[str]:
    remarks = []
    if effect.two_groups is not None:
        low, high = effect.two_groups
        remarks.append(
            f"the pairs fall into two groups, around {low:+.1%} and {high:+.1%}: another algorithm or placement is "
            "picked from launch to launch; pin it, or take more pairs"
        )
    if verdict != "inconclusive":
        if effect.p is not None and effect.p < alpha and effect.p_sign_flip is not None and effect.p_sign_flip > 0.05:
            remarks.append(f"sign flips, which assume no distribution, give p {effect.p_sign_flip:.2g}")
        return remarks
    if effect.p is None:
        remarks.append("one pair has no spread: take at least six")
    elif effect.p < alpha:
        remarks.append(f"it changed, but possibly by less than the {least:.1%} that matters")
    if needed is not None and needed > MOST_PAIRS:
        remarks.append("a quieter machine or longer launches help more than so many pairs")
    return remarks


def _median(values: Sequence[float]) -> float | None:
    import statistics

    return float(statistics.median(values)) if len(values) else None


# Metrics that do not depend on chance: peak memory, FLOPs, launches, syncs, graph breaks, fingerprints.
#
# They are compared as they are, without statistics: one value on each side is enough. If launches of one side differ,
# the metric was not deterministic after all, and only ranges that do not overlap count.


class Least(Struct, frozen=True, kw_only=True):
    """The smallest change that counts: both relative to the base and absolute, in the metric's unit."""

    relative: float
    absolute: float


LEAST = {
    # An allocator rounds to 512 bytes or 2 MiB, and the order of two frees moves a peak by one block.
    "bytes": Least(relative=0.001, absolute=1 << 20),
    "FLOP": Least(relative=0.001, absolute=1),
    # One more host sync or graph break per step is the change to find. A recording may lack the first or the last event
    # of those in every step (59 reads in 60 steps). An event in every other step, or in two of the three recorded
    # steps, depends on which steps were recorded.
    "count": Least(relative=0.0, absolute=0.75),
}
"""Least change by unit."""


def compare_exact(
    name: str,
    base: Sequence[float],
    head: Sequence[float],
    *,
    unit: str,
    better: Better = "lower",
) -> MetricResult:
    """Compare a deterministic metric. ``base`` and ``head``: its value in each launch; one is enough.

    ``unit``: a key of ``LEAST``, else ``ValueError``. A side without a value, or with a value that is not finite, is
    inconclusive: not evaluated.
    """
    if unit not in LEAST:
        raise ValueError(f"{unit}: not one of {', '.join(LEAST)}")
    sides = [[float(value) for value in side if math.isfinite(value)] for side in (base, head)]
    before, after = (statistics.median(side) if side else None for side in sides)
    remarks = []
    verdict: Verdict = "inconclusive"
    effect = None
    if before is None or after is None:
        remarks.append(f"not recorded in {' and '.join(which for which, side in _named(sides) if not side)}")
    else:
        effect = after / before - 1 if before else (0.0 if after == before else None)
        remarks += [
            f"differs between launches of {which}: {min(side):g} to {max(side):g}"
            for which, side in _named(sides)
            if min(side) != max(side)
        ]
        verdict = _verdict(sides[0], sides[1], LEAST[unit], better)
        if not before and after:
            remarks.append(f"from none to {after:g}")
    return MetricResult(
        name=name,
        unit=unit,
        better=better,
        verdict=verdict,
        known="exact",
        base=before,
        head=after,
        effect=effect,
        pairs=min(len(sides[0]), len(sides[1])),
        least=LEAST[unit].relative,
        remarks=tuple(remarks),
    )


def compare_text(name: str, base: str | None, head: str | None) -> MetricResult:
    """Compare fingerprints: equal means no change; different is neither better nor worse, so it is inconclusive."""
    remarks: tuple[str, ...] = ()
    verdict: Verdict = "no change"
    if base is None or head is None:
        verdict, remarks = "inconclusive", ("not recorded in both",)
    elif base != head:
        verdict, remarks = "inconclusive", ("it differs: whether for better or worse, the other metrics say",)
    return MetricResult(
        name=name,
        unit="text",
        better="lower",
        verdict=verdict,
        known="exact",
        base=base,
        head=head,
        remarks=remarks,
    )


def _named(sides: Sequence[list[float]]) -> list[tuple[str, list[float]]]:
    return list(zip(("base", "head"), sides, strict=True))


def _verdict(base: list[float], head: list[float], least: Least, better: Better) -> Verdict:
    """Return the verdict from the gap between the ranges; for single values, from their difference."""
    if min(head) > max(base):
        gap, larger = min(head) - max(base), True
    elif max(head) < min(base):
        gap, larger = min(base) - max(head), False
    elif min(base) == max(base) and min(head) == max(head):
        return "no change"
    else:
        return "inconclusive"
    if gap < max(least.absolute, least.relative * abs(statistics.median(base))):
        return "no change"
    return "regression" if larger is (better == "lower") else "improvement"


# Hundreds of kernels at once: Benjamini-Hochberg keeps the share of false positives among the named kernels at 5%.
#
# Benjamini & Hochberg, "Controlling the false discovery rate", JRSS B 57 (1995). The probabilities are from paired t
# tests: a rank test of ten pairs cannot reach the values that the correction for a hundred kernels needs.


LEVEL = 0.05
"""Expected share of false positives among the named kernels."""
LEAST_SHARE = 0.005
"""Share of the step: a kernel below it on both sides cannot explain a change that matters, and each tested kernel makes
the others harder to detect.
"""
LEAST_PAIRS = 4


def corrected(p: Sequence[float]) -> np.ndarray:
    """Return q_i = min over j with p_j >= p_i of p_j n / rank_j, at most 1. ``ValueError`` if one is not in [0, 1]."""
    values = np.asarray(p, float)
    if values.size and not (np.all(values >= 0) and np.all(values <= 1)):
        raise ValueError("a probability is not between 0 and 1")
    order = np.argsort(values)
    ranked = values[order] * values.size / np.arange(1, values.size + 1)
    corrected_values = np.empty_like(values)
    corrected_values[order] = np.minimum.accumulate(ranked[::-1])[::-1]
    return np.asarray(np.minimum(corrected_values, 1.0))


def judge_many(
    kernels: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    step: tuple[Sequence[float], Sequence[float]],
    *,
    least: float = KERNEL_LEAST,
) -> list[Kernel]:
    """Return kernels that matter, the largest contribution to the step's change first.

    ``kernels``: name -> (base, head), each the kernel's time per step in every launch, pair by pair, 0 if it did not
    run; ``step``: the same for the step. ``ValueError`` if the lengths differ or a time is negative or not finite.
    """
    step_time = max(float(np.median(side)) if len(side) else 0.0 for side in step)
    rows: list[tuple[str, np.ndarray, np.ndarray, float | None, float | None]] = []
    for name, sides in kernels.items():
        base, head = (np.asarray(side, float) for side in sides)
        if base.shape != head.shape or base.size != len(step[0]):
            raise ValueError(f"{name}: {base.size} and {head.size} launches, the step has {len(step[0])}")
        if not all(np.all(np.isfinite(side)) and np.all(side >= 0) for side in (base, head)):
            raise ValueError(f"{name}: a time is negative or not a number")
        if not base.size or max(np.median(base), np.median(head)) < LEAST_SHARE * step_time:
            continue
        p = effect = None
        if np.all(base > 0) and np.all(head > 0):
            result = effect_of(np.log(head / base))
            effect, p = result.effect, result.p if result.pairs >= LEAST_PAIRS else None
        rows.append((name, base, head, effect, p))
    tested = corrected([p for *_, p in rows if p is not None])
    q_values = iter(tested.tolist())
    changes = []
    for name, base, head, effect, p in rows:
        q = None if p is None else next(q_values)
        changes.append(_change(name, base, head, effect, p, q, least))
    return sorted(changes, key=lambda change: (-abs(change.change_ns), change.name))


def _change(
    name: str, base: np.ndarray, head: np.ndarray, effect: float | None, p: float | None, q: float | None, least: float
) -> Kernel:
    kind: Literal["changed", "new", "gone"] = "changed"
    verdict: Verdict = "inconclusive"
    if not base.any():
        kind, verdict = "new", "regression"
    elif not head.any():
        kind, verdict = "gone", "improvement"
    elif q is not None and effect is not None and q < LEVEL and abs(np.log1p(effect)) >= np.log1p(least):
        verdict = "regression" if effect > 0 else "improvement"
    before, after = levels(base.tolist(), head.tolist(), effect)
    before, after = before or 0.0, after or 0.0
    return Kernel(
        name=name,
        kind=kind,
        base_ns=before,
        head_ns=after,
        change_ns=after - before,
        effect=effect,
        p=p,
        q=q,
        verdict=verdict,
    )
