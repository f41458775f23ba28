"""Which values of a program are the same: one number for all that compute the same from the same.

``jax.checkpoint`` runs a layer's forward again with its own copies of the instructions, and XLA fuses the copies in
another way. Values are compared by what computes them, through fusions, loops and other orders of their elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from perfscope.analyzers.hlo.flow import Flow

_MOVES = frozenset({"bitcast", "reshape", "copy", "transpose", "reduce-precision"})
"""The same elements, in another order; a policy marks what it keeps with a ``reduce-precision``."""
_PLAIN = frozenset({"constant", "iota", "broadcast"})
_MOST_STEPS = 10_000
_DOTS = frozenset({"dot", "convolution", "custom-call"})
_ATTRIBUTES = ("direction", "index", "padding", "iota_dimension")
_RANGE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


class Sames:
    """Numbers of a program's values, each found when it is asked for. Linear in what is behind it."""

    def __init__(self, flow: Flow, stacks: Mapping[int, int] | None = None) -> None:
        """``stacks``: arrays of what was kept of all layers, and what one layer has put there."""
        self._flow = flow
        self._stacks = dict(stacks or {})
        self._numbers: dict[tuple[object, ...], int] = {}
        self._found: dict[int, int] = {}

    def source(self, number: int) -> int:
        """What computes a value, behind its names and other orders of it."""
        for _ in range(_MOST_STEPS):
            value = self._flow.values[number]
            if value.carried:
                break
            if len(value.names) == 1:
                number = value.names[0]
            elif not value.names and value.instruction.opcode in _MOVES:
                number = value.operands[0]
            elif value.instruction.opcode == "dynamic-slice" and self.source(value.operands[0]) in self._stacks:
                number = self._stacks[self.source(value.operands[0])]
            else:
                break
        return number

    def of(self, number: int) -> int:
        """The number that all values share which are this one."""
        waiting = [number]
        while waiting:
            one = waiting[-1]
            if one in self._found:
                waiting.pop()
                continue
            source = self.source(one)
            if source != one:
                if source in self._found:
                    self._found[one] = self._found[source]
                    waiting.pop()
                else:
                    waiting.append(source)
                continue
            behind = self.behind(one)
            missing = [each for each in behind if each not in self._found]
            if missing and len(waiting) < _MOST_STEPS:
                waiting += missing
                continue
            self._found[one] = self._number(one, [self._found.get(each, -1) for each in behind])
            waiting.pop()
        return self._found[number]

    def behind(self, number: int) -> tuple[int, ...]:
        """What a value is computed from; of a loop's result what its body returns."""
        value = self._flow.values[number]
        if value.carried:  # a loop's state is told by what it begins with
            return value.names[:1]
        if value.names:
            return *value.names[-1:], *self._taken_in(number)
        if value.instruction.opcode in ("dynamic-slice", "while"):
            return value.operands[:1] if value.instruction.opcode == "dynamic-slice" else ()
        return value.operands

    def _taken_in(self, number: int) -> tuple[int, ...]:
        """What a loop works on: states that begin with zeros are the same in loops over other things."""
        value = self._flow.values[number]
        inside = value.computation
        loop = inside.by_name[value.instruction.operands[0]] if value.instruction.operands else value.instruction
        if loop.opcode != "while" or inside.by_name[loop.operands[0]].opcode != "tuple":
            return ()
        numbers = {
            self.source(self._flow.numbers[inside.name, one]) for one in inside.by_name[loop.operands[0]].operands
        }
        return tuple(sorted(one for one in numbers if self._flow.opcode(one) not in _PLAIN))

    def _number(self, number: int, behind: list[int]) -> int:
        value = self._flow.values[number]
        one = value.instruction
        key: tuple[object, ...]
        if value.carried:
            key = "carried", one.shape.dtype, one.shape.elements, *behind
        elif one.opcode == "parameter" or (one.opcode == "get-tuple-element" and not value.names):
            key = "given", value.computation.name, one.name
        elif value.names:
            key = "loop", one.shape.bytes, *behind[:1], *sorted(set(behind[1:]))
        else:
            operands = sorted(behind) if one.opcode in ("add", "multiply", "maximum", "minimum", *_DOTS) else behind
            applied = self._flow.module.computations[one.called[-1]].root.opcode if one.called else ""
            told = (*(one.attributes.get(name, "") for name in _ATTRIBUTES), *self._part(number))
            size = one.shape.elements
            key = one.opcode, one.shape.dtype, size, one.value, one.literal, applied, told, *operands
        return self._numbers.setdefault(key, len(self._numbers))

    def _part(self, number: int) -> tuple[object, ...]:
        """Which part a slice takes, whatever the order of its axes, and whether some are one."""
        value = self._flow.values[number]
        if value.instruction.opcode != "slice":
            return ()
        whole = self._flow.values[value.operands[0]].instruction.shape.dims
        ranges = _RANGE.findall(value.instruction.attributes.get("slice", ""))
        return tuple(
            sorted(
                (Fraction(int(first), size), Fraction(int(last), size), step or "1")
                for (first, last, step), size in zip(ranges, whole, strict=False)
                if (int(first), int(last)) != (0, size)
            )
        )
