"""Metrics that do not depend on chance: peak memory, FLOPs, launches, syncs, graph breaks, fingerprints.

They are compared as they are, without statistics: one value on each side is enough. Where launches of one side do
not agree among themselves the metric was not deterministic after all, and only ranges that lie apart say something.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.compare.statistics.sequential import Better, Verdict
from perfscope.analyzers.compare.statistics.verdict import MetricResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The smallest change that counts: both relative to the base and absolute, in the metric's unit."""

    relative: float
    absolute: float


LEAST = {
    # An allocator rounds to 512 bytes or 2 MiB, and the order of two frees moves a peak by one block.
    "bytes": Least(relative=0.001, absolute=1 << 20),
    "FLOP": Least(relative=0.001, absolute=1),
    # One host sync or graph break more in a step is what is looked for. Of what happens in every step a recording may
    # lack the first or the last (59 reads in 60 steps); what happens in every other step, or in two of the three steps
    # that are recorded, depends on which steps those are.
    "count": Least(relative=0.0, absolute=0.75),
}
"""By unit."""


def compare_exact(
    name: str,
    base: Sequence[float],
    head: Sequence[float],
    *,
    unit: str,
    better: Better = "lower",
) -> MetricResult:
    """A deterministic metric; ``base`` and ``head``: its value in each launch, one is enough.

    ``unit``: a key of ``LEAST``, else ``ValueError``. A side without a value, or with one that is no finite number, is
    inconclusive: nobody looked.
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
    """A fingerprint: equal is no change; different says neither better nor worse, so it is inconclusive."""
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
    """By the gap between the ranges: of single values, their difference."""
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
