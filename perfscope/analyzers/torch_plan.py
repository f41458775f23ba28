"""What torch.compile would make of a PyTorch program on a device that is not there: the model of a plan.

The parts are those of the file (``profiler/aot/torch_plan_file.py``); here stands what follows from them. Bytes and
FLOPs are exact properties of the plan, nothing here is measured, and no time is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.compile_log import GraphBreak
from perfscope.analyzers.op_graph import OpGraph
from perfscope.profiler.aot.torch_plan_file import (
    MadeUp,
    PlanBreak,
    PlannedGraph,
    PlannedKernel,
    PlannedRefusal,
    PlanPlace,
    PlanRecompile,
    Registers,
    TorchPlan,
)

__all__ = [
    "HeldPlan",
    "MadeUp",
    "PlanBreak",
    "PlanPlace",
    "PlanRecompile",
    "PlanTotals",
    "PlannedGraph",
    "PlannedKernel",
    "PlannedRefusal",
    "Registers",
    "TorchPlan",
    "kernels_of",
    "refusals_by_line",
    "totals",
    "way_in_words",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotals:
    """Counts of one step of a plan, each graph as often as the step runs it. Exact, so two plans can be compared."""

    graphs: int
    kernels: int
    """Launches: Triton kernels and library calls."""
    triton_kernels: int
    extern_kernels: int
    products: int
    attentions: int
    nodes: int
    """Scheduler nodes before fusion."""
    read_bytes: int
    written_bytes: int
    flops: int
    """Of products and attention."""
    saved_bytes: int
    """What forwards keep for their backwards."""
    refusals: int
    breaks: int
    recompiles: int

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlan:
    """A plan as it was read, with the ops that lay beside it. ``None``: not kept, or damaged (the source says)."""

    plan: TorchPlan
    breaks: tuple[tuple[str | None, GraphBreak], ...] = ()
    """``plan.breaks`` with torch's text taken apart, each with the function of its frame."""
    eager: OpGraph | None = None
    """All ops of one step without torch.compile."""
    outside: OpGraph | None = None
    """The ops of the planned step that no planned graph holds."""


def kernels_of(plan: TorchPlan) -> Iterator[tuple[PlannedGraph, PlannedKernel]]:
    """Every kernel of every graph, in the order of graphs; a graph's kernels once, however often it runs."""
    for graph in plan.graphs:
        for kernel in graph.kernels:
            yield graph, kernel


def way_in_words(way: str) -> str:
    """How a plan was made: ``over CPU tensors``."""
    return "over CPU tensors" if way == "cpu-triton" else "over a pretended cuda:0"


def totals(plan: TorchPlan) -> PlanTotals:
    """Sums over a step."""
    rows = [(graph.calls, kernel) for graph, kernel in kernels_of(plan)]
    triton = sum(calls for calls, kernel in rows if kernel.name.startswith("triton_"))
    every = sum(calls for calls, _ in rows)
    return PlanTotals(
        graphs=len(plan.graphs),
        kernels=every,
        triton_kernels=triton,
        extern_kernels=every - triton,
        products=sum(calls for calls, kernel in rows if kernel.kind == "product"),
        attentions=sum(calls for calls, kernel in rows if kernel.kind == "attention"),
        nodes=sum(graph.calls * graph.nodes for graph in plan.graphs),
        read_bytes=sum(calls * kernel.read_bytes for calls, kernel in rows),
        written_bytes=sum(calls * kernel.written_bytes for calls, kernel in rows),
        flops=sum(calls * (kernel.flops or 0) for calls, kernel in rows),
        saved_bytes=sum(graph.calls * graph.saved_bytes for graph in plan.graphs),
        refusals=sum(len(graph.refusals) + graph.refusals_left for graph in plan.graphs),
        breaks=len(plan.breaks),
        recompiles=len(plan.recompiles),
    )


def refusals_by_line(plan: TorchPlan) -> dict[tuple[str, int], tuple[tuple[PlannedGraph, PlannedRefusal], ...]]:
    """Refusals by the user's line of their second kernel (of the first where that has none); ``('', 0)``: no line."""
    found: dict[tuple[str, int], list[tuple[PlannedGraph, PlannedRefusal]]] = {}
    for graph in plan.graphs:
        for refusal in graph.refusals:
            places = graph.kernels[refusal.second].places or graph.kernels[refusal.first].places
            key = (places[0].file, places[0].line) if places else ("", 0)
            found.setdefault(key, []).append((graph, refusal))
    return {key: tuple(rows) for key, rows in sorted(found.items())}
