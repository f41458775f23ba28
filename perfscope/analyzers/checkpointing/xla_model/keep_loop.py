"""A pair of loops over layers that are checkpointed today, with everything kept, as a graph.

What the backward reads of the values it computes again is what JAX would keep: the forward's loop writes each into an
array of all layers, and the backward reads it from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfscope.analyzers.checkpointing.xla_model.graph import Graph, Node, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import add_element, without_unread, without_unrun
from perfscope.analyzers.checkpointing.xla_model.keep_single import barriers_opened
from perfscope.analyzers.checkpointing.xla_model.kept import runs_again
from perfscope.analyzers.checkpointing.xla_model.layers import Layers
from perfscope.analyzers.checkpointing.xla_model.orders import further_result, is_dear
from perfscope.analyzers.checkpointing.xla_model.outputs import takes_buffers
from perfscope.analyzers.checkpointing.xla_model.same import Sames
from perfscope.analyzers.hlo.flow import POINTWISE, Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule


def kept_loop(module: HloModule, flow: Flow, schedule: Schedule, layers: Layers, graph: Graph | None = None) -> Graph:
    """The program without the checkpoints of a loop's layers."""
    return _KeepLoop(module, flow, schedule, layers, graph).made_of_it()


class _KeepLoop:
    def __init__(self, module: HloModule, flow: Flow, schedule: Schedule, layers: Layers, graph: Graph | None) -> None:
        self._module = module
        self._flow = flow
        self._layers = layers
        self._graph = graph_of(module) if graph is None else graph
        self._entry = self._graph.main
        self._mark = f".{layers.forward[0]}"
        loops = {
            schedule.positions[node.name] + 1: node.name
            for node in self._entry.nodes.values()
            if node.body and node.name in schedule.positions
        }
        self._first, self._second = loops[layers.forward[1]], loops[layers.backward[1]]
        self._forth = self._graph.bodies[self._entry.nodes[self._first].body]
        self._back = self._graph.bodies[self._entry.nodes[self._second].body]
        self._forth_code: Computation = module.computations[self._forth.name]
        self._back_code: Computation = module.computations[self._back.name]
        self._sames = Sames(flow, dict(self._stacks()))
        self._holders: dict[int, str] = {}
        self._makers: dict[int, tuple[str, int]] = {}
        self._counter = tuple(
            node.name
            for node in self._back.nodes.values()
            if node.is_scalar and node.operands == (self._back.parameter(),)
        )[:1]
        self._elements: dict[int, str] = {}
        """What is kept, and the element of the backward's state that holds it."""
        self._slices: dict[int, str] = {}
        self._anything: dict[int, bool] = {}

    def _stacks(self) -> Iterator[tuple[int, int]]:
        entry = self._module.entry_computation()
        for kept in self._layers.kept:
            for one in entry.instructions:
                mine = one.opcode == "get-tuple-element" and one.operands == (self._first,)
                if mine and one.attributes.get("index") == str(kept.stored):
                    yield self._flow.numbers[entry.name, one.name], kept.number

    def made_of_it(self) -> Graph:
        """All steps."""
        self._find_forward()
        barriers_opened(self._graph, self._back.name)
        for one in self._back_code.instructions:
            if one is not self._back_code.root and one.opcode not in ("bitcast", "get-tuple-element", "parameter"):
                self._read_kept(one)
        self._twice()
        without_unread(self._graph)
        without_unrun(self._graph)
        return self._graph

    # the forward

    def _find_forward(self) -> None:
        for one in self._forth_code.instructions:
            number = self._flow.numbers[self._forth.name, one.name]
            if one.opcode in ("bitcast", "tuple", "constant", "parameter") or one.shape.dtype == "tuple":
                if one.opcode != "fusion":
                    continue
            elif not self._forth.nodes[one.name].updates and self._from_something(number):
                self._holders.setdefault(self._sames.of(number), one.name)
            if one.opcode == "fusion":
                for inner in self._module.computations[one.called[0]].instructions:
                    made = self._flow.numbers[one.called[0], inner.name]
                    makes = inner.opcode not in ("parameter", "bitcast", "tuple") and self._from_something(made)
                    if makes and not self._forth.nodes[one.name].updates:
                        self._makers.setdefault(self._sames.of(made), (one.name, made))

    def _from_something(self, number: int) -> bool:
        """Whether it is computed from arguments or states at all; masks and the like are not."""
        waiting = [number]
        while waiting:
            one = waiting[-1]
            if one in self._anything:
                waiting.pop()
                continue
            source = self._sames.source(one)
            value = self._flow.values[source]
            given = value.carried or value.instruction.opcode == "parameter" or bool(value.names)
            behind = () if given else (value.operands if source == one else (source,))
            missing = [each for each in behind if each not in self._anything]
            if missing:
                waiting += missing
                continue
            self._anything[one] = given or any(self._anything[each] for each in behind)
            waiting.pop()
        return self._anything[number]

    def _twice(self) -> None:
        """The derivative of a square is twice its operand, which JAX keeps: XLA works the 2 in elsewhere."""
        for kind, (_, number) in list(self._makers.items()):
            one = self._flow.values[number].instruction
            if one.opcode != "multiply" or one.op_name.rpartition("/")[2] not in ("square", "integer_pow"):
                continue
            operand = self._value(self._flow.values[number].operands[0])
            element = self._elements.get(self._sames.of(operand))
            if element is None:
                continue
            twice = self._stack(-1 - kind, operand, self._bytes(operand))
            for node in list(self._back.nodes.values()):
                if element in node.operands and node.name != self._back.root:
                    self._back.change(node.name, operands=(*node.operands, twice))
                    break

    # the backward

    def _value(self, number: int) -> int:
        """What is kept for a value to be read: it is there again for nothing behind a broadcast."""
        number = self._sames.source(number)
        while self._flow.opcode(number) == "broadcast" and self._flow.values[number].operands:
            number = self._sames.source(self._flow.values[number].operands[0])
        return number

    def _bytes(self, number: int) -> int:
        """As JAX has it: XLA computes what has no instruction in 16 bits in 32, without a cast of the user's."""
        one = self._flow.values[number].instruction
        if one.shape.dtype != "f32":
            return one.shape.bytes
        waiting, seen = [number], {number}
        while waiting:
            value = self._flow.values[waiting.pop()]
            for operand in value.operands:
                source = self._flow.values[operand].instruction
                if source.shape.elements != one.shape.elements or operand in seen:
                    continue
                seen.add(operand)
                if source.opcode == "convert" and source.shape.dtype == "f32":
                    inner = self._flow.values[self._flow.values[operand].operands[0]].instruction.shape
                    if inner.dtype == "bf16" and not source.op_name.endswith("convert_element_type"):
                        return one.shape.bytes // 2
                elif source.opcode in POINTWISE and source.op_name.rpartition("/")[2] == one.op_name.rpartition("/")[2]:
                    waiting.append(operand)
        return one.shape.bytes

    def _again(self, number: int) -> bool:
        """Whether a value is computed again, from something."""
        value = self._flow.values[self._value(number)]
        return runs_again(value.instruction.op_name, loops=True) and self._from_something(number)

    def _read_kept(self, one: Instruction) -> None:
        node = self._back.nodes[one.name]
        product = takes_buffers(self._module, one) or one.fusion_kind == "kCustom"
        if one.opcode != "fusion":
            if not runs_again(one.op_name, loops=True):
                operands = []
                for name in one.operands:
                    number = self._flow.numbers[self._back.name, name]
                    operands.append(self._slice(number) if self._again(number) else name)
                self._back.change(one.name, operands=tuple(operands))
            return
        inside = self._module.computations[one.called[0]]
        root = inside.root
        results = root.operands if root.opcode == "tuple" else (root.name,)
        numbers = [self._flow.numbers[inside.name, name] for name in results]
        waiting = [number for number in numbers if not self._again(number)]
        if not waiting:
            return
        found: dict[str, int] = {}
        slots: dict[int, str] = {}
        seen = set(waiting)
        while waiting:
            number = waiting.pop()
            value = self._flow.values[number]
            if self._again(number):
                found.setdefault(self._slice(number) if product else self._element(number), len(one.operands))
            elif value.instruction.opcode == "parameter" and value.computation.name == inside.name:
                slot = value.instruction.parameter_number or 0
                slots[slot] = one.operands[slot]
                found[one.operands[slot]] = min(slot, found.get(one.operands[slot], slot))
            else:
                for operand in value.operands:
                    if operand not in seen:
                        seen.add(operand)
                        waiting.append(operand)
        operands = sorted(found, key=lambda name: (found[name], name))
        places = {name: at for at, name in enumerate(operands)}
        sizes = tuple(
            0 if node.is_tuple and self._again(number) else size
            for number, size in zip(numbers, node.sizes, strict=True)
        )
        self._back.nodes[one.name] = replace(
            node,
            operands=tuple(operands),
            sizes=sizes,
            updates=tuple((part, places[slots[slot]]) for part, slot in node.updates if slot in slots),
            reuses=tuple((part, places[slots[slot]]) for part, slot in node.reuses if slot in slots),
        )

    def _slice(self, number: int) -> str:
        """A layer's part of what is kept, as a buffer."""
        number = self._value(number)
        kind = self._sames.of(number)
        if kind not in self._slices:
            size = self._bytes(number)
            self._slices[kind] = self._back.add(
                Node(
                    name=f"kept{self._mark}.{kind}",
                    opcode="kernel",
                    operands=(self._element(number), *self._counter),
                    sizes=(size,),
                )
            )
        return self._slices[kind]

    def _element(self, number: int) -> str:
        """What is kept of all layers, in the backward's state."""
        number = self._value(number)
        kind = self._sames.of(number)
        if kind not in self._elements:
            self._elements[kind] = self._stack(kind, number, self._bytes(number))
        return self._elements[kind]

    def _stack(self, kind: int, source: int, size: int) -> str:
        total = size * self._layers.count
        name = f"{self._mark}.{kind}"
        zeros = self._entry.add(Node(name=f"zeros{name}", opcode="kernel", sizes=(total,)))
        at, element = add_element(self._graph, self._entry, self._first, zeros, total)
        writer = Node(
            name=f"write{name}",
            opcode="kernel",
            operands=(element, *self._made_from(source)),
            sizes=(total,),
            updates=((0, 0),),
        )
        self._forth.add(writer)
        root = self._forth.nodes[self._forth.root]
        self._forth.change(root.name, operands=(*root.operands[:at], writer.name, *root.operands[at + 1 :]))
        stack = self._entry.add(
            Node(name=f"stack{name}", opcode="get-tuple-element", operands=(self._first,), sizes=(total,), index=at)
        )
        return add_element(self._graph, self._entry, self._second, stack, total)[1]

    def _made_from(self, number: int) -> tuple[str, ...]:
        """What of the forward's loop a value is there computed from."""
        found: dict[str, None] = {}
        waiting, seen = [number], {number}
        while waiting:
            one = waiting.pop()
            kind = self._sames.of(one)
            if kind in self._holders:
                found[self._holders[kind]] = None
                continue
            made = self._makers.get(kind)
            if made is not None and is_dear(self._flow, made[1], self._is_held):
                found[self._made_once(kind, one)] = None
                continue
            for operand in self._sames.behind(self._sames.source(one)):
                if operand not in seen:
                    seen.add(operand)
                    waiting.append(operand)
        return tuple(found)

    def _is_held(self, number: int) -> bool:
        return self._sames.of(number) in self._holders

    def _made_once(self, kind: int, number: int) -> str:
        """A further result of the kernel of the forward that computes it."""
        size = self._bytes(self._value(number))
        self._holders[kind] = further_result(self._forth, self._makers[kind][0], f"once{self._mark}.{kind}", size)
        return self._holders[kind]
