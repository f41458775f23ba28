"""One step of the optimizers of both sides, from the weights and gradients of their runs: rows and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.plugins.parity.compare import Comparison, Side, coarsest
from perfscope.plugins.parity.document import Arrays, OptimizerGroup, OptimizerSetting, Row
from perfscope.plugins.parity.errors import cosine, max_ulp, relative_error, roundoff
from perfscope.plugins.parity.sides import Runner
from perfscope.plugins.parity.update.rules import Rule, identify, settings

TWICE = 0.01
"""Relative difference up to which an update counts as a multiple of another one."""


class Stepped(Struct, frozen=True):
    """Updates of the weights, and settings of the optimizers in groups, the one with the first difference first."""

    rows: tuple[Row, ...]
    groups: tuple[OptimizerGroup, ...]


def step(
    a: Runner, b: Runner, comparison: Comparison, optimizers: tuple[Any, Any], dtypes: Sequence[str | None]
) -> Stepped:
    """Step both and the reference. ``DataError`` with one line if a side has no gradients or its optimizer fails."""
    of_b = comparison.of_b
    for side, name in ((comparison.a, a.source), (comparison.b, b.source)):
        if not _part(side, "weight_gradient:"):
            raise DataError(f"{name}: has no gradients of weights, which the optimizer needs")
    updates = [
        _update(runner, optimizer, side, dtype)
        for runner, optimizer, side, dtype in (
            (a, optimizers[0], comparison.a, dtypes[0]),
            (b, optimizers[1], comparison.b, dtypes[1]),
            (b if of_b else a, optimizers[of_b], comparison.reference, comparison.reference.recording.dtype),
        )
    ]
    rules_a, rules_b = ({name: identify(found) for name, found in runner.probe(optimizer).items()}
                        for runner, optimizer in ((a, optimizers[0]), (b, optimizers[1])))  # fmt: skip
    rows, groups = [], dict[tuple[OptimizerSetting, ...], list[str]]()
    for weight in comparison.a.recording.weights:
        if weight.kind == "buffer" or weight.name not in updates[0]:
            continue
        rules = _rules(comparison, weight.name, rules_a, rules_b)
        found = tuple(settings(*rules)) if rules is not None else ()
        groups.setdefault(found, []).append(weight.name)
        rows.append(_row(comparison, weight.name, updates, found, _correction(rules or ())))
    ordered = sorted(groups.items(), key=lambda pair: all(each.same for each in pair[0]))
    return Stepped(tuple(rows), tuple(OptimizerGroup(weights=tuple(names), settings=found) for found, names in ordered))


def _part(side: Side, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in side.arrays.items() if name.startswith(prefix)}


def _update(runner: Runner, optimizer: Any, side: Side, dtype: str | None) -> Arrays:
    """Changes of the weights, float64."""
    before = _part(side, "weight:")
    after = runner.update(optimizer, before, _part(side, "weight_gradient:"), dtype)
    return {name: np.asarray(value, np.float64) - before[name] for name, value in after.items() if name in before}


def _rules(
    comparison: Comparison, name: str, rules_a: Mapping[str, Rule], rules_b: Mapping[str, Rule]
) -> tuple[Rule, Rule] | None:
    translation = comparison.translation
    there = translation.counterparts(name) if translation is not None else ()
    ours, theirs = rules_a.get(name), [rules_b[each] for each in there if each in rules_b]
    return None if ours is None or not theirs else (ours, theirs[0])


def _correction(rules: Sequence[Rule]) -> float:
    """Relative rounding error of Adam's bias correction: 1 - beta cancels, and Optax computes it in float32."""
    return max(
        (
            2 * roundoff("float32") * (1 / (1 - rule.beta1) + 0.5 / (1 - rule.beta2))
            for rule in rules
            if rule.kind == "adam" and rule.bias_correction
        ),
        default=0.0,
    )


def _row(
    comparison: Comparison, name: str, updates: Sequence[Arrays], found: Sequence[OptimizerSetting], correction: float
) -> Row:
    of_a = updates[0][name]
    of_b, tied = _from_b(comparison, name, updates[1])
    reference = _from_b(comparison, name, updates[2])[0] if comparison.of_b else updates[2][name]
    own, base = (of_a, of_b) if comparison.of_b else (of_b, of_a)
    layers = comparison.judged.recording.layers
    dtype = coarsest([comparison.judged.recording.dtype, *(layer.dtype for layer in layers)])
    error, error_base = relative_error(own, reference), relative_error(base, reference)
    size, whole = (float(np.linalg.norm(value)) for value in (reference, comparison.a.arrays[f"weight:{name}"]))
    stored = 2 * roundoff(dtype) * whole / size if size else 0.0  # the updated weight is rounded
    expected = comparison.update_bound(dtype, error_base) + stored + correction
    noise = error is None and error_base is None and bool(np.isfinite(own).all() and np.isfinite(base).all())
    differ = tied or any(not each.same for each in found)
    diverges = differ or (not noise and (error is None or error > expected))
    return Row(
        name=name,
        kind="update",
        diverges=diverges,
        error_a=error if comparison.of_b else error_base,
        error_b=error_base if comparison.of_b else error,
        expected=min(expected, 1e30),
        cosine=cosine(own, reference),
        max_ulp=max_ulp(own, reference, dtype),
        dtype=dtype,
        remark=_remark(of_a, of_b, found, tied=tied) if diverges else "",
    )


def _from_b(comparison: Comparison, name: str, changes: Arrays) -> tuple[np.ndarray, bool]:
    """Changes of B as those of A's weight; whether B has several weights for it that change differently."""
    translation = comparison.translation
    if translation is None:
        return changes[name], False
    zeros = {weight.name: np.zeros(weight.shape) for weight in comparison.b.recording.weights}
    every = {**zeros, **changes}
    try:
        return translation.back(name, every), False
    except DataError:
        return translation.to_a(every, add=True)[name], True


def _remark(a: np.ndarray, b: np.ndarray, found: Sequence[OptimizerSetting], *, tied: bool) -> str:
    """The cause: settings that differ, a tie, or a multiple."""
    if tied:
        return "one weight in A, and several in B that are updated separately"
    causes = [f"{each.name}: {each.a} in A, {each.b} in B" for each in found if not each.same]
    if causes:
        return "; ".join(causes)
    if not b.any() or not a.any():
        return f"{'A' if b.any() else 'B'} does not update it: it has no gradient there"
    ratio = float(np.vdot(a, b) / np.vdot(a, a))
    error = relative_error(b, ratio * a)
    if error is not None and error <= TWICE and abs(ratio - 1) > TWICE:
        return f"B's update is {ratio:.4g} times A's"
    return ""
