"""Layers that run one after another, each with a scope of its own, with a checkpoint policy, as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from perfscope.analyzers.checkpointing.xla_model.barrier import GRADIENT, INPUT, SMALL, WEIGHTS
from perfscope.analyzers.checkpointing.xla_model.graph import Graph, Node
from perfscope.analyzers.checkpointing.xla_model.graph_edit import without_unread
from perfscope.analyzers.checkpointing.xla_model.kept import Filled
from perfscope.analyzers.checkpointing.xla_model.layers import Kept, Layer, Layers
from perfscope.analyzers.checkpointing.xla_model.outputs import Outputs, is_argument, origin, takes_buffers
from perfscope.analyzers.checkpointing.xla_model.plan import KERNEL, Plan, join_sums
from perfscope.analyzers.checkpointing.xla_model.policies import Keeps, with_merged_parts
from perfscope.analyzers.checkpointing.xla_model.unrolled import entry_scopes, readers_of
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.scope import scope_of

_VIEWS = frozenset({"bitcast", "get-tuple-element"})
_NOT_READERS = _VIEWS | {"tuple"}
_FROM_NOTHING = frozenset({"constant", "iota", "parameter", "broadcast"})


def single_plan(module: HloModule, flow: Flow, schedule: Schedule, layers: Sequence[Layers], keeps: Keeps) -> Graph:
    """The program with a policy for these layers, which keep everything today."""
    return _SinglePlan(module, flow, schedule, layers, with_merged_parts(flow, keeps)).made_of_it()


class _SinglePlan(Plan):
    def __init__(
        self, module: HloModule, flow: Flow, schedule: Schedule, layers: Sequence[Layers], keeps: Keeps
    ) -> None:
        super().__init__(module, flow, schedule, keeps)
        self.back = self.entry
        self._layers = layers
        self._code = module.entry_computation()
        self._scopes = entry_scopes(self._code)
        self._readers = dict(readers_of(self._code))
        self._outputs = Outputs(module, flow, self.entry)
        self._scope = cache(scope_of)
        self._forward = self._up_to(max(one.forward[1] for one in layers))
        self._inside: dict[tuple[str, ...], list[int]] = self._backward_values()
        forward = self._forward | {name for name, scope in self._scopes.items() if scope.phase == "forward"}
        self._filled = Filled(module, self.entry, Layer(flow, layers[0]), forward, KERNEL)
        self._members: frozenset[str] = frozenset()
        self._backward: frozenset[str] = frozenset()
        """Of the layer at hand."""

    def made_of_it(self) -> Graph:
        """One layer after the other."""
        for at, layers in enumerate(self._layers):
            self._one(at, layers)
        without_unread(self.graph)
        self._filled.finish()
        return self.graph

    def initial(self, number: int, size: int) -> str:
        """As ``Plan``; a loop works in place on what it begins with, so an array of one number is its own."""
        if not self.layer.is_filled(number):
            return super().initial(number, size)
        return self._filled.own(size, self.mark)

    def _value(self, number: int) -> str:
        """As ``Plan``; an array of one number that is in memory is read from there."""
        held = self._filled.held.get(number)
        return super()._value(number) if held is None else held

    def _up_to(self, end: int) -> frozenset[str]:
        """What the forward needs, also where it has the path of the backward, with which XLA shares it."""
        waiting = [
            name
            for name, scope in self._scopes.items()
            if scope.phase == "forward"
            and self.schedule.positions[name] < end
            and self.entry.nodes[name].opcode not in _VIEWS
        ]
        found = set(waiting)
        while waiting:
            for operand in self.entry.nodes[waiting.pop()].operands:
                if operand not in found:
                    found.add(operand)
                    waiting.append(operand)
        return frozenset(found)

    def _backward_values(self) -> dict[tuple[str, ...], list[int]]:
        """What the backward of each layer computes, also within kernels."""
        found: dict[tuple[str, ...], list[int]] = {one.scope: [] for one in self._layers}
        for number, value in enumerate(self.flow.values):
            one = value.instruction
            if one.op_name and not value.names and one.opcode not in ("parameter", "constant"):
                scope = self._scope(one.op_name)
                if scope.phase != "forward":
                    for path, numbers in found.items():
                        if scope.path[: len(path)] == path:
                            numbers.append(number)
        return found

    def _one(self, at: int, layers: Layers) -> None:
        self.mark = f".{at}"
        self.begin(Layer(self.flow, layers))
        self.layer.held = self._filled.held
        path = layers.scope
        self._members = frozenset(name for name, scope in self._scopes.items() if scope.path[: len(path)] == path)
        self._backward = frozenset(
            name for name in self._members if self._scopes[name].phase != "forward" and name not in self._forward
        )
        self.find_sole(layers.kept)
        self.open_barrier()
        below = self._below()
        self._gradients(below)
        self._sum_of_gradients(path, below)
        for kept in layers.kept:
            self.rewire(kept)
        self._inputs()
        join_sums(self.flow, self._code, self.entry, self.made, self._backward, KERNEL)
        self.barrier.close()

    def _kernels(self) -> Iterator[Node]:
        """Those of the layer's backward, in their order today."""
        for name in sorted(self._backward, key=self.schedule.positions.__getitem__):
            if name in self.entry.nodes and self._code.by_name[name].opcode not in _NOT_READERS:
                yield self.kernel_of(name)

    def _below(self) -> frozenset[str]:
        """What needs something of the layer's backward."""
        users = self.entry.users()
        waiting = [name for name in self._backward if name in users and self.entry.nodes[name].opcode != "bitcast"]
        found = set(waiting)
        while waiting:
            for user in users[waiting.pop()]:
                if user not in found:
                    found.add(user)
                    waiting.append(user)
        return frozenset(found)

    def _gradients(self, below: frozenset[str]) -> None:
        """What the layer's backward reads of the backward behind it goes through the barrier."""
        found: dict[str, None] = {}
        for node in self._kernels():
            for operand in map(self.entry.behind, node.operands):
                source = self.entry.behind(operand, _VIEWS)
                scope = self._scopes.get(source)
                elsewhere = scope is not None and scope.phase != "forward" and source not in self._members
                plain = self.entry.nodes[source].opcode in ("parameter", "constant", "tuple")
                if elsewhere and not plain and source not in below and self.entry.nodes[operand].bytes > SMALL:
                    found[operand] = None
        for operand in found:
            behind = self.barrier.take(operand, self.entry.nodes[operand].bytes, (GRADIENT, 0))
            for node in self._kernels():
                operands = tuple(behind if self.entry.behind(one) == operand else one for one in node.operands)
                self.entry.change(node.name, operands=operands)

    def _sum_of_gradients(self, path: tuple[str, ...], below: frozenset[str]) -> None:
        """The gradient that comes in is one array in front of the barrier, also where its readers compute it today.

        Gradients of stacked weights are summed up layer by layer, and none of that goes through the barrier.
        """
        weights = {one.shape.dims for one in self._code.instructions if one.opcode == "parameter"}
        found: dict[int, int] = {}
        for number in self._inside[path]:
            for source in self.flow.back(self.flow.values[number].operands):
                one = self.flow.values[source].instruction
                if not one.op_name or one.opcode in _FROM_NOTHING or one.shape.parts or one.shape.bytes <= SMALL:
                    continue
                scope = self._scope(one.op_name)
                elsewhere = scope.phase != "forward" and scope.path[: len(path)] != path
                if elsewhere and one.shape.dims not in weights:
                    found[source] = one.shape.bytes
        most = max(found.values(), default=0)
        seen: set[tuple[str, ...]] = set()
        for source in sorted(number for number, size in found.items() if size == most):
            operands = self._outputs.computed_from(source, below)
            if not operands or operands in seen:
                continue
            seen.add(operands)
            name = operands[0]
            if len(operands) > 1 or self.entry.nodes[name].bytes != most:
                name = self.entry.add(
                    Node(name=f"gradient{self.mark}.{source}", opcode=KERNEL, operands=operands, sizes=(most,))
                )
            if name not in self.barrier:
                self.barrier.take(name, most, (GRADIENT, 1))

    def _inputs(self) -> None:
        """Weights, and what was there before the layer, that its backward reads: from behind the barrier."""
        through: dict[str, str] = {}
        for node in self._kernels():
            code = self._code.by_name.get(node.name.removesuffix(".more"))
            operands = list(node.operands)
            for slot, name in enumerate(node.operands):
                operand, source = self.entry.behind(name), self.entry.behind(name, _VIEWS)
                size, argument = self.entry.nodes[operand].bytes, self._argument(name)
                if argument:
                    part = 0 if code is None else self._part_read(code, name)
                    if part:
                        operands[slot] = self._part_of(argument, part)
                elif source not in self._members and self._is_forward(source) and size > SMALL:
                    if operand in self._filled.held.values():
                        continue
                    if operand not in through:
                        through[operand] = self.barrier.take(operand, size, (INPUT, 1))
                    operands[slot] = through[operand]
            self.entry.change(node.name, operands=tuple(operands))

    def _argument(self, name: str) -> str:
        """The argument of the program that it is, or a copy of; empty: it is none."""
        source = self.entry.behind(name, _VIEWS | {"copy"})
        return source if self.entry.nodes[source].opcode == "parameter" else ""

    def _is_forward(self, name: str) -> bool:
        return name in self._scopes and self._scopes[name].phase == "forward"

    def _part_read(self, one: Instruction, operand: str) -> int:
        """Bytes of the part of an argument (a layer's of stacked weights) that a kernel reads; 0: all."""
        if one.opcode != "fusion" or operand not in one.operands:
            return 0
        inside, slot = self.module.computations[one.called[0]], one.operands.index(operand)
        names = {part.name for part in inside.instructions if part.parameter_number == slot}
        for part in inside.instructions:
            if not names.isdisjoint(part.operands):
                if part.opcode == "slice":
                    return part.shape.bytes
                if part.opcode == "bitcast":
                    names.add(part.name)
        return 0

    def _part_of(self, argument: str, size: int) -> str:
        if argument not in self.weights_of:
            part = Node(name=f"weights{self.mark}.{argument}", opcode=KERNEL, operands=(argument,), sizes=(size,))
            rank = WEIGHTS, self.entry.nodes[argument].number
            self.weights_of[argument] = self.barrier.take(self.entry.add(part), size, rank)
            self._forward_reads(part.name, argument)
        return self.weights_of[argument]

    def _forward_reads(self, part: str, argument: str) -> None:
        """The barrier needs a layer's part of stacked weights in memory: there products of its forward read it as well.

        Other kernels take their own part: it stands behind a view, which XLA fuses into whoever takes it.
        """
        for name in self._members:
            code, node = self._code.by_name[name], self.entry.nodes.get(name)
            if node is None or self._scopes[name].phase != "forward" or not takes_buffers(self.module, code):
                continue
            names = tuple(
                part if self._argument(one) == argument and self._part_read(code, one) else one for one in node.operands
            )
            if names != node.operands:
                self.entry.change(name, operands=names)

    def weights(self, number: int) -> str | None:
        """An argument, or the layer's part of it."""
        source = origin(self.flow, number)
        if not is_argument(self.flow, source):
            return None
        one = self.flow.values[source].instruction
        if one.name not in self.weights_of:
            seen: set[int] = set()
            while number not in seen:
                seen.add(number)
                value = self.flow.values[number]
                if value.instruction.opcode == "slice":
                    return self._part_of(one.name, value.instruction.shape.bytes)
                number = next(iter(value.names or value.operands[:1]), number)
            rank = WEIGHTS, one.parameter_number or 0
            self.weights_of[one.name] = self.barrier.take(one.name, one.shape.bytes, rank)
        return self.weights_of[one.name]

    def input_of(self, number: int, size: int) -> str:
        """What holds it when the forward is through."""
        return self._outputs.holder(number, size, clones=self.layer.carried(number))

    def readers(self, kept: Kept) -> Iterable[tuple[str, bool]]:
        """Instructions of the layer's backward."""
        for one in self._readers.get(kept.part, ()):
            if one.name in self._backward:
                yield one.name, one.opcode == "tuple" or takes_buffers(self.module, one)

    def views(self, kept: Kept) -> frozenset[str]:
        """The kernel or the part of its tuple, and other layouts of it."""
        name, index = kept.part
        found = {name} if index is None else set()
        users = self.entry.users()
        waiting = [
            user
            for user in users.get(name, ())
            if self.entry.nodes[user].opcode == ("bitcast" if index is None else "get-tuple-element")
            and (index is None or self.entry.nodes[user].index == index)
        ]
        while waiting:
            one = waiting.pop()
            found.add(one)
            waiting += [user for user in users[one] if self.entry.nodes[user].opcode == "bitcast"]
        return frozenset(found)
