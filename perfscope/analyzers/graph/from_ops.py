"""Import of an op graph: the ops of one step of a PyTorch program, recorded or planned.

Views are transparent. An op that reads another number of elements than its producer wrote gets a node between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfscope.analyzers.graph.op_flow import short_name
from perfscope.analyzers.graph.program_graph import Node, OpClass, Product, ProgramGraph, softmax_parts
from perfscope.analyzers.ops import is_elementwise
from perfscope.model.op_flops import PLAIN_PRODUCTS, PRODUCTS

if TYPE_CHECKING:
    from perfscope.analyzers.graph.op_flow import Flow
    from perfscope.model.op_graph import GraphOp, OpGraph

SOFTMAX: frozenset[str] = frozenset({"_softmax", "_safe_softmax", "softmax"})
CLASSES: dict[str, OpClass] = {
    **dict.fromkeys(("_to_copy", "clone", "contiguous", "copy_"), "repeat"),
    **dict.fromkeys(("sub", "sub_", "rsub"), "subtract"),
    **dict.fromkeys(("add", "add_"), "add"),
    **dict.fromkeys(("exp", "exp_"), "exponential"),
    "_softmax_backward_data": "pointwise",
}
"""Short names of elementwise ops and of backward formulas; other elementwise ops have the class ``scale``."""


def op_program(graph: OpGraph, flow: Flow) -> ProgramGraph[Node]:
    """The program of an op graph. ``Node.kernel`` is the index of an op."""
    return ProgramGraph(_Import(graph, flow).nodes, knows_weights=True)


class _Import:
    """Makes the nodes in the order of the ops."""

    def __init__(self, graph: OpGraph, flow: Flow) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self._made: dict[int, int] = {}
        """Node of what an op wrote, by its index."""
        self._given: dict[int, int] = {}
        """Node of what was there before the step, by storage."""
        for index, op in enumerate(graph.ops):
            if not op.view:
                writers = dict(flow.producers[index])
                self._add(index, op, [self._source(tensor, writers.get(tensor)) for tensor in op.inputs])

    def _add(self, index: int, op: GraphOp, reads: list[int]) -> None:
        written = [self.graph.tensors[tensor] for tensor in (*op.outputs, *op.mutated)]
        largest = max(written, key=lambda tensor: math.prod(tensor.shape), default=None)
        shape = largest.shape if largest is not None else ()
        size = math.prod(shape)
        name = short_name(op)
        if name in SOFTMAX and reads and shape:
            parts = softmax_parts(len(self.nodes), reads[0], size, shape[-1])
            self.nodes += [Node(op=kind, size=count, reads=sources, kernel=index) for kind, count, sources in parts]
        else:
            product = self._product(op, name, reads) if name in PRODUCTS else None
            self.nodes.append(
                Node(
                    op="product" if product else CLASSES.get(name, "scale" if is_elementwise(op) else "other"),
                    size=size,
                    bytes=largest.bytes if largest is not None else 0,
                    reads=tuple(reads),
                    product=product,
                    place=(op.file or "", op.line if op.file else None),
                    kernel=index,
                )
            )
        self._made[index] = len(self.nodes) - 1

    def _source(self, tensor: int, writer: int | None) -> int:
        """The node whose value an op reads as this tensor."""
        seen = self.graph.tensors[tensor]
        if writer is None:
            if seen.storage not in self._given:
                op: OpClass = "weight" if seen.storage in self.graph.parameters else "other"
                self.nodes.append(Node(op=op, size=math.prod(seen.shape), bytes=seen.bytes))
                self._given[seen.storage] = len(self.nodes) - 1
            whole = self._given[seen.storage]
        else:
            whole = self._made[writer]
        size, made = math.prod(seen.shape), self.nodes[whole].size
        if size == made:
            return whole
        self.nodes.append(Node(op="slice" if size < made else "broadcast", size=size, reads=(whole,)))
        return len(self.nodes) - 1

    def _product(self, op: GraphOp, name: str, reads: list[int]) -> Product | None:
        """The product of the last two operands, or of the first two if scales follow them."""
        chosen = slice(-2, None) if name in PLAIN_PRODUCTS else slice(2)
        shapes = [self.graph.tensors[tensor].shape for tensor in op.inputs[chosen]]
        return dense_product(reads[chosen], shapes[0]) if len(shapes) == 2 and shapes[0] else None


def dense_product(factors: Sequence[int], left: Sequence[int]) -> Product:
    """The product of two nodes; ``left``: shape of the first factor."""
    return Product(factors=(factors[0], factors[1]), batch=math.prod(left[:-2]), summed=left[-1])
