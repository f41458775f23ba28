"""The step time of two sets of launches: pairs where they ran in turns, else Welch's test, which fails no build.

Launches of one arm after those of the other cannot be told from a machine that became slower meanwhile: simulated with
a drift of 2%, two sets of ten "differ" in 41 of 100 comparisons of a program with itself. Launches in turns take the
drift out, as in ``compare --ab``; so do sets whose times of recording show that they ran in turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.compare import student
from perfscope.analyzers.compare.sequential import LEAST_CONFIRMING, Verdict
from perfscope.analyzers.compare.verdict import STEP_LEAST, MetricResult, from_pairs

LEAST_GATING = LEAST_CONFIRMING
"""Pairs from which on a verdict may fail a build: with five, no arrangement of signs has a probability below 5%."""
MOST_ALONE = 0.2
"""Share of launches without a partner up to which the sets ran in turns: one that failed, or was one too many."""
LEAST_EACH_FIRST = 0.25
"""Share of pairs in which each arm must have run first: a second launch may be slower for being the second."""
ALPHA = 0.05
ESTIMATOR = "median of the steady steps of a launch (not calibrated)"

NOT_IN_TURNS = (
    "base and head did not run in turns: a machine that became slower meanwhile looks the same, so it fails no build"
)
SAME_ORDER = (
    "one side ran first in nearly all pairs: what running second costs is taken for the change, so it fails no build; "
    "let each go first in half of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Which launches are pairs: places in the lists of base and head, in the order they ran."""

    pairs: tuple[tuple[int, int], ...]
    alone: int
    """Launches without a partner."""
    base_first: int
    """Pairs in which base ran first."""

    @property
    def interleaved(self) -> bool:
        """Whether the two sets ran in turns."""
        return bool(self.pairs) and self.alone <= MOST_ALONE * (2 * len(self.pairs) + self.alone)

    @property
    def either_first(self) -> bool:
        """Whether each side ran first often enough."""
        least = min(self.base_first, len(self.pairs) - self.base_first)
        return least >= LEAST_EACH_FIRST * len(self.pairs)


def turns_of(base: Sequence[str], head: Sequence[str]) -> Turns:
    """Neighbours in time, one of each side, as pairs. ``base`` and ``head``: when each launch began, as sorting texts.

    From the first launch on: two neighbours of different sides are a pair, and a launch whose next neighbour is of its
    own side has no partner.
    """
    ordered = sorted([(when, 0, place) for place, when in enumerate(base)] + [(w, 1, p) for p, w in enumerate(head)])
    pairs: list[tuple[int, int]] = []
    at = alone = base_first = 0
    while at < len(ordered):
        following = ordered[at + 1] if at + 1 < len(ordered) else None
        if following is None or following[1] == ordered[at][1]:
            alone += 1
            at += 1
            continue
        sides = {side: place for _, side, place in (ordered[at], following)}
        pairs.append((sides[0], sides[1]))
        base_first += ordered[at][1] == 0
        at += 2
    return Turns(pairs=tuple(pairs), alone=alone, base_first=base_first)


def judge_time(
    name: str, base: Sequence[float], head: Sequence[float], turns: Turns, *, no_gate: str | None = None
) -> MetricResult:
    """The step time from one number a launch, ns. ``no_gate``: why it must not fail a build, whatever the pairs say.

    ``ValueError`` where a number is not positive.
    """
    if not turns.interleaved:
        return _unpaired(name, base, head, no_gate)
    found = from_pairs(
        name,
        [base[mine] for mine, _ in turns.pairs],
        [head[theirs] for _, theirs in turns.pairs],
        alpha=ALPHA,
        estimator=ESTIMATOR,
    )
    said = [no_gate] if no_gate is not None else []
    if found.verdict in ("regression", "improvement") and (found.p_sign_flip is None or found.p_sign_flip >= ALPHA):
        found = replace(found, verdict="inconclusive")
        said.append("the pairs do not agree well enough on a direction, and no second batch can confirm it")
    if len(turns.pairs) < LEAST_GATING:
        said.append(f"{len(turns.pairs)} pairs of launches: it fails no build below {LEAST_GATING}")
    elif not turns.either_first:
        said.append(SAME_ORDER)
    if turns.alone:
        said.append(f"{turns.alone} launches without a neighbour of the other side are not in the pairs")
    gating = no_gate is None and len(turns.pairs) >= LEAST_GATING and turns.either_first
    return replace(found, known="paired launches" if gating else "sets of runs", remarks=(*said, *found.remarks))


def _unpaired(name: str, base: Sequence[float], head: Sequence[float], no_gate: str | None) -> MetricResult:
    """Welch's t on the logarithms (Biometrika 34, 1947), with his degrees of freedom; of low confidence."""
    times = [np.asarray(side, float) for side in (base, head)]
    if not all(np.all(np.isfinite(side) & (side > 0)) for side in times):
        raise ValueError(f"{name}: a time is not a positive number")
    sides = [np.log(side) for side in times]
    typical = [float(np.exp(np.median(side))) if side.size else None for side in sides]
    remarks = [NOT_IN_TURNS, *([no_gate] if no_gate is not None else [])]
    result = MetricResult(
        name=name,
        unit="ns",
        better="lower",
        verdict="inconclusive",
        known="sets of runs",
        base=typical[0],
        head=typical[1],
        pairs=min(side.size for side in sides),
        estimator=ESTIMATOR,
        least=STEP_LEAST,
        remarks=tuple(remarks),
    )
    if min(side.size for side in sides) < 1:
        return result
    change = float(sides[1].mean() - sides[0].mean())
    result = replace(result, effect=math.expm1(change))
    if min(side.size for side in sides) < 2:
        return replace(result, remarks=(*remarks, "one launch on a side says nothing of how launches differ"))
    errors = [float(side.var(ddof=1)) / side.size for side in sides]
    error = math.sqrt(sum(errors))
    if not error:
        return replace(result, remarks=(*remarks, "all launches took exactly the same: no spread to judge by"))
    freedom = sum(errors) ** 2 / sum(one**2 / (side.size - 1) for one, side in zip(errors, sides, strict=True))
    whole = max(1, math.floor(freedom))
    p = student.two_sided_p(change / error, whole)
    low, high = (change + sign * student.quantile(1 - ALPHA / 2, whole) * error for sign in (-1, 1))
    narrow = student.quantile(1 - ALPHA, whole) * error
    bound = math.log1p(STEP_LEAST)
    verdict: Verdict = "inconclusive"
    if p < ALPHA and abs(change) >= bound:
        verdict = "regression" if change > 0 else "improvement"
    elif -bound < change - narrow and change + narrow < bound:
        verdict = "no change"
    return replace(
        result,
        verdict=verdict,
        low=math.expm1(low),
        high=math.expm1(high),
        level=1 - ALPHA,
        p=p,
        remarks=tuple(remarks),
    )
