"""Hundreds of kernels at once: Benjamini-Hochberg keeps the share of false ones among those named at 5%.

Benjamini & Hochberg, "Controlling the false discovery rate", JRSS B 57 (1995). The probabilities are of paired t
tests: a rank test of ten pairs cannot go low enough to survive the correction for a hundred kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.compare.statistics.paired import effect_of
from perfscope.analyzers.compare.statistics.sequential import Verdict
from perfscope.analyzers.compare.statistics.verdict import KERNEL_LEAST

LEVEL = 0.05
"""Expected share of false ones among the kernels that are named."""
LEAST_SHARE = 0.005
"""Of the step: a kernel below it on both sides cannot explain a change that matters, and each that is tested makes the
others harder to tell."""
LEAST_PAIRS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """One kernel, its time per step summed over its calls. ``q``: its probability, corrected for how many were tested.

    ``kind``: ``changed``, ``new``, ``gone``; ``p``, ``q`` and ``effect`` are ``None`` for the last two.
    """

    name: str
    kind: str
    base: float
    """Median over the launches, in the unit given; 0 if it is new."""
    head: float
    change: float
    """Mean of head less base over the pairs: what it contributes to the change of the step."""
    effect: float | None
    p: float | None
    q: float | None
    verdict: Verdict


def corrected(p: Sequence[float]) -> np.ndarray:
    """q_i = min over j with p_j >= p_i of p_j n / rank_j, at most 1. ``ValueError`` if one is not in [0, 1]."""
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
) -> list[KernelChange]:
    """Kernels that matter, the largest contribution to the step's change first.

    ``kernels``: name -> (base, head), each the kernel's time per step in every launch, pair by pair, 0 where it did not
    run; ``step``: the same of the step. ``ValueError`` if the lengths differ or a time is negative or not finite.
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
            found = effect_of(np.log(head / base))
            effect, p = found.effect, found.p if found.pairs >= LEAST_PAIRS else None
        rows.append((name, base, head, effect, p))
    tested = corrected([p for *_, p in rows if p is not None])
    q_values = iter(tested.tolist())
    changes = []
    for name, base, head, effect, p in rows:
        q = None if p is None else next(q_values)
        changes.append(_change(name, base, head, effect, p, q, least))
    return sorted(changes, key=lambda one: (-abs(one.change), one.name))


def _change(
    name: str, base: np.ndarray, head: np.ndarray, effect: float | None, p: float | None, q: float | None, least: float
) -> KernelChange:
    kind, verdict = "changed", "inconclusive"
    if not base.any():
        kind, verdict = "new", "regression"
    elif not head.any():
        kind, verdict = "gone", "improvement"
    elif q is not None and effect is not None and q < LEVEL and abs(np.log1p(effect)) >= np.log1p(least):
        verdict = "regression" if effect > 0 else "improvement"
    return KernelChange(
        name=name,
        kind=kind,
        base=float(np.median(base)),
        head=float(np.median(head)),
        change=float(np.mean(head - base)),
        effect=effect,
        p=p,
        q=q,
        verdict=verdict,  # type: ignore[arg-type]
    )
