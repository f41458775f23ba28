"""A program with a checkpoint policy, as a graph: the backward computes again what the policy does not keep.

What ``jax.checkpoint`` makes of a layer, learnt from programs compiled with and without it:

* Everything that was kept for the layer, its weights, and the gradient that comes in go through one barrier in front of
  what is computed again. So each has a buffer there, and none of it runs before the gradient is there.
* What is computed again has a buffer where it is a product, a reduction, a loop or another order of axes, or where a
  product reads it. All else is computed within its readers.
* A value that a product reads, computed from one buffer from which another kernel computes element by element, is a
  further result of that kernel. Several such values of the same buffers are one kernel with several results.
* XLA merges products of one operand. What is kept then are the parts, as the program has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfscope.analyzers.checkpointing.xla_model.barrier import INPUT, KEPT, Barrier
from perfscope.analyzers.checkpointing.xla_model.graph import Body, Graph, Node, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import drop_element, spliced
from perfscope.analyzers.checkpointing.xla_model.layers import Kept, Layer
from perfscope.analyzers.checkpointing.xla_model.orders import further_result, is_dear
from perfscope.analyzers.checkpointing.xla_model.outputs import reduces, takes_buffers
from perfscope.analyzers.checkpointing.xla_model.policies import Keeps
from perfscope.analyzers.checkpointing.xla_model.sharing import ELEMENTWISE, Slots
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule

KERNEL = "kernel"
"""Opcode of what a plan adds."""
_MOST_STEPS = 200
"""From a value to the buffers it is computed from, to see whether it may be written onto one."""


class Plan(ABC):
    """The graph of a program on its way to a policy; what loops and single layers have in common."""

    layer: Layer
    barrier: Barrier
    back: Body
    """Where the layers' backward runs."""

    def __init__(
        self, module: HloModule, flow: Flow, schedule: Schedule, keeps: Keeps, graph: Graph | None = None
    ) -> None:
        """``graph``: the program where other layers have the policy already."""
        self.module = module
        self.flow = flow
        self.schedule = schedule
        self.graph = graph_of(module) if graph is None else graph
        self.entry = self.graph.main
        self.keeps = keeps
        self.mark = ""
        """Ending of the names of what is added for the layer at hand."""
        self.begin(None)

    def begin(self, layer: Layer | None) -> None:
        """For a layer: nothing of it is computed again so far."""
        if layer is not None:
            self.layer = layer
        self.memory: dict[int, frozenset[int]] = {}
        self.made: dict[int, str] = {}
        """Value by number in ``Flow``, and the instruction of the backward that holds it."""
        self.weights_of: dict[int | str, str] = {}
        self.sole: dict[int, str] = {}
        """Buffer, and the kernel that computes element by element from it alone."""
        self._loops: dict[tuple[str, str], str] = {}
        self.zeros: dict[tuple[str, tuple[int, ...]] | None, str] = {}
        """Arrays of zeros that the backward begins its own loops with, by type and dimensions: one for all."""

    # what the two kinds of layers differ in

    @abstractmethod
    def input_of(self, number: int, size: int) -> str:
        """The instruction that holds what is kept for the backward, in front of the barrier."""

    @abstractmethod
    def weights(self, number: int) -> str | None:
        """The instruction behind the barrier that holds the weights a value comes from; ``None``: from none."""

    @abstractmethod
    def readers(self, kept: Kept) -> Iterable[tuple[str, bool]]:
        """Who of the backward reads what is kept, and whether as a buffer."""

    @abstractmethod
    def views(self, kept: Kept) -> frozenset[str]:
        """The names under which it is read."""

    def open_barrier(self) -> None:
        """An empty one, in front of what is computed again."""
        self.barrier = Barrier(self.back, f"barrier{self.mark}")

    # values that are there again

    def value(self, number: int) -> str:
        """The instruction of the backward that holds a value."""
        layer = self.layer
        number = layer.first_of_its_kind(number)
        if number not in self.made:
            self.made[number] = self._value(number)
        return self.made[number]

    def _value(self, number: int) -> str:
        layer = self.layer
        size = layer.bytes(number)
        if layer.carried(number) or self.keeps(number):
            rank = (INPUT, 0) if layer.carried(number) else (KEPT, number)
            held = self.input_of(number, size)
            return self.barrier.take(held, self.back.nodes[held].bytes, rank)
        shared = self.zeros.get(layer.zeros(number))
        if shared is not None:
            return shared
        sources = self.flow.values[number].operands
        if self.flow.opcode(number) in ("dynamic-slice", "slice") and not layer.made(sources[0]):
            # whatever tells which part: the counter of a loop is computed in it
            weights = self.weights(number)
            if weights is not None:
                return weights
        if layer.of_loop(number):
            return self._of_loop(number)
        if self.flow.opcode(number).endswith("-done"):
            return self._collective(number)
        name = f"again{self.mark}.{number}"
        self.made[number] = name  # for what leads back to it
        operands: list[str] = []
        for source in sources:
            made = layer.made(source)
            if not made:
                weights = self.weights(source)
                operands += [] if weights is None else [weights]
            for one in sorted(made):
                operands += [self.value(one)] if layer.is_product(number) else self.bases(one)
        unique = tuple(dict.fromkeys(operands))
        reuses = self._written_onto(number, unique)
        like = self.flow.values[number].instruction.name
        return self.back.add(Node(name=name, opcode=KERNEL, operands=unique, sizes=(size,), reuses=reuses, like=like))

    def _collective(self, number: int) -> str:
        """A collective begins and ends again, as it does in the forward."""
        end = self.flow.values[number]
        begin = self.flow.values[end.operands[0]]
        nodes = self.graph.bodies[end.computation.name].nodes
        operands = [self.weights(one) or self.initial(one, self.layer.bytes(one)) for one in begin.operands]
        names = [f"{kind}{self.mark}.{number}" for kind in ("begun", "again")]
        for name, one, read in zip(names, (begin, end), (operands, names[:1]), strict=True):
            node = nodes[one.instruction.name]
            self.back.add(replace(node, name=name, operands=tuple(read), after=(), like=one.instruction.name))
        return names[1]

    def bases(self, number: int) -> list[str]:
        """The buffers that a value is computed from element by element."""
        return [self.value(one) for one in sorted(self.layer.bases(number, self.keeps, self.memory))]

    def _written_onto(self, number: int, operands: Sequence[str]) -> Slots:
        layer = self.layer
        if layer.has_buffer(number):
            return ()
        waiting, seen = [number], set[int]()
        while waiting:
            one = waiting.pop()
            if one in seen or (one != number and (layer.has_buffer(one) or self.keeps(one))):
                continue
            seen.add(one)
            value = self.flow.values[one]
            plain = value.instruction.opcode in ELEMENTWISE | {"bitcast", "broadcast", "constant", "parameter"}
            if (not plain and not value.names) or len(seen) > _MOST_STEPS:
                return ()
            waiting += value.names or value.operands
        size = layer.bytes(number)
        return tuple((0, slot) for slot, name in enumerate(operands) if self.back.nodes[name].bytes == size)

    def _of_loop(self, number: int) -> str:
        """A loop in the layer runs again as a whole."""
        value = self.flow.values[number]
        key = value.computation.name, value.instruction.operands[0]
        if key not in self._loops:
            self._loops[key] = self._loop(*key)
        loop = self._loops[key]
        at = int(value.instruction.attributes["index"])
        size = self.back.nodes[loop].sizes[at]
        name = f"part{self.mark}.{number}"
        return self.back.add(Node(name=name, opcode="get-tuple-element", operands=(loop,), sizes=(size,), index=at))

    def _loop(self, computation: str, name: str) -> str:
        source = self.graph.bodies[computation].nodes[name]
        inside = self.module.computations[computation]
        begin = inside.by_name[inside.by_name[name].operands[0]]
        invariants = self.graph.bodies[source.body].invariants()
        operands: list[str] = []
        gone = []
        for at, (operand, size) in enumerate(zip(begin.operands, source.sizes, strict=True)):
            number = self.flow.numbers[computation, operand]
            if invariants[at] and self._is_read_only(number):
                gone.append(at)  # masks and the like: computed where they are read
            shared = invariants[at] and computation == self.back.name and self.layer.is_filled(number)
            first = operand if shared else self.initial(number, size)
            twice = first in operands or first in self.zeros.values()
            if not invariants[at] and (twice or inside.by_name[operand].opcode == "copy"):
                copy = Node(name=f"copy{self.mark}.{name}.{at}", opcode="copy", operands=(first,), sizes=(size,))
                first = self.back.add(copy)
            operands.append(first)
        state = self.back.add(
            Node(name=f"state{self.mark}.{name}", opcode="tuple", operands=tuple(operands), sizes=source.sizes,
                 is_tuple=True)
        )  # fmt: skip
        body = self.graph.clone(source.body, f".again{self.mark}")
        loop = self.back.add(
            replace(source, name=f"{name}.again{self.mark}", operands=(state,), body=body, after=(), updates=())
        )
        for at in gone:
            drop_element(self.graph, self.back, loop, at)
        return loop

    def _is_read_only(self, number: int) -> bool:
        """Of what a loop takes and does not change: neither a value of the layer nor weights, nor a filled array."""
        from_layer = self.layer.made(number) or self.weights(number) is not None
        return not from_layer and not self.layer.is_filled(number)

    def initial(self, number: int, size: int) -> str:
        """What goes into a loop: a value, or a kernel of its own."""
        made = sorted(self.layer.made(number))
        if len(made) == 1 and self.layer.bytes(self.layer.first_of_its_kind(made[0])) == size:
            return self.value(made[0])
        operands = [name for one in made for name in self.bases(one)]
        name = f"initial{self.mark}.{number}"
        return self.back.add(Node(name=name, opcode=KERNEL, operands=tuple(dict.fromkeys(operands)), sizes=(size,)))

    # who reads them

    def find_sole(self, dropped: Iterable[Kept]) -> None:
        """Kernels of the backward that compute element by element from a single buffer."""
        for kept in dropped:
            for made in self.layer.made(kept.number):
                bases = self.layer.bases(made, self.keeps, self.memory)
                if len(bases) == 1 and made not in bases:
                    (base,) = bases
                    for name, product in self.readers(kept):
                        if not product:
                            first = min(self.sole.get(base, name), name, key=self.schedule.positions.__getitem__)
                            self.sole[base] = first

    def rewire(self, kept: Kept) -> None:
        """The readers of what was kept read what is there again."""
        views = self.views(kept)
        made = sorted(self.layer.made(kept.number))
        for name, product in list(self.readers(kept)):
            node = self.kernel_of(name)
            if node.opcode == "tuple":
                first = self.initial(kept.number, kept.bytes // self.layer.layers.count)
                self.back.change(name, operands=tuple(first if one in views else one for one in node.operands))
                continue
            instead = [
                one for number in made for one in ([self._for_product(number)] if product else self._read(name, number))
            ]
            node = spliced(self.kernel_of(name), views, instead)
            bases = {one for number in made for one in self.layer.bases(number, self.keeps, self.memory)}
            if not product and len(bases) > 1 and any(self.flow.opcode(one) == "reduce" for one in bases):
                node = replace(node, reuses=())  # it goes over rows twice (softmax): not onto its input
            self.back.nodes[node.name] = node

    def _read(self, name: str, number: int) -> list[str]:
        """What a kernel reads that computes with a value: what the value is computed from.

        What takes long to compute XLA does not fuse into a kernel that also reduces: then it is the value.
        """
        number = self.layer.first_of_its_kind(number)
        reader = self.module.computations[self.back.name].by_name.get(name)
        if reader is not None and reduces(self.module, reader) and is_dear(self.flow, number, self.layer.has_buffer):
            return [self.value(number)]
        return self.bases(number)

    def kernel_of(self, name: str) -> Node:
        """The kernel of that name, also where it was given a further result."""
        node = self.back.nodes[name]
        return self.back.nodes.get(f"{name}.more", node)

    def _for_product(self, number: int) -> str:
        number = self.layer.first_of_its_kind(number)
        bases = self.layer.bases(number, self.keeps, self.memory)
        if number in self.made or len(bases) != 1 or number in bases or min(bases) not in self.sole:
            return self.value(number)
        host, size = self.sole[min(bases)], self.layer.bytes(number)
        kernel = self.kernel_of(host)
        if not kernel.is_tuple:
            kernel = replace(kernel, name=f"{host}.more", sizes=(*kernel.sizes, size), is_tuple=True)
            self.back.add(kernel)
            self.back.add(
                Node(name=host, opcode="get-tuple-element", operands=(kernel.name,), sizes=kernel.sizes[:1], index=0)
            )
        else:
            self.back.change(kernel.name, sizes=(*kernel.sizes, size))
        at = len(self.back.nodes[kernel.name].sizes) - 1
        name = f"again{self.mark}.{number}"
        self.made[number] = name
        return self.back.add(
            Node(name=name, opcode="get-tuple-element", operands=(kernel.name,), sizes=(size,), index=at)
        )

    def join_siblings(self) -> None:
        """Values computed element by element from the same buffers are one kernel with several results."""
        groups: dict[tuple[frozenset[str], tuple[int, ...]], list[Node]] = {}
        for number, name in self.made.items():
            node = self.back.nodes[name]
            if node.opcode == KERNEL and node.operands and not self.layer.has_buffer(number):
                groups.setdefault((frozenset(node.operands), node.sizes), []).append(node)
        for members in groups.values():
            if len(members) < 2:
                continue
            sizes = tuple(one.bytes for one in members)
            kernel = replace(members[0], name=f"{members[0].name}.all", sizes=sizes, is_tuple=True, reuses=())
            self.back.add(kernel)
            for at, one in enumerate(members):
                self.back.add(
                    Node(name=one.name, opcode="get-tuple-element", operands=(kernel.name,), sizes=one.sizes, index=at)
                )


# What a loop's forward no longer writes where less is kept of its layers.


def stack_writers(code: Computation, elements: Iterable[int]) -> list[str]:
    """Kernels of a loop's body whose results are written into these elements of its state."""
    found: dict[str, None] = {}
    for element in elements:
        writer = code.by_name[code.root.operands[element]]
        while writer.opcode == "bitcast":
            writer = code.by_name[writer.operands[0]]
        for operand in writer.operands:
            one = code.by_name[operand]
            while one.opcode in ("bitcast", "get-tuple-element") and one.operands:
                one = code.by_name[one.operands[0]]
            if one.opcode == "fusion":
                found[one.name] = None
    return list(found)


def within_readers(module: HloModule, flow: Flow, layer: Layer, forth: Body, name: str) -> None:
    """A kernel that was there to be stacked, and that its other readers can compute within themselves, is gone."""
    if name not in forth.nodes:
        return
    code = module.computations[forth.name]
    node, inside = forth.nodes[name], module.computations[code.by_name[name].called[0]]
    results = inside.root.operands if inside.root.opcode == "tuple" else (inside.root.name,)
    if len(results) != len(node.sizes):
        return  # a sort of several arrays: its readers need it in memory
    for result, size in zip(results, node.sizes, strict=True):
        made = layer.made(flow.numbers[inside.name, result])
        if size and any(layer.has_buffer(one) for one in made):
            return
    users = forth.users()
    readers: list[tuple[str, str]] = []
    views, waiting = [name], [name]
    while waiting:
        one = waiting.pop()
        for user in users[one]:
            if user != forth.root and forth.nodes[user].opcode in ("bitcast", "get-tuple-element"):
                views.append(user)
                waiting.append(user)
            else:
                readers.append((user, one))
    if not readers or any(_takes(module, code, user) for user, _ in readers):
        return
    for user, one in readers:
        forth.nodes[user] = spliced(forth.nodes[user], {one}, node.operands)
    for one in views:
        del forth.nodes[one]


def _takes(module: HloModule, code: Computation, user: str) -> bool:
    """Whether an instruction of the forward's body needs its operands as buffers."""
    one = code.by_name.get(user)
    return one is None or one.opcode in ("tuple", "while") or takes_buffers(module, one)


def comes_from_nothing(inside: Computation, one: Instruction) -> bool:
    """Computed from constants alone."""
    waiting, seen = [one], {one.name}
    while waiting:
        now = waiting.pop()
        if now.opcode in ("parameter", "while", "custom-call", "conditional", "rng", "rng-bit-generator"):
            return False
        for name in now.operands:
            if name not in seen:
                seen.add(name)
                waiting.append(inside.by_name[name])
    return True


# Sums that run again, in one kernel with sums of the backward over the same.


def join_sums(
    flow: Flow, code: Computation, body: Body, made: Mapping[int, str], backward: frozenset[str], kernel: str
) -> None:
    """A sum that runs again is a further result of a kernel of the backward that reads the same and sums up as much.

    XLA makes one kernel of such (its multi-output fusion), unless one comes before the other. ``made``: instructions of
    ``body`` by number in ``Flow``, ``kernel``: opcode of those that were added.
    """
    users = body.users()
    for number, name in made.items():
        node, value = body.nodes[name], flow.values[number]
        if node.opcode != kernel or value.instruction.opcode != "reduce":
            continue
        size = _summed(value.computation, value.instruction)
        for host in sorted({user for operand in node.operands for user in users[operand]} & backward):
            one = code.by_name[host]
            if one.opcode != "fusion" or not set(node.operands) <= set(body.nodes[host].operands):
                continue
            inside = flow.module.computations[one.called[0]]
            sizes = {_summed(inside, part) for part in inside.instructions if part.opcode == "reduce"}
            if size in sizes and not _leads_to(users, name, host):
                further_result(body, host, name, node.bytes)
                break


def _summed(inside: Computation, one: Instruction) -> int:
    """Elements that a reduction takes."""
    return inside.by_name[one.operands[0]].shape.elements


def _leads_to(users: Mapping[str, Sequence[str]], name: str, other: str) -> bool:
    """Whether one instruction comes before another one."""
    waiting, seen = [name], {name}
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user == other:
                return True
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return False
