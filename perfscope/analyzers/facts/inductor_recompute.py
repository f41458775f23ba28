"""What the partitioner of a compiled graph computes in the backward a second time instead of saving it.

Cheap elementwise ops are computed again by design: a read of the input saved for them is spared. Matrix products,
convolutions and attention are not, unless activation checkpointing asked for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.analyzers.facts.inductor_fusion import node_bytes
from perfscope.model.compile_log import CompiledKernel, CompileLog, Graph, GraphNode
from perfscope.model.trace import Trace

_HEAVY = re.compile(
    r"aten\.(?:mm|addmm|bmm|baddbmm|_scaled_mm|convolution|_scaled_dot_product\w*attention\w*|_flash_attention_forward"
    r"|_efficient_attention_forward|_grouped_mm)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRecompute:
    """What one backward graph computes again."""

    compile_id: str
    nodes: tuple[GraphNode, ...]
    """All of it, views included."""
    heavy: tuple[GraphNode, ...]
    """Matrix products, convolutions, attention."""
    result_bytes: int
    """Bytes of the results of all nodes that are no views of others: what saving each of them would take at most."""
    kernels: tuple[CompiledKernel | None, ...]
    """Of each heavy node the kernel of the backward that computes it, where the log tells."""
    flops: tuple[int | None, ...]
    """Of each heavy node; ``None`` where a size is dynamic or the op has no formula here."""


_VIEWS = re.compile(
    r"(?:aten\.(?:permute|view|t|transpose|expand|slice|select|unsqueeze|squeeze|reshape|alias)\b|getitem)"
)


def graph_recompute(trace: Trace) -> tuple[GraphRecompute, ...]:
    """Recomputation of every backward graph of the log that has any; empty without a log."""
    log = trace.compile_log
    if log is None:
        return ()
    forward = {graph.compile_id: graph for graph in log.graphs if graph.direction == "forward"}
    found = (
        _of_graph(log, forward[graph.compile_id], graph)
        for graph in log.graphs
        if graph.direction == "backward" and graph.recomputed and graph.compile_id in forward
    )
    return tuple(one for one in found if one.nodes)


def _of_graph(log: CompileLog, forward: Graph, backward: Graph) -> GraphRecompute:
    again = set(backward.recomputed)
    first = {node.name: node for node in forward.nodes}
    # passes name what they make alike in both graphs: the same op of the same values in the same shape is the same
    nodes = tuple(
        node
        for node in backward.nodes
        if node.name in again and (node.op, node.shape) == (first[node.name].op, first[node.name].shape)
    )
    heavy = tuple(node for node in nodes if _HEAVY.match(node.op) and node.inputs == first[node.name].inputs)
    held = [one for one in log.kernels if (one.compile_id, one.direction) == (backward.compile_id, "backward")]
    known = {node.name: node for node in (*backward.inputs, *backward.nodes)}
    return GraphRecompute(
        compile_id=backward.compile_id,
        nodes=nodes,
        heavy=heavy,
        result_bytes=sum(node_bytes(node) for node in nodes if not _VIEWS.match(node.op)),
        kernels=tuple(next((one for one in held if node.name in one.nodes), None) for node in heavy),
        flops=tuple(_flops(node, known) for node in heavy),
    )


def _flops(node: GraphNode, known: Mapping[str, GraphNode]) -> int | None:
    """Two for each multiply-add of a matrix product; ``None`` for the others."""
    factors = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}
    name = node.op.split(".")[1]
    if name not in factors or len(node.inputs) <= factors[name]:
        return None
    left = known.get(node.inputs[factors[name]])
    sizes = [*node.shape, *(left.shape[-1:] if left else ())]
    whole = [size for size in sizes if isinstance(size, int)]
    return 2 * math.prod(whole) if left is not None and left.shape and len(whole) == len(sizes) else None
