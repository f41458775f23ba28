"""The values of a program with the ops that make and read them, in one form for every kind of program.

An importer reads one format (``from_ops``, ``from_hlo``) and translates its ops to the classes below; audits use the
classes only. Large ops are several nodes: a softmax is a row maximum, a difference, an exponential, a row sum and a
quotient, whether the program has one op or five.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Literal, TypeVar

from msgspec import Struct

OpClass = Literal[
    "product", "exponential", "maximum", "sum", "subtract", "add", "scale", "repeat", "broadcast", "pointwise", "slice",
    "update", "move", "weight", "other",
]  # fmt: skip
"""``maximum`` and ``sum`` reduce rows. ``scale`` multiplies, divides or selects. ``repeat`` changes type or order,
``broadcast`` repeats elements. ``update`` writes a slice of a larger value. ``weight`` is a parameter of the model."""

LINEAR: frozenset[OpClass] = frozenset({"scale", "repeat", "broadcast"})
MOVES: frozenset[OpClass] = frozenset({"repeat", "broadcast", "slice", "move"})
ELEMENTWISE = LINEAR | frozenset[OpClass]({"exponential", "subtract", "add", "pointwise"})


class Product(Struct, frozen=True, kw_only=True):
    """A matrix product by sizes: ``batch`` times ``[rows, summed] x [summed, columns]``."""

    factors: tuple[int, int]
    """Nodes."""
    batch: int
    summed: int


NOWHERE: tuple[str, None] = ("", None)


class Node(Struct, frozen=True, kw_only=True):
    """A value and the op that makes it."""

    op: OpClass
    size: int
    """Elements of the value."""
    bytes: int = 0
    reads: tuple[int, ...] = ()
    """Nodes whose values the op reads, in the order of its operands."""
    names: tuple[int, ...] = ()
    """Nodes that this one is another name of. Empty: the op computes the value."""
    carried: bool = False
    """It is an element of a loop's state that changes from one iteration to the next."""
    product: Product | None = None
    row: int | None = None
    """Elements of the row whose maximum the op writes to each of its elements."""
    place: tuple[str, int | None] = NOWHERE
    """File and line in the user's program, or the framework's path and None."""
    kernel: int | None = None
    """Index of the op that runs it, in an op graph."""


AnyNode = TypeVar("AnyNode", bound=Node, covariant=True)


class ProgramGraph(Generic[AnyNode]):
    """Nodes of a program by number."""

    def __init__(self, nodes: Iterable[AnyNode], *, returned: Iterable[int] = (), knows_weights: bool = False) -> None:
        self.nodes = tuple(nodes)
        self.users: tuple[list[int], ...] = tuple([] for _ in self.nodes)
        """By node: nodes that are another name of it, or read it."""
        for number, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.names or node.reads):
                self.users[source].append(number)
        self.returned = frozenset(self.back(returned))
        """Nodes whose values the program's caller gets; empty if the importer does not have them."""
        self.knows_weights = knows_weights
        """Whether parameters of the model have the class ``weight``; otherwise they are ``other``."""

    def back(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield once each node that these are names of: nodes that compute a value, and changing states of loops."""
        waiting, seen = list(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self.nodes[number]
            if node.names and not node.carried:
                waiting.extend(node.names)
            else:
                yield number


def softmax_parts(first: int, scores: int, size: int, row: int) -> list[tuple[OpClass, int, tuple[int, ...]]]:
    """Class, elements and reads of the nodes of a softmax over rows of ``row`` elements, numbered from ``first``.

    The last holds the probabilities.
    """
    rows = size // max(1, row)
    return [
        ("maximum", rows, (scores,)),
        ("broadcast", size, (first,)),
        ("subtract", size, (scores, first + 1)),
        ("exponential", size, (first + 2,)),
        ("sum", rows, (first + 3,)),
        ("broadcast", size, (first + 4,)),
        ("scale", size, (first + 3, first + 5)),
    ]
