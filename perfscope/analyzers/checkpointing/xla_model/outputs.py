"""Which instruction of a program's entry holds a value, and what a value is computed from that one holds."""

from __future__ import annotations

from collections import defaultdict

from perfscope.analyzers.checkpointing.xla_model.graph import Body, Node
from perfscope.analyzers.hlo.flow import VIEWS, Flow
from perfscope.analyzers.hlo.module import HloModule, Instruction

_SAME = frozenset({"bitcast", "reshape", "transpose", "convert", "copy"})
"""Opcodes behind which a kernel's result is still the value: it is written in another type or order."""


class Outputs:
    """Of one program, its entry as it is edited."""

    def __init__(self, module: HloModule, flow: Flow, entry: Body) -> None:
        """Linear in the entry's instructions."""
        self._flow = flow
        self._entry = entry
        self._holders: dict[int, str] = {}
        """By number in ``Flow``."""
        parts: dict[str, dict[int, str]] = defaultdict(dict)
        code = module.entry_computation()
        for one in code.instructions:
            if one.opcode == "get-tuple-element":
                parts[one.operands[0]][int(one.attributes["index"])] = one.name
        for one in code.instructions:
            if one.opcode == "fusion":
                inside = module.computations[one.called[0]]
                root = inside.root
                if root.opcode == "tuple":
                    for at, result in enumerate(root.operands):
                        if at in parts[one.name]:
                            self._hold(flow.numbers[inside.name, result], parts[one.name][at])
                else:
                    self._hold(flow.numbers[inside.name, root.name], one.name)
            elif one.opcode not in ("bitcast", "get-tuple-element", "tuple", "while"):
                self._holders.setdefault(flow.numbers[code.name, one.name], one.name)
        self._kinds: dict[tuple[str, str, int], str] = {}
        for number, name in self._holders.items():
            self._kinds.setdefault(self._kind(number), name)

    def _hold(self, number: int, name: str) -> None:
        inside = self._flow.values[number].computation.name
        while True:
            self._holders.setdefault(number, name)
            value = self._flow.values[number]
            if value.instruction.opcode not in _SAME or value.computation.name != inside:
                return
            number = value.operands[0]

    def _kind(self, number: int) -> tuple[str, str, int]:
        one = self._flow.values[number].instruction
        return one.opcode, one.op_name, one.shape.elements

    def holder(self, number: int, size: int, *, clones: bool) -> str:
        """The instruction that holds a value; a new kernel where only readers compute it.

        ``clones``: XLA computes it within several kernels; what has its path, opcode and size is it.
        """
        if number in self._holders:
            return self._holders[number]
        kind = self._kind(number)
        if clones and kind[1] and kind in self._kinds:
            return self._kinds[kind]
        operands = self._sources(number, frozenset())
        node = Node(name=f"input.{number}", opcode="kernel", operands=operands or (), sizes=(size,))
        self._holders[number] = self._kinds[kind] = self._entry.add(node)
        return node.name

    def computed_from(self, number: int, without: frozenset[str]) -> tuple[str, ...] | None:
        """The instruction that holds a value, or those it can be computed from; ``None`` if that takes ``without``."""
        held = self._holders.get(number)
        if held is not None and self._kernel(held) not in without:
            return (held,)
        return self._sources(number, without)

    def _sources(self, number: int, without: frozenset[str]) -> tuple[str, ...] | None:
        found: set[str] = set()
        waiting, seen = [number], set[int]()
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            held = self._holders.get(one)
            if held is None or one == number:
                value = self._flow.values[one]
                waiting += value.names or value.operands
            elif self._kernel(held) in without:
                return None
            else:
                found.add(held)
        return tuple(sorted(found))

    def _kernel(self, name: str) -> str:
        return self._entry.behind(name, ("bitcast", "get-tuple-element"))


# Where the values of a program come from: its arguments, or what its loops return.


def origin(flow: Flow, number: int) -> int:
    """An argument of the program, a loop's result, or what has no operand; along the first operand."""
    seen: set[int] = set()
    while number not in seen:
        seen.add(number)
        value = flow.values[number]
        loop = value.computation.name == flow.module.entry and value.instruction.opcode == "while"
        sources = value.names or value.operands[:1]
        if loop or is_argument(flow, number) or not sources:
            break
        number = sources[0]
    return number


def is_argument(flow: Flow, number: int) -> bool:
    """Whether it is an argument of the program."""
    value = flow.values[number]
    return value.instruction.opcode == "parameter" and value.computation.name == flow.module.entry


# How an instruction takes what it reads: as a buffer, element by element, or only to hand a part of it on.


PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
"""Opcodes of matrix products; libraries are called by ``custom-call``."""

_COPIES = VIEWS | {"slice"}


def only_moves(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction gives the same numbers in another order."""
    if one.opcode in _COPIES:
        return True
    if one.opcode != "fusion":
        return False
    body = module.computations[one.called[0]]
    return all(part.opcode in _COPIES or part.opcode in ("parameter", "tuple") for part in body.instructions)


def takes_part(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction only takes a layer's part out of a stack, or lays it out in another way."""
    if one.opcode in ("dynamic-slice", "copy", "transpose"):
        return True
    if one.opcode != "fusion":
        return False
    allowed = _COPIES | {"dynamic-slice", "parameter", "constant", "add", "subtract", "compare", "select"}
    inside = module.computations[one.called[0]].instructions
    large = [part for part in inside if part.shape.dims]  # the arithmetic of the index is on single numbers
    return (
        any(part.opcode == "dynamic-slice" for part in inside)
        and all(part.opcode in _COPIES | {"dynamic-slice", "parameter"} for part in large)
        and all(part.opcode in allowed for part in inside)
    )


def takes_buffers(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction holds what cannot be computed element by element: a product, a loop, a library's call."""
    if one.opcode in PRODUCTS or one.opcode in ("while", "sort", "scatter", "conditional", "call"):
        return True
    return any(
        part.opcode in PRODUCTS
        for name in one.called
        if one.opcode == "fusion"
        for part in module.computations[name].instructions
    )


def reduces(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction is a kernel that adds up rows or columns among other things."""
    return one.opcode == "fusion" and any(
        part.opcode == "reduce" for part in module.computations[one.called[0]].instructions
    )
