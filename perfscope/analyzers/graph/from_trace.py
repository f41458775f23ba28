"""Import of the forward ops of a bare trace with shapes: batched products, softmaxes and elementwise ops.

A trace has no dataflow. An op is taken to read the last value with as many elements as each of its operands has; a
product is the last reader of its factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from perfscope.analyzers.graph.from_ops import CLASSES, SOFTMAX, dense_product
from perfscope.analyzers.graph.program_graph import Node, ProgramGraph, softmax_parts
from perfscope.analyzers.ops import input_tensors
from perfscope.analyzers.spans import slice_name
from perfscope.model.trace import Trace

BATCHED: frozenset[str] = frozenset({"bmm", "baddbmm"})
"""A plain `mm` around a softmax may be a gate between two weights, which shapes do not show."""


def trace_program(trace: Trace, rows: Iterable[int]) -> ProgramGraph[Node]:
    """The program of rows of ``slices`` in their order. ``Node.kernel`` is a row."""
    nodes: list[Node] = []
    last: dict[int, int] = {}
    for row in rows:
        name, tensors = slice_name(trace, row).removeprefix("aten::"), input_tensors(trace, row)
        sizes = [tensor.elements for tensor in tensors]
        if name in BATCHED:
            factors = tensors[1:3] if name == "baddbmm" else tensors[:2]
            if len(factors) < 2 or any(len(factor.shape) < 2 for factor in factors):
                continue
            reads = [_read(nodes, last, factor.elements) for factor in factors]
            for size in sizes:
                last.pop(size, None)
            left, right = factors[0].shape, factors[1].shape
            product = dense_product(reads, left)
            size = math.prod(left[:-1]) * right[-1]
            nodes.append(Node(op="product", size=size, reads=tuple(reads), product=product, kernel=row))
        elif name in SOFTMAX and tensors and tensors[0].shape:
            scores = _read(nodes, last, sizes[0])
            parts = softmax_parts(len(nodes), scores, sizes[0], tensors[0].shape[-1])
            nodes += [Node(op=kind, size=size, reads=sources, kernel=row) for kind, size, sources in parts]
        elif tensors:
            reads = [_read(nodes, last, size) for size in sizes]
            nodes.append(Node(op=CLASSES.get(name, "scale"), size=max(sizes), reads=tuple(reads), kernel=row))
        else:
            continue
        last[nodes[-1].size] = len(nodes) - 1
    return ProgramGraph(nodes, knows_weights=True)


def _read(nodes: list[Node], last: dict[int, int], size: int) -> int:
    if size not in last:
        nodes.append(Node(op="other", size=size))
        last[size] = len(nodes) - 1
    return last[size]
