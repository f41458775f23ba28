"""Maxima of rows in a compiled XLA program, and whether they are running ones.

A softmax over whole rows subtracts the maximum of each. Blocked attention does not know it yet: its maximum combines
that of a block with a state of the loop, or with that of the block before where the loop was unrolled; then the
exponential of the difference of two maxima rescales what was summed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from perfscope.analyzers.facts.hlo_flow import POINTWISE, VIEWS, Flow

_MOST_STEPS = 150
"""From a row's maximum back to the scores; some thirty in programs. Beyond it counts as running: nothing is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maxima:
    """What a value of one element a row comes from."""

    reductions: frozenset[int]
    """Maxima along an axis."""
    running: bool
    """A state of a loop is in it, or one of the maxima is rescaled to another."""


class RowMaxima:
    """Finds the maxima behind values of less than ``size`` elements, those of the scores."""

    def __init__(self, flow: Flow, size: int) -> None:
        self._flow, self._size = flow, size

    def of(self, number: int) -> Maxima:
        """The maxima behind a value."""
        reductions, running = self._behind(number)
        return Maxima(reductions=reductions, running=running or bool(reductions & self._rescaled))

    def repeated(self, number: int) -> int | None:
        """The smaller value that a value repeats; None: it does not."""
        flow, waiting, seen = self._flow, [number], set[int]()
        while waiting:
            for back in flow.back([waiting.pop()]):
                if back in seen or not flow.values[back].operands:
                    continue
                seen.add(back)
                first = flow.values[back].operands[0]
                if flow.opcode(back) == "broadcast" and 1 <= flow.values[first].size < flow.values[back].size:
                    return first
                if flow.opcode(back) in VIEWS:
                    waiting.append(first)
        return None

    def _behind(self, number: int) -> tuple[frozenset[int], bool]:
        flow, waiting, seen = self._flow, [number], set[int]()
        reductions: set[int] = set()
        running = False
        while waiting:
            if len(seen) > _MOST_STEPS:
                return frozenset(reductions), True
            for back in flow.back([waiting.pop()]):
                if back in seen:
                    continue
                seen.add(back)
                value = flow.values[back]
                running = running or value.carried
                if value.carried or value.size >= self._size:
                    continue
                if flow.reduces_with(back, "maximum"):
                    reductions.add(back)
                    waiting.extend(value.operands[:1])  # a maximum of maxima, where it is taken in two rounds
                elif value.instruction.opcode in POINTWISE or flow.reduces_with(back, "add"):
                    waiting.extend(value.operands)  # through sums too: a softmax may subtract the log of its sum
        return frozenset(reductions), running

    @cached_property
    def _rescaled(self) -> frozenset[int]:
        """Maxima whose difference with another one is exponentiated."""
        flow = self._flow
        found: set[int] = set()
        for value in flow.values:
            if value.instruction.opcode != "exponential" or not 1 < value.size < self._size:
                continue
            for number in flow.back(value.operands):
                if flow.opcode(number) == "subtract":
                    sides = [self._behind(operand) for operand in flow.values[number].operands]
                    if all(reductions or running for reductions, running in sides):
                        found.update(*(reductions for reductions, _ in sides))
        return frozenset(found)
