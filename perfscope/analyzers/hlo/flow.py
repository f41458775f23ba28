"""Where the values of a compiled XLA program go: across fusions, calls, branches and loops.

A value has many names: the root of a fusion's body is what the fusion yields, a parameter of that body is an operand
of the fusion, an element of a loop's state is what went in and what the body returns. The flow joins these names, so
that what computes a value is found wherever XLA put it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from perfscope.analyzers.hlo.cost.ops import result_of
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.structure import callees_first
from perfscope.analyzers.hlo.views import REPEATED, path, tuple_index

POINTWISE = REPEATED | {
    "abs", "add", "and", "clamp", "compare", "divide", "erf", "exponential", "exponential-minus-one", "log",
    "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power", "select", "sign",
    "sqrt", "rsqrt", "subtract", "tanh", "xor",
}  # fmt: skip

_RUNS = frozenset({"fusion", "call", "while", "conditional", "async-start"})
"""Opcodes that run what they call; others apply it to elements."""

_HANDED_ON = frozenset({"copy-start", "copy-done", "opt-barrier", "optimization-barrier"})
"""Their result is their operand, also where it is a tuple of other things as well."""

_FIRST = frozenset({"custom-call", "copy-start"})
"""Opcodes whose first result is the value; scratch memory, the source and flags stand behind it."""

_MOST_NAMES = 64
"""Loops around loops that hand on a whole state as one tuple; deeper than programs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value under one of its names."""

    computation: Computation
    instruction: Instruction
    size: int
    """Elements; of a library call, or a copy that is begun, those of its first result."""
    names: tuple[int, ...]
    """Values that this one is another name of; none: the instruction computes it."""
    carried: bool
    """It is an element of a loop's state that changes from one iteration to the next."""
    operands: tuple[int, ...]


