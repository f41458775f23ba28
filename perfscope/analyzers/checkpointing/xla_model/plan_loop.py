"""A pair of loops over layers with a checkpoint policy, as a graph."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.checkpointing.xla_model.barrier import GRADIENT, SMALL, WEIGHTS
from perfscope.analyzers.checkpointing.xla_model.fused import written_again
from perfscope.analyzers.checkpointing.xla_model.graph import Graph, Node
from perfscope.analyzers.checkpointing.xla_model.graph_edit import (
    add_element,
    drop_element,
    spliced,
    state_element,
    without_unread,
    without_unrun,
)
from perfscope.analyzers.checkpointing.xla_model.layers import Kept, Layer, Layers
from perfscope.analyzers.checkpointing.xla_model.outputs import is_argument, origin, takes_buffers, takes_part
from perfscope.analyzers.checkpointing.xla_model.plan import (
    KERNEL,
    Plan,
    comes_from_nothing,
    stack_writers,
    within_readers,
)
from perfscope.analyzers.checkpointing.xla_model.policies import Keeps, with_merged_parts
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import Computation, HloModule
from perfscope.analyzers.hlo.parse.thunks import Schedule

_NO_KERNEL = frozenset({"bitcast", "get-tuple-element", "parameter", "tuple", "constant"})


def loop_plan(
    module: HloModule, flow: Flow, schedule: Schedule, layers: Layers, keeps: Keeps, graph: Graph | None = None
) -> Graph:
    """The program with a policy for a loop's layers, which keep everything today.

    ``graph``: the program where the layers of other loops have the policy already.
    """
    return _LoopPlan(module, flow, schedule, layers, with_merged_parts(flow, keeps), graph).made_of_it()


class _LoopPlan(Plan):
    def __init__(
        self,
        module: HloModule,
        flow: Flow,
        schedule: Schedule,
        layers: Layers,
        keeps: Keeps,
        graph: Graph | None,
    ) -> None:
        super().__init__(module, flow, schedule, keeps, graph)
        if graph is not None:
            self.mark = f".{layers.forward[0]}"
        self.begin(Layer(flow, layers))
        self._layers = layers
        loops = {
            schedule.positions[node.name] + 1: node.name
            for node in self.entry.nodes.values()
            if node.body and node.name in schedule.positions
        }
        self._first, self._second = loops[layers.forward[1]], loops[layers.backward[1]]
        self._forth = self.graph.bodies[self.entry.nodes[self._first].body]
        self.back = self.graph.bodies[self.entry.nodes[self._second].body]
        self._forth_code: Computation = module.computations[self._forth.name]
        self._back_code: Computation = module.computations[self.back.name]
        self._stacks: dict[int, str] = {}
        """Value, and the element of the backward's state that holds those of all layers."""
        self._counter = tuple(
            node.name
            for node in self.back.nodes.values()
            if node.is_scalar and node.operands == (self.back.parameter(),)
        )[:1]

    def _written(self) -> dict[int, int]:
        """Values that XLA writes where they are made again."""
        stacks = {
            self.flow.numbers[self.entry.name, node.name]: kept.number
            for node in self.entry.nodes.values()
            for kept in self._layers.kept
            if node.opcode == "get-tuple-element" and node.operands == (self._first,) and node.index == kept.stored
        }
        names = [one.name for one in self._back_code.instructions if one.opcode not in _NO_KERNEL]
        return written_again(self.flow, self._layers, self._back_code, self.keeps, stacks, names)

    def made_of_it(self) -> Graph:
        """All steps."""
        self.layer.write(self._written())
        kept = self._layers.kept
        retained = set(self._retain())
        dropped = [one for at, one in enumerate(kept) if at not in retained]
        self._constants()
        self.find_sole(dropped)
        writers = stack_writers(self._forth_code, (one.stored for one in kept))
        self.open_barrier()
        self._find_zeros()
        self._through_barrier()
        for one in kept:
            self.rewire(one)
        self.barrier.close()
        self.join_siblings()
        for one in dropped:
            drop_element(self.graph, self.entry, self._first, one.stored)
            drop_element(self.graph, self.entry, self._second, one.read)
        without_unread(self.graph)
        for name in writers:
            within_readers(self.module, self.flow, self.layer, self._forth, name)
        without_unread(self.graph)
        without_unrun(self.graph)
        return self.graph

    def _retain(self) -> Iterator[int]:
        """Stacks that stay: the layer's input and what the policy keeps, where they are stacked as they are."""
        for at, kept in enumerate(self._layers.kept):
            made = self.layer.made(kept.number)
            if len(made) != 1:
                continue
            number = self.layer.first_of_its_kind(min(made))
            fits = kept.bytes == self.layer.bytes(number) * self._layers.count
            if (self.layer.carried(number) or self.keeps(number)) and number not in self._stacks and fits:
                self._stacks[number] = state_element(self.back, kept.read)
                yield at

    def _constants(self) -> None:
        """Masks and the like that come from nothing: the backward computes them where it reads them."""
        entry = self.module.entry_computation()
        begin = entry.by_name[entry.by_name[self._second].operands[0]]
        invariants = self.back.invariants()
        for at, name in enumerate(begin.operands):
            one = entry.by_name[name]
            plain = one.opcode == "constant" or not one.shape.dims
            if plain or not invariants[at] or not comes_from_nothing(entry, one):
                continue
            element = state_element(self.back, at)
            readers = [user for user in self.back.users()[element] if user != self.back.root]
            if any(self.back.nodes[user].opcode in ("tuple", "while") for user in readers):
                continue
            for user in readers:
                self.back.nodes[user] = spliced(self.back.nodes[user], {element}, ())
            drop_element(self.graph, self.entry, self._second, at)

    def _find_zeros(self) -> None:
        """Arrays of zeros that the backward's body makes: XLA makes none of the same kind beside them."""
        for one in self._back_code.instructions:
            if one.opcode == "fusion" and not one.operands and one.shape.dtype != "tuple":
                root = self.module.computations[one.called[0]].root
                kind = self.layer.zeros(self.flow.numbers[one.called[0], root.name])
                if kind is not None:
                    self.zeros.setdefault(kind, one.name)

    def _through_barrier(self) -> None:
        """Weights, a layer's part of each, and the gradient that one layer hands to the next."""
        dropped = {one.read for one in self._layers.kept}
        state = self.back.parameter()
        users = self.back.users()
        for node in list(self.back.nodes.values()):
            mine = node.opcode == "get-tuple-element" and node.operands == (state,)
            if not mine or node.index in dropped or node.is_scalar or node.name not in self._back_code.by_name:
                continue
            if self.back.nodes[self.back.root].operands[node.index] != node.name:
                readers = [self.back.nodes[user] for user in users[node.name]]
                if node.bytes > SMALL and not any(one.updates or one.opcode == "tuple" for one in readers):
                    behind = self.barrier.take(node.name, node.bytes, (GRADIENT, 0))
                    self._read_instead(node.name, behind, users[node.name])
                continue
            self._weights_through(node, users)

    def _weights_through(self, node: Node, users: dict[str, list[str]]) -> None:
        source = origin(self.flow, self.flow.numbers[self.back.name, node.name])
        shape = self._back_code.by_name[node.name].shape
        if not is_argument(self.flow, source) or shape.dims[:1] != (self._layers.count,):
            return
        size = shape.bytes // self._layers.count
        behind = self._part_of_weights(source, node.name, size)
        waiting, seen = [node.name], set[str]()
        while waiting:
            name = waiting.pop()
            for user in users[name]:
                one = self.back.nodes[user]
                if user in seen or user == self.back.root:
                    continue
                seen.add(user)
                if one.opcode == "bitcast":
                    waiting.append(user)
                elif user in self._back_code.by_name and takes_part(self.module, self._back_code.by_name[user]):
                    if one.sizes == (size,):
                        self.back.add(Node(name=user, opcode="bitcast", operands=(behind,), sizes=one.sizes))
                else:
                    self._read_instead(name, behind, [user])

    def _part_of_weights(self, source: int, element: str, size: int) -> str:
        part = Node(
            name=f"weights{self.mark}.{source}", opcode=KERNEL, operands=(element, *self._counter), sizes=(size,)
        )
        number = self.flow.values[source].instruction.parameter_number or 0
        self.weights_of[source] = self.barrier.take(self.back.add(part), size, (WEIGHTS, number))
        return self.weights_of[source]

    def _read_instead(self, name: str, other: str, users: list[str]) -> None:
        for user in users:
            operands = self.back.nodes[user].operands
            self.back.change(user, operands=tuple(other if one == name else one for one in operands))

    def weights(self, number: int) -> str | None:
        """A layer's part of stacked weights."""
        source = origin(self.flow, number)
        if not is_argument(self.flow, source):
            return None
        if source not in self.weights_of:
            shape = self.flow.values[source].instruction.shape
            size = shape.bytes // (self._layers.count if shape.dims[:1] == (self._layers.count,) else 1)
            argument = self.flow.values[source].instruction.name
            _, element = add_element(self.graph, self.entry, self._second, argument, shape.bytes)
            self._part_of_weights(source, element, size)
        return self.weights_of[source]

    def input_of(self, number: int, size: int) -> str:
        """A layer's part of a stack."""
        stack = self._stacks[number] if number in self._stacks else self._new_stack(number, size)
        return self.back.add(
            Node(name=f"kept{self.mark}.{number}", opcode=KERNEL, operands=(stack, *self._counter), sizes=(size,))
        )

    def _new_stack(self, number: int, size: int) -> str:
        total = size * self._layers.count
        zeros = self.entry.add(Node(name=f"zeros{self.mark}.{number}", opcode=KERNEL, sizes=(total,)))
        at, element = add_element(self.graph, self.entry, self._first, zeros, total)
        writer = Node(
            name=f"write{self.mark}.{number}",
            opcode=KERNEL,
            operands=(element, *self._forward_of(number)),
            sizes=(total,),
            updates=((0, 0),),
        )
        self._forth.add(writer)
        root = self._forth.nodes[self._forth.root]
        self._forth.change(root.name, operands=(*root.operands[:at], writer.name, *root.operands[at + 1 :]))
        stack = self.entry.add(
            Node(
                name=f"stack{self.mark}.{number}",
                opcode="get-tuple-element",
                operands=(self._first,),
                sizes=(total,),
                index=at,
            )
        )
        if self._is_laid_out(number):
            stack = self.entry.add(
                Node(name=f"laid{self.mark}.{number}", opcode=KERNEL, operands=(stack,), sizes=(total,))
            )
        _, self._stacks[number] = add_element(self.graph, self.entry, self._second, stack, total)
        return self._stacks[number]

    def _is_laid_out(self, number: int) -> bool:
        """Whether the stack is laid out anew in front of the backward, as stacks of what comes from it are today."""
        return any(
            name in self.entry.nodes
            for kept in self._layers.kept
            if any(number in self.layer.bases(one, self.keeps, self.memory) for one in self.layer.made(kept.number))
            for name in kept.copies
        )

    def _forward_of(self, number: int) -> tuple[str, ...]:
        """What the forward's loop computes a value with."""
        value = self.flow.values[number]
        if value.computation.name == self._forth.name:
            return (value.instruction.name,)
        users = self._forth.users()
        for one in self._forth_code.instructions:
            if one.opcode != "fusion" or one.called[0] != value.computation.name or one.name not in self._forth.nodes:
                continue
            node = self._forth.nodes[one.name]
            if node.updates:  # the kernel that writes a stack computes it: from what it reads
                stacks = {slot for _, slot in node.updates}
                read = [name for slot, name in enumerate(node.operands) if slot not in stacks]
                return tuple(name for name in read if not self._forth.nodes[name].is_scalar)
            root = self.module.computations[one.called[0]].root
            if root.opcode == "tuple":
                for part, name in enumerate(root.operands):
                    if number in self.layer.made(self.flow.numbers[one.called[0], name]):
                        for user in users[one.name]:
                            if self._forth.nodes[user].index == part:
                                return (user,)
            return (one.name,)
        return ()

    def readers(self, kept: Kept) -> Iterator[tuple[str, bool]]:
        """Instructions of the backward's body behind those that take the layer's part out."""
        views = self.views(kept)
        for one in self._back_code.instructions:
            if one.name not in views and one is not self._back_code.root and not views.isdisjoint(one.operands):
                yield one.name, one.opcode == "tuple" or takes_buffers(self.module, one)

    def views(self, kept: Kept) -> frozenset[str]:
        """The element of the state, and what only takes a part of it."""
        state = self.back.parameter()
        found = {
            one.name
            for one in self._back_code.instructions
            if one.opcode == "get-tuple-element"
            and one.operands == (state,)
            and one.attributes.get("index") == str(kept.read)
        }
        for one in self._back_code.instructions:
            takes = one.opcode == "bitcast" or takes_part(self.module, one)
            if takes and one is not self._back_code.root and not found.isdisjoint(one.operands):
                found.add(one.name)
        return frozenset(found)
