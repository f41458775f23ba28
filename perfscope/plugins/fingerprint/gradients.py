"""Sides that divide a batch differently (ranks, accumulation, another batch): their gradients, within rounding."""

from __future__ import annotations

from perfscope.plugins.fingerprint.document import CALL, OPTIMIZER
from perfscope.plugins.fingerprint.equality import differing, error, same
from perfscope.plugins.fingerprint.reading import OpLine, Step, ValueLine
from perfscope.plugins.fingerprint.result import Counts, Difference, Differing
from perfscope.plugins.fingerprint.walk import MOST_SHOWN, place_of
from perfscope.plugins.parity import FACTOR, expected_error


def divides_differently(a: Step, b: Step) -> bool:
    """Whether a step of one side calls its models more often than the other's, or with other numbers of rows."""
    calls = [[op for op in step.ops if op.name == CALL] for step in (a, b)]
    if not all(any(op.name == OPTIMIZER for op in step.ops) for step in (a, b)):
        return False
    return len(calls[0]) != len(calls[1]) or [_rows(a, op) for op in calls[0]] != [_rows(b, op) for op in calls[1]]


def _rows(step: Step, op: OpLine) -> list[tuple[int, ...]]:
    pairs = zip(op.reads, op.names, strict=False)
    return [step.values[number].shape[:1] for number, name in pairs if name.startswith("input ")]


def first_of_gradients(a: Step, b: Step, ranks: tuple[int, int], counts: Counts) -> Difference | None:
    """The first moment before a step of an optimizer at which a gradient differs by more than rounding explains.

    The bound is that of a sum over all ops of the step so far, and of their reductions.
    """
    moments_a = [(number, op) for number, op in enumerate(a.ops) if op.name == OPTIMIZER]
    moments_b = [(number, op) for number, op in enumerate(b.ops) if op.name == OPTIMIZER]
    for (number_a, op_a), (number_b, op_b) in zip(moments_a, moments_b, strict=False):
        counts.ops += 1
        ours, theirs = _named(a, op_a), _named(b, op_b)
        roundings = max(number_a, number_b)
        terms = sum(_largest(a, op) for op in a.ops[:number_a])
        found = list(_unexplained(ours, theirs, roundings, terms, counts))
        if found:
            return Difference(
                cause="gradients",
                rank_a=ranks[0],
                rank_b=ranks[1],
                step_a=a.number,
                step_b=b.number,
                a=place_of(number_a, op_a),
                b=place_of(number_b, op_b),
                values=tuple(found[:MOST_SHOWN]),
                values_left=max(0, len(found) - MOST_SHOWN),
            )
    return None


def _unexplained(
    ours: dict[str, ValueLine], theirs: dict[str, ValueLine], roundings: int, terms: int, counts: Counts
) -> list[Differing]:
    found = []
    for name in ours.keys() & theirs.keys():
        one, other = ours[name], theirs[name]
        if not name.startswith("gradient"):
            continue
        counts.values += 1
        if same(one, other):
            continue
        limit = FACTOR * expected_error(one.dtype, roundings, terms)
        far = error(one, other)
        if far is not None and far <= limit:
            counts.unequal += 1
            continue
        found.append(differing(name, one, other, limit))
    order = list(ours)
    return sorted(found, key=lambda row: order.index(row.role))


def _named(step: Step, op: OpLine) -> dict[str, ValueLine]:
    return {name: step.values[number] for number, name in zip(op.reads, op.names, strict=False)}


def _largest(step: Step, op: OpLine) -> int:
    """At most the length of the op's sums: the longest axis of its inputs."""
    return max((max(step.values[number].shape, default=1) for number in op.reads), default=1)
