"""Layers that run one after another and are checkpointed today, with everything kept, as a graph.

Without the barrier in front of it, what runs again is what the forward has computed already: XLA computes it once. So
whatever of a kernel behind the barrier is a value that the forward holds is read from there, and what is needed no
more is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfscope.analyzers.checkpointing.xla_model.barrier import SMALL
from perfscope.analyzers.checkpointing.xla_model.graph import Graph, Node, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import add_element, without_unread, without_unrun
from perfscope.analyzers.checkpointing.xla_model.kept import runs_again
from perfscope.analyzers.checkpointing.xla_model.orders import PLAIN, further_result, is_dear
from perfscope.analyzers.checkpointing.xla_model.outputs import only_moves
from perfscope.analyzers.checkpointing.xla_model.same import Sames
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule, Instruction

_VIEWS = frozenset({"bitcast", "get-tuple-element", "tuple"})


def kept_single(module: HloModule, flow: Flow) -> Graph:
    """The program without its checkpoints."""
    return _KeepSingle(module, flow).made_of_it()


class _KeepSingle:
    def __init__(self, module: HloModule, flow: Flow) -> None:
        self._module = module
        self._flow = flow
        self._graph = graph_of(module)
        self._entry = self._graph.main
        self._code = module.entry_computation()
        self._sames = Sames(flow)
        self._behind = barriers_opened(self._graph, self._graph.entry)
        self._holders: dict[int, str] = {}
        self._makers: dict[int, str] = {}
        """Kernels of the forward that compute a value within."""
        self._below: frozenset[str] = frozenset()

    def made_of_it(self) -> Graph:
        """All steps."""
        self._below = self._reached()
        self._without_slices()
        for one in self._code.instructions:
            if one.name not in self._below and one.opcode not in ("tuple", "constant"):
                for number, name in self._results(one):
                    if not self._is_plain(number):
                        self._holders.setdefault(self._sames.of(number), name)
                if one.opcode == "fusion":
                    for inner in self._module.computations[one.called[0]].instructions:
                        number = self._flow.numbers[one.called[0], inner.name]
                        if not self._is_plain(number) and inner.opcode not in ("parameter", "bitcast"):
                            self._makers.setdefault(self._sames.of(number), one.name)
        self._loops_once()
        for one in self._code.instructions:
            if one.name in self._below and one.opcode not in _VIEWS:
                self._read_instead(one)
        without_unread(self._graph)
        without_unrun(self._graph)
        return self._graph

    def _without_slices(self) -> None:
        """A layer's part of stacked weights is read from the argument: the barrier alone needs it apart."""
        for one in self._code.instructions:
            if one.opcode in ("fusion", "slice") and only_moves(self._module, one) and one.shape.dtype != "tuple":
                source = self._entry.behind(one.operands[0])
                if self._entry.nodes[source].opcode == "parameter":
                    self._entry.change(one.name, opcode="bitcast", operands=one.operands[:1], updates=(), reuses=())

    def _reached(self) -> frozenset[str]:
        users = self._entry.users()
        waiting = list(self._behind)
        found = set(waiting)
        while waiting:
            for user in users[waiting.pop()]:
                if user not in found:
                    found.add(user)
                    waiting.append(user)
        return frozenset(found)

    def _results(self, one: Instruction) -> Iterator[tuple[int, str]]:
        """Values that an instruction makes, by number in ``Flow``, and the name that holds each."""
        if one.opcode in ("bitcast", "parameter"):
            return
        if one.opcode == "get-tuple-element" or one.shape.dtype != "tuple":
            yield self._flow.numbers[self._code.name, one.name], one.name

    def _loops_once(self) -> None:
        """A loop within a layer that runs again yields more than in the forward: there it yields that too."""
        parts: dict[str, list[Instruction]] = {}
        for one in self._code.instructions:
            if one.opcode == "get-tuple-element" and one.name in self._below:
                loop = self._code.by_name[one.operands[0]]
                if loop.opcode == "while" and runs_again(loop.op_name, loops=False):
                    parts.setdefault(one.operands[0], []).append(one)
        for found in parts.values():
            held = [self._held(self._flow.numbers[self._code.name, one.name]) for one in found]
            known = [(one, self._entry.nodes[name]) for one, name in zip(found, held, strict=True) if name is not None]
            same = [(one, node) for one, node in known if node.opcode == "get-tuple-element" and not one.shape.parts]
            for one, name in zip(found, held, strict=True):
                if name is None and same and one.shape.bytes > SMALL:
                    self._yield_too(one, same[0][1])

    def _yield_too(self, one: Instruction, other: Node) -> None:
        """``other``: a result of the loop of the forward that is to yield ``one`` as well."""
        loop, size = other.operands[0], one.shape.bytes
        if self._entry.nodes[loop].opcode != "while":
            return
        zeros = self._entry.add(Node(name=f"zeros.{one.name}", opcode="kernel", sizes=(size,)))
        at, element = add_element(self._graph, self._entry, loop, zeros, size)
        inside = self._graph.bodies[self._entry.nodes[loop].body]
        root = inside.nodes[inside.root]
        source = root.operands[other.index]
        writer = inside.add(
            Node(name=f"write.{one.name}", opcode="kernel", operands=(element, source), sizes=(size,),
                 updates=((0, 0),))
        )  # fmt: skip
        inside.change(root.name, operands=(*root.operands[:at], writer, *root.operands[at + 1 :]))
        kind = self._sames.of(self._flow.numbers[self._code.name, one.name])
        self._holders[kind] = self._entry.add(
            Node(name=f"yielded.{one.name}", opcode="get-tuple-element", operands=(loop,), sizes=(size,), index=at)
        )

    def _is_plain(self, number: int) -> bool:
        value = self._flow.values[self._sames.source(number)]
        return value.instruction.opcode in PLAIN and not value.names

    def _read_instead(self, one: Instruction) -> None:
        node = self._entry.nodes[one.name]
        if one.opcode == "while" and not runs_again(one.op_name, loops=False):
            return
        if one.opcode == "while":
            for user in self._entry.users()[one.name]:
                if user in self._code.by_name and self._code.by_name[user].opcode == "get-tuple-element":
                    held = self._held(self._flow.numbers[self._code.name, user])
                    if held is not None:
                        sizes = self._entry.nodes[user].sizes
                        self._entry.add(Node(name=user, opcode="bitcast", operands=(held,), sizes=sizes))
            return
        if one.opcode != "fusion":
            operands = [self._held(self._flow.numbers[self._code.name, name]) or name for name in one.operands]
            self._entry.change(one.name, operands=tuple(operands))
            return
        inside = self._module.computations[one.called[0]]
        root = inside.root
        results = root.operands if root.opcode == "tuple" else (root.name,)
        waiting = []
        for at, name in enumerate(results):
            number = self._flow.numbers[inside.name, name]
            held = None if self._is_plain(number) else self._held(number)
            if held is None and self._is_dear(number, handed_on=True):
                held = self._made_once(number)
            if held is None:
                waiting.append(number)
            else:
                self._stand_in(node, at, held)
        if one.name in self._entry.nodes and waiting:
            self._with_operands(one, inside.name, waiting)

    def _held(self, number: int) -> str | None:
        return self._holders.get(self._sames.of(number))

    def _stand_in(self, node: Node, part: int, held: str) -> None:
        """What held it before is another name of the holder."""
        if not node.is_tuple:
            self._entry.add(Node(name=node.name, opcode="bitcast", operands=(held,), sizes=node.sizes))
            return
        for user in self._entry.users()[node.name]:
            one = self._entry.nodes[user]
            if one.opcode == "get-tuple-element" and one.index == part:
                self._entry.add(Node(name=user, opcode="bitcast", operands=(held,), sizes=one.sizes))

    def _with_operands(self, one: Instruction, inside: str, waiting: list[int]) -> None:
        found: dict[str, None] = {}
        slots: dict[int, str] = {}
        seen = set(waiting)
        roots = set(waiting)
        while waiting:
            number = waiting.pop()
            value = self._flow.values[number]
            held = None if number in roots or self._is_plain(number) else self._held(number)
            if held is None and number not in roots and self._is_dear(number):
                held = self._made_once(number)
            if value.instruction.opcode == "parameter" and value.computation.name == inside:
                slot = value.instruction.parameter_number or 0
                name = held or one.operands[slot]
                slots[slot] = name
                found[name] = None
            elif held is not None:
                found[held] = None
            else:
                for operand in value.operands:
                    if operand not in seen:
                        seen.add(operand)
                        waiting.append(operand)
        node = self._entry.nodes[one.name]
        operands = tuple(sorted(found, key=lambda name: _place(node, one, slots, name)))
        places = {name: at for at, name in enumerate(operands)}
        self._entry.nodes[one.name] = replace(
            node,
            operands=operands,
            updates=tuple((part, places[slots[slot]]) for part, slot in node.updates if slot in slots),
            reuses=tuple((part, places[slots[slot]]) for part, slot in node.reuses if slot in slots),
        )

    def _is_dear(self, number: int, *, handed_on: bool = False) -> bool:
        """Whether XLA would rather read a value than compute it a second time: by an H100's arithmetic for a byte."""
        if not runs_again(self._flow.values[number].instruction.op_name, loops=False):
            return False
        if not handed_on and all(
            runs_again(self._flow.values[user].instruction.op_name, loops=False) for user in self._flow.users[number]
        ):
            return False
        if self._sames.of(number) not in self._makers:
            return False
        return is_dear(self._flow, number, lambda operand: self._held(operand) is not None)

    def _made_once(self, number: int) -> str:
        """A further result of the kernel of the forward that computes it."""
        kind = self._sames.of(number)
        size = self._flow.values[number].instruction.shape.bytes
        self._holders[kind] = further_result(self._entry, self._makers[kind], f"once.{number}", size)
        return self._holders[kind]


def _place(node: Node, one: Instruction, slots: dict[int, str], name: str) -> tuple[int, str]:
    return min((slot for slot, held in slots.items() if held == name), default=len(one.operands)), name


def barriers_opened(graph: Graph, computation: str) -> tuple[str, ...]:
    """Takes the barriers of ``jax.checkpoint`` out of a computation; the names that stood behind them."""
    body = graph.bodies[computation]
    users = body.users()
    begins = {node.operands[0] for node in body.nodes.values() if node.opcode == "while"}
    found: list[str] = []
    for node in list(body.nodes.values()):
        readers = [body.nodes[name] for name in users[node.name]]
        if node.opcode != "tuple" or node.name == body.root or node.name in begins or not readers:
            continue
        if all(one.opcode == "get-tuple-element" for one in readers):
            for one in readers:
                body.add(Node(name=one.name, opcode="bitcast", operands=(node.operands[one.index],), sizes=one.sizes))
                found.append(one.name)
    return tuple(found)
