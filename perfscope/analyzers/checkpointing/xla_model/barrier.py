"""The barrier that ``jax.checkpoint`` puts in front of what the backward of a layer computes again."""

from __future__ import annotations

from perfscope.analyzers.checkpointing.xla_model.graph import Body, Node

KEPT, WEIGHTS, INPUT, GRADIENT = range(4)
"""What goes through it, in the order of JAX: what is kept, weights, the input of the layer, the gradient."""
SMALL = 64
"""Bytes of single numbers and the like, which are left where they are."""


class Barrier:
    """Each of its parts has a buffer, and nothing behind it runs before all are there."""

    def __init__(self, body: Body, name: str) -> None:
        """An empty one."""
        self._body = body
        self._name = body.add(Node(name=name, opcode="tuple", sizes=(), is_tuple=True))
        self._ranks: list[tuple[int, int]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._body.nodes[self._name].operands

    def take(self, name: str, size: int, rank: tuple[int, int]) -> str:
        """Something that goes through; its name behind the barrier."""
        node = self._body.nodes[self._name]
        at = len(node.operands)
        self._body.change(self._name, operands=(*node.operands, name), sizes=(*node.sizes, size))
        self._ranks.append(rank)
        element = Node(
            name=f"{self._name}.{at}", opcode="get-tuple-element", operands=(self._name,), sizes=(size,), index=at
        )
        return self._body.add(element)

    def close(self) -> None:
        """Puts its parts in order."""
        node = self._body.nodes[self._name]
        order = sorted(range(len(self._ranks)), key=lambda at: self._ranks[at])
        places = {at: place for place, at in enumerate(order)}
        self._body.change(
            self._name,
            operands=tuple(node.operands[at] for at in order),
            sizes=tuple(node.sizes[at] for at in order),
        )
        for one in list(self._body.nodes.values()):
            if one.opcode == "get-tuple-element" and one.operands == (self._name,):
                self._body.change(one.name, index=places[one.index])
