"""Comparison of the values that two launches recorded: whether the results of the program stay the same.

The tolerance of a value follows from its dtype in the baseline and grows with the step: a difference in the last bits
passes through the parameters into every later step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.plugins.trials.document import Results
from perfscope.plugins.trials.process_report import KINDS, ProcessTrial, RecordedValue

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-10,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
}
"""Relative tolerance for the first step. Sums of a few thousand float32 terms in another order differ by 1e-6 to 1e-5,
which deep models multiply. TF32 and bfloat16 products differ by 5e-4 and 4e-3 and exceed the tolerance.
"""
WHOLE_NUMBERS = 0.0
"""Tolerance of dtypes that are not in the table."""
SMALLEST = 1e-30
"""Norm below which a value is zero."""


class Difference(Struct, frozen=True, kw_only=True):
    """A value of two launches. ``error`` and ``tolerance`` are relative."""

    value: RecordedValue
    error: float
    tolerance: float
    layer: str = ""
    """Name of the tensor that differs most, if there are several."""

    @property
    def beyond(self) -> bool:
        """Whether the error exceeds the tolerance."""
        return self.error > self.tolerance


def tolerance_of(dtype: str, step: int, widened: float | None = None) -> float:
    """Return the tolerance of a value with this ``dtype`` at ``step`` (from 0). ``widened``: the user's replacement."""
    return (step + 1) * (TOLERANCES.get(dtype, WHOLE_NUMBERS) if widened is None else widened)


def error_between(base: RecordedValue, other: RecordedValue) -> float:
    """Return the larger relative error of the norm and the sampled elements (root mean square), or infinity."""
    if base.size != other.size or base.nonfinite != other.nonfinite or len(base.sample) != len(other.sample):
        return math.inf
    of_norm = abs(other.norm - base.norm)
    distance = math.sqrt(sum((mine - theirs) ** 2 for mine, theirs in zip(base.sample, other.sample, strict=True)))
    length = math.sqrt(sum(mine**2 for mine in base.sample))
    # A sample that is all zeros by chance is measured against the typical element.
    typical = base.norm * math.sqrt(len(base.sample) / base.size) if base.size else 0.0
    return max(_relative(of_norm, base.norm), _relative(distance, max(length, typical)))


def _relative(difference: float, whole: float) -> float:
    if difference == 0:
        return 0.0
    return difference / whole if whole > SMALLEST else math.inf


def compare_results(
    base: Sequence[ProcessTrial], other: Sequence[ProcessTrial], *, widened: float | None = None
) -> Results:
    """Compare the results of ``other`` with ``base``.

    Values that cannot be compared are reported, and are not "same".
    """
    differences = [
        Difference(
            value=value,
            error=error_between(value, there),
            tolerance=tolerance_of(value.dtype, value.step, widened),
            layer=_worst_part(value, there),
        )
        for mine, theirs in _by_rank(base, other)
        for value, there in _matched(mine, theirs)
    ]
    reason = _unrecorded(base, other)
    if not differences:
        return Results(state="not compared", reason=reason or "no value was recorded in both")
    differences.sort(key=lambda one: (one.value.step, KINDS.index(one.value.kind)))
    first = next((one for one in differences if one.beyond), None)
    module = "" if first is None else _first_layer(base, other, first, widened)
    layer = module or ("" if first is None else first.layer)
    where = f", first in module {module}" if module else f", most in {layer}" if layer else ""
    shown = first or max(differences, key=lambda one: one.error)
    return Results(
        state="same" if first is None else "different",
        compared=len(differences),
        steps=1 + max(one.value.step for one in differences),
        largest_error=shown.error if math.isfinite(shown.error) else None,
        tolerance=shown.tolerance,
        first_step=None if first is None else first.value.step,
        what="" if first is None else label(first.value),
        layer=layer,
        reason=_why(first, where) if first is not None else reason,
    )


def label(value: RecordedValue) -> str:
    """Return a name such as ``'loss'``, ``'output of Model'`` or ``'gradients of AdamW'``."""
    return value.kind if value.kind == value.name else f"{value.kind} of {value.name}"


def _first_layer(
    base: Sequence[ProcessTrial], other: Sequence[ProcessTrial], first: Difference, widened: float | None
) -> str:
    """Return the first module whose output differs, if an output or the loss of the first step differs."""
    if first.value.step or first.value.kind not in ("output", "loss"):
        return ""
    for mine, theirs in _by_rank(base, other):
        if [layer.name for layer in mine.layers] != [layer.name for layer in theirs.layers]:
            continue  # Other modules were called, so their outputs do not correspond.
        for layer, there in zip(mine.layers, theirs.layers, strict=True):
            if error_between(layer, there) > tolerance_of(layer.dtype, 0, widened):
                return layer.name
    return ""


def _worst_part(base: RecordedValue, other: RecordedValue) -> str:
    if not base.parts or len(base.sample) != len(other.sample) or len(base.parts) != len(base.sample):
        return ""
    errors = [_relative(abs(b - a), a) for a, b in zip(base.sample, other.sample, strict=True)]
    return base.parts[errors.index(max(errors))]


def _why(first: Difference, where: str) -> str:
    at = f" at step {first.value.step}{where}"
    if math.isfinite(first.error):
        return f"{label(first.value)} differs by {first.error:.1e}{at}"
    what = f"{label(first.value)}{at}"
    return f"{what} has another size, other values that are not finite, or was zero"


def _by_rank(base: Sequence[ProcessTrial], other: Sequence[ProcessTrial]) -> list[tuple[ProcessTrial, ProcessTrial]]:
    """Pair processes of one rank that recorded values; several processes of one rank are paired in order."""
    sides = [sorted((trial for trial in side if trial.values), key=lambda trial: trial.rank) for side in (base, other)]
    return [(mine, theirs) for mine, theirs in zip(*sides, strict=False) if mine.rank == theirs.rank]


def _matched(mine: ProcessTrial, theirs: ProcessTrial) -> list[tuple[RecordedValue, RecordedValue]]:
    there = {_key(value): value for value in theirs.values}
    return [(value, there[_key(value)]) for value in mine.values if _key(value) in there]


def _key(value: RecordedValue) -> tuple[str, str, int]:
    return value.kind, value.name, value.step


def _unrecorded(base: Sequence[ProcessTrial], other: Sequence[ProcessTrial]) -> str:
    """Return the values that only one side recorded."""
    problems = [text for side in (base, other) for trial in side for text in trial.unrecorded]
    if problems:
        return f"could not be recorded: {problems[0]}"
    names = [{(value.kind, value.name) for trial in side for value in trial.values} for side in (base, other)]
    only = sorted(f"{kind} of {name}" if kind != name else kind for kind, name in names[0] ^ names[1])
    return f"recorded in one launch only: {', '.join(only)}" if only else ""