class Flow:
    """All values of a module by number. Linear in the module's instructions."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        order = [
            module.computations[name]
            for name in reversed(callees_first(module, lambda instruction: instruction.opcode in _RUNS))
        ]
        self.numbers: dict[tuple[str, str], int] = {}
        """By computation and instruction."""
        self._found: list[tuple[Computation, Instruction]] = []
        self._callers: dict[str, list[tuple[Computation, Instruction]]] = {}
        for computation in order:
            for instruction in computation.instructions:
                self.numbers[computation.name, instruction.name] = len(self._found)
                self._found.append((computation, instruction))
                for called in instruction.called if instruction.opcode in _RUNS else ():
                    self._callers.setdefault(called, []).append((computation, instruction))
        self.values = tuple(self._value(computation, instruction) for computation, instruction in self._found)
        self.users: tuple[list[int], ...] = tuple([] for _ in self.values)
        """By value: those that are another name of it, or are computed from it."""
        for number, value in enumerate(self.values):
            for source in dict.fromkeys(value.names or value.operands):
                self.users[source].append(number)

    def opcode(self, number: int) -> str:
        """Of the instruction that has the value's name."""
        return self.values[number].instruction.opcode

    def back(self, numbers: Iterable[int]) -> Iterator[int]:
        """Values behind the names of these, up to what computes them or a changing state: each once."""
        waiting, seen = list(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            value = self.values[number]
            if value.names and not value.carried:
                waiting.extend(value.names)
            else:
                yield number

    def reduces_with(self, number: int, opcode: str) -> bool:
        """Whether the value is a reduction by ``maximum``, ``add`` ... (XLA for CPU takes a first round by windows)."""
        instruction = self.values[number].instruction
        if instruction.opcode not in ("reduce", "reduce-window") or not instruction.called:
            return False
        return self.module.computations[instruction.called[0]].root.opcode == opcode

    def _value(self, computation: Computation, instruction: Instruction) -> Value:
        names, carried = self._names(computation, instruction)
        return Value(
            computation=computation,
            instruction=instruction,
            size=result_of(instruction).elements if instruction.opcode in _FIRST else instruction.shape.elements,
            names=() if self.numbers[computation.name, instruction.name] in names else names,
            carried=carried,
            operands=tuple(self.numbers[computation.name, name] for name in instruction.operands),
        )

    def _names(self, computation: Computation, instruction: Instruction) -> tuple[tuple[int, ...], bool]:
        if instruction.opcode == "get-tuple-element":
            return self._element(computation, computation.by_name[instruction.operands[0]], tuple_index(instruction))
        if instruction.shape.dtype == "tuple" and instruction.opcode not in _HANDED_ON:
            return (), False
        if instruction.opcode in _HANDED_ON and instruction.operands:
            return (self.numbers[computation.name, instruction.operands[0]],), False
        if instruction.opcode in ("fusion", "call", "conditional"):
            bodies = [self.module.computations[name] for name in instruction.called]
            return tuple(self.numbers[body.name, body.root.name] for body in bodies), False
        if instruction.opcode == "parameter":
            return tuple(
                self.numbers[where.name, operand] for where, operand, _ in self._arguments(computation, instruction)
            ), any(loop for _, _, loop in self._arguments(computation, instruction))
        return (), False

    def _arguments(self, computation: Computation, instruction: Instruction) -> Iterator[tuple[Computation, str, bool]]:
        """What a parameter is: its computation's callers' operands; True if it is the state of a loop."""
        for where, caller in self._callers.get(computation.name, ()):
            slot = instruction.parameter_number or 0
            if caller.opcode == "conditional":  # the first operand chooses the branch
                slot = 1 + caller.called.index(computation.name)
            if slot < len(caller.operands):
                yield where, caller.operands[slot], caller.opcode == "while"

    def _element(
        self, computation: Computation, instruction: Instruction, index: int, depth: int = 0
    ) -> tuple[tuple[int, ...], bool]:
        """The names of one element of a tuple, and whether it is a state that changes."""
        result: list[int] = []
        carried = False
        holders: list[tuple[Computation, Instruction]] = []
        if depth > _MOST_NAMES:
            return (), True  # unknown, so nothing is concluded from it
        if instruction.opcode == "tuple" and index < len(instruction.operands):
            return (self.numbers[computation.name, instruction.operands[index]],), False
        if instruction.opcode in ("fusion", "call", "conditional"):
            bodies = [self.module.computations[name] for name in instruction.called]
            holders = [(body, body.root) for body in bodies]
        elif instruction.opcode == "while":
            return self._state(computation, instruction, index, depth, inside=False)
        elif instruction.opcode in _HANDED_ON:
            holders = [(computation, computation.by_name[instruction.operands[0]])]
        elif instruction.opcode == "parameter":
            for where, caller in self._callers.get(computation.name, ()):
                if caller.opcode == "while":
                    return self._state(where, caller, index, depth, inside=True)
            holders = [
                (where, where.by_name[operand]) for where, operand, _ in self._arguments(computation, instruction)
            ]
        if not holders:
            return (self.numbers[computation.name, instruction.name],), False
        for where, holder in holders:
            names, changes = self._element(where, holder, index, depth + 1)
            result += names
            carried = carried or changes
        return tuple(result), carried

    def _state(
        self, computation: Computation, loop: Instruction, index: int, depth: int, *, inside: bool
    ) -> tuple[tuple[int, ...], bool]:
        """An element of a loop's state: what goes in, and what the body returns unless that is the same."""
        first, carried = self._element(computation, computation.by_name[loop.operands[0]], index, depth + 1)
        if len(loop.called) != 2:
            return first, True
        body = self.module.computations[loop.called[1]]
        root = body.root
        if root.opcode != "tuple" or index >= len(root.operands):
            return first, True
        name = root.operands[index]
        source, part = list(path(body, name))[-1]
        if source.opcode == "parameter" and part == (index,):
            return first, carried
        return (*first, self.numbers[body.name, name]), inside
