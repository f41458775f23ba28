"""Arrays of one number throughout (zeros) in a program whose layers run one after another.

XLA computes them within their readers, but for two cases. What has one reader that needs it in memory (what is
scattered into) is there for all its readers, also for those that come with a checkpoint policy. And what loops begin
with is in memory, since they work in place on it: one kernel makes all of a size, for all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfscope.analyzers.advice.hlo_barrier import SMALL
from perfscope.analyzers.advice.hlo_graph import Body, Node
from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.hlo.module import HloModule


class Filled:
    """Those of one program."""

    def __init__(self, module: HloModule, entry: Body, layer: Layer, forward: frozenset[str], kernel: str) -> None:
        """``layer``: any of its layers, ``forward``: instructions, ``kernel``: opcode of what is added."""
        self._entry = entry
        self._kernel = kernel
        self.held: Mapping[int, str] = dict(_held(module, layer, forward))
        """Arrays that kernels of the forward write, by number in ``Flow``, and what holds each."""
        users = entry.users()
        self._readers = {name: frozenset(users[name]) for name in self.held.values()}
        self._own: list[str] = []

    def own(self, size: int, mark: str) -> str:
        """A new one that a loop begins with; ``mark``: ending of its layer's names."""
        name = f"filled{mark}.{len(self._own)}"
        self._own.append(self._entry.add(Node(name=name, opcode=self._kernel, sizes=(size,))))
        return name

    def finish(self) -> None:
        """Once all layers are done: what is made together, and what is copied."""
        self._make_at_once()
        self._keep_apart()

    def _make_at_once(self) -> None:
        groups: dict[tuple[int, ...], list[Node]] = {}
        for name in self._own:
            if name in self._entry.nodes:
                groups.setdefault(self._entry.nodes[name].sizes, []).append(self._entry.nodes[name])
        for sizes, members in groups.items():
            if len(members) > 1:
                all_sizes = sizes * len(members)
                kernel = replace(members[0], name=f"{members[0].name}.all", sizes=all_sizes, is_tuple=True)
                self._entry.add(kernel)
                for at, one in enumerate(members):
                    self._entry.change(one.name, opcode="get-tuple-element", operands=(kernel.name,), index=at)

    def _keep_apart(self) -> None:
        """What is updated in place is copied in front of that where it has more readers than before."""
        users = self._entry.users()
        for held, before in self._readers.items():
            if held not in users or before.issuperset(users[held]):
                continue
            for name in users[held]:
                node = self._entry.nodes[name]
                if any(node.operands[slot] == held for _, slot in node.updates):
                    sizes = self._entry.nodes[held].sizes
                    copy = Node(name=f"copy.{held}", opcode="copy", operands=(held,), sizes=sizes)
                    self._entry.add(copy)
                    operands = tuple(copy.name if one == held else one for one in node.operands)
                    self._entry.change(name, operands=operands)


def _held(module: HloModule, layer: Layer, forward: frozenset[str]) -> Iterator[tuple[int, str]]:
    code = module.entry_computation()
    for one in code.instructions:
        maker = code.by_name[one.operands[0]] if one.opcode == "get-tuple-element" else one
        if maker.opcode != "fusion" or maker.name not in forward or one.shape.parts or one.shape.bytes <= SMALL:
            continue
        inside = module.computations[maker.called[0]]
        part = inside.root
        if part.opcode == "tuple":
            part = inside.by_name[part.operands[int(one.attributes["index"])]]
        number = layer.flow.numbers[inside.name, part.name]
        if part.opcode == "broadcast" and layer.is_filled(number):
            yield number, one.name
