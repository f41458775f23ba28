"""Neighbouring kernels that inductor did not fuse, recorded or planned, with the bytes between them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import Struct

from perfscope.analyzers.ops import ITEM_SIZES, NOTHING_LOST
from perfscope.analyzers.spans import user_line
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.compile_log import (
        CodeLine,
        CompiledKernel,
        CompileLog,
        FusionRefusal,
        Graph,
        GraphNode,
        ProgramLine,
        Refusal,
    )
    from perfscope.model.torch_plan import PlannedGraph, PlannedKernel, TorchPlan

Kernel = TypeVar("Kernel")
Platform = Literal["gpu", "cpu"]


class KernelPair(Struct, Generic[Kernel], frozen=True, kw_only=True):
    """Two kernels of a graph that share a value and were not fused."""

    refusal: Refusal[Any]
    first: Kernel
    """Kernel that writes the value."""
    second: Kernel
    needed_elsewhere: bool
    """Whether anything besides ``second`` needs the value."""

    @property
    def value_bytes(self) -> int:
        """Bytes of the value."""
        return self.refusal.shared_bytes or 0

    @property
    def saved_bytes(self) -> int:
        """Bytes per run that a fused kernel would not move: the read, and the write if nothing else needs the value."""
        return self.value_bytes * (1 if self.needed_elsewhere else 2)


class PlannedPair(KernelPair["PlannedKernel"], frozen=True, kw_only=True):
    """A pair of kernels that inductor would not fuse."""

    graph: PlannedGraph

    @property
    def place(self) -> ProgramLine | None:
        """The line that reads the value, else the one that makes it."""
        return next(iter((*self.second.places, *self.first.places)), None)


def planned_pairs(plan: TorchPlan) -> tuple[PlannedPair, ...]:
    """Return the pairs of a plan with a value between them, refused for a reason other than ``NOTHING_LOST``.

    A pair with two reasons counts once.
    """
    pairs: dict[tuple[int, int, int], PlannedPair] = {}
    for number, graph in enumerate(plan.graphs):
        kernels: Sequence[PlannedKernel] = graph.kernels
        for refusal in graph.refusals:
            if not refusal.shared_bytes or NOTHING_LOST.search(refusal.reason):
                continue
            pair = PlannedPair(
                refusal=refusal,
                first=kernels[refusal.first],
                second=kernels[refusal.second],
                needed_elsewhere=refusal.needed_elsewhere,
                graph=graph,
            )
            pairs.setdefault((number, refusal.first, refusal.second), pair)
    return tuple(pairs.values())


class RefusedPair(KernelPair["CompiledKernel | None"], frozen=True, kw_only=True):
    """A producer and a consumer that inductor did not fuse; a kernel is ``None`` if the log lacks it."""

    refusal: FusionRefusal
    platform: Platform
    graph_bytes: int | None
    """Bytes (at least) that all kernels of the graph read and write per run; ``None`` on a CPU and without a graph."""

    written_at: CodeLine | None
    """Line that makes the value."""
    read_at: CodeLine | None
    """Line that reads it."""


def refused_pairs(trace: Trace) -> tuple[RefusedPair, ...]:
    """Return the pairs of kernels that share a value and were not fused for a reason other than ``NOTHING_LOST``.

    Pairs that a later round fused, or that another kernel computes whole, are excluded. (For C++ kernels this is not
    sufficient: inductor puts several consecutive loops into one function.)
    """
    log = trace.compile_log
    if log is None:
        return ()
    kernels: dict[tuple[str, str], list[CompiledKernel]] = defaultdict(list)
    for kernel in log.kernels:
        kernels[kernel.compile_id, kernel.direction].append(kernel)
    graphs: dict[tuple[str, str], Graph] = {(graph.compile_id, graph.direction): graph for graph in log.graphs}
    users = {key: _users(graph) for key, graph in graphs.items()}
    totals = {key: touched_bytes(graph, kernels.get(key, [])) for key, graph in graphs.items()}
    result = []
    for refusal in log.refusals:
        if not refusal.shared_bytes or NOTHING_LOST.search(refusal.reason):
            continue
        key = (refusal.compile_id or "", str(refusal.direction))
        made, graph = kernels.get(key, []), graphs.get(key)
        on_cpu = any(kernel.backend == "cpp" for kernel in made)
        both = {*refusal.first_nodes, *refusal.second_nodes}
        if not on_cpu and both and any(both <= set(kernel.nodes) for kernel in made):
            continue  # they became one kernel
        elsewhere = graph is None or _needed_elsewhere(refusal, graph, users[key])
        first = _named(refusal.first_kernel, refusal.first_nodes, made)
        second = _named(refusal.second_kernel, refusal.second_nodes, made)
        written, read = _lines(refusal, graph)
        result.append(
            RefusedPair(
                refusal=refusal,
                platform="cpu" if on_cpu else "gpu",
                first=first,
                second=second,
                needed_elsewhere=elsewhere,
                graph_bytes=None if on_cpu else totals.get(key),
                written_at=written or (user_line(first) if first else None),
                read_at=read or (user_line(second) if second else None),
            )
        )
    return tuple(result)


def touched_bytes(graph: Graph, kernels: Sequence[CompiledKernel]) -> int:
    """Return the bytes that the kernels of a graph read and write per run.

    Per kernel, the distinct values from outside, and its values that are used outside; dynamic sizes count as 0. If the
    nodes of a kernel are unknown, the bytes that all nodes would move separately, which is an upper bound.
    """
    by_name = {node.name: node for node in (*graph.inputs, *graph.nodes)}
    if not kernels or any(not kernel.nodes for kernel in kernels):
        moved = (name for node in graph.nodes for name in (node.name, *set(node.inputs)))
        return sum(node_bytes(by_name[name]) for name in moved if name in by_name)
    users = _users(graph)
    outputs = set(graph.outputs)
    total = 0
    for kernel in kernels:
        own = set(kernel.nodes)
        reads = {name for node in own if node in by_name for name in by_name[node].inputs if name not in own}
        writes = {name for name in own if name in outputs or users[name] - own}
        total += sum(node_bytes(by_name[name]) for name in reads | writes if name in by_name)
    return total


def _needed_elsewhere(refusal: FusionRefusal, graph: Graph, users: Mapping[str, set[str]]) -> bool:
    """Whether anything besides the second node needs the values that it reads from the first; True if unknown."""
    first, second = set(refusal.first_nodes), set(refusal.second_nodes)
    outputs = set(graph.outputs)
    passed = [name for name in first - second if users.get(name, set()) & second]
    return not passed or any(name in outputs or users[name] - first - second for name in passed)


def _lines(refusal: FusionRefusal, graph: Graph | None) -> tuple[CodeLine | None, CodeLine | None]:
    """Return the line of a node whose value passes from the first to the second, and of a node that reads it."""
    if graph is None:
        return None, None
    first, second = set(refusal.first_nodes), set(refusal.second_nodes)
    by_name = {node.name: node for node in graph.nodes}
    for reader in graph.nodes:
        if reader.name not in second or reader.name in first or reader.place is None:
            continue
        for name in reader.inputs:
            writer = by_name.get(name)
            if name in first and writer is not None and writer.place is not None:
                return writer.place, reader.place
    return None, None


def _users(graph: Graph) -> dict[str, set[str]]:
    users: dict[str, set[str]] = defaultdict(set)
    for node in graph.nodes:
        for name in node.inputs:
            users[name].add(node.name)
    return users


def _named(name: str | None, nodes: Sequence[str], kernels: Sequence[CompiledKernel]) -> CompiledKernel | None:
    """Return the kernel with that name; of several calls, the one that computes most of the nodes."""
    wanted = set(nodes)
    fitting = [kernel for kernel in kernels if kernel.name == name]
    return max(fitting, key=lambda kernel: len(wanted & set(kernel.nodes)), default=None)


def node_bytes(node: GraphNode) -> int:
    """Return the bytes of a node's result; 0 for an unknown dtype or a dynamic size."""
    sizes = [size for size in node.shape if isinstance(size, int)]
    if node.dtype is None or len(sizes) < len(node.shape):
        return 0
    return ITEM_SIZES.get(node.dtype.removeprefix("torch."), 4) * math.prod(sizes)


def log_has_refusals(log: CompileLog | None) -> bool:
    """Whether the log has inductor's fusion decisions."""
    return log is not None and log.has_refusals
