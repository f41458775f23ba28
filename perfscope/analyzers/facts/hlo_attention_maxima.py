"""Maxima of rows in a compiled XLA program, and whether they are running ones.

A softmax over whole rows subtracts the maximum of each. Blocked attention does not know it yet: its maximum combines
that of a block with a state of the loop, or with that of the block before where the loop was unrolled; then the
exponential of the difference of two maxima rescales what was summed before.

XLA for TPU takes the maximum and repeats it in one op, where nothing else reads it: a reduction by windows as long as
the row to both sides, whose result is as large as its operand.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from perfscope.analyzers.facts.hlo_flow import POINTWISE, VIEWS, Flow
from perfscope.analyzers.hlo.cost_window import WindowDim, window_dims

_MOST_STEPS = 150
"""From a row's maximum back to the scores; some thirty in programs. Beyond it counts as running: nothing is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maxima:
    """What a value of one element a row comes from."""

    reductions: frozenset[int]
    """Maxima along an axis."""
    running: bool
    """A state of a loop is in it, or one of the maxima is rescaled to another."""


def row_of_windows(flow: Flow, number: int) -> int | None:
    """Elements of the row whose maximum a reduction by windows repeats for each of them; None: it is none of these.

    Along every axis the window is one element, or reaches the first and the last element from wherever it stands.
    """
    value = flow.values[number]
    one = value.instruction
    if one.opcode != "reduce-window" or not value.operands or not flow.reduces_with(number, "maximum"):
        return None
    dims = one.shape.dims
    windows = window_dims(one.attributes.get("window", ""))
    if windows is None or len(windows) != len(dims) or flow.values[value.operands[0]].instruction.shape.dims != dims:
        return None
    row = 1
    for window, length in zip(windows, dims, strict=True):
        if window == WindowDim(size=1):
            continue
        behind = window.size - 1 - window.pad_low
        plain = window.stride == window.lhs_dilate == window.rhs_dilate == 1
        if not plain or window.pad_low < length - 1 or behind < length - 1:
            return None
        row *= length
    return row if row > 1 else None


class RowMaxima:
    """Finds the maxima behind values of less than ``size`` elements, those of the scores."""

    def __init__(self, flow: Flow, size: int) -> None:
        self._flow, self._size = flow, size

    def of(self, number: int) -> Maxima:
        """The maxima behind a value."""
        reductions, running = self._behind(number)
        return Maxima(reductions=reductions, running=running or bool(reductions & self._rescaled))

    def is_rescaled(self, values: Collection[int]) -> bool:
        """Whether a maximum of some of these values is rescaled to another one."""
        flow = self._flow
        sources = (flow.values[number].operands[:1] for number in self._rescaled)
        return any(back in values for source in sources for back in flow.back(source))

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
