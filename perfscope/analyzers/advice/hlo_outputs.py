"""Which instruction of a program's entry holds a value, and what a value is computed from that one holds."""

from __future__ import annotations

from collections import defaultdict

from perfscope.analyzers.advice.hlo_graph import Body, Node
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.module import HloModule

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
