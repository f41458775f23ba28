"""The model of a plan: torch.compile's result for a PyTorch program on a device that is not present.

The fields are those of the file (``model/documents/torch_plan.py``); this module derives values from them. Bytes and
FLOPs are exact properties of the plan. It has no measurements and no times.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.model.compile_log import GraphBreak
from perfscope.model.documents.torch_plan import (
    MemoryHolder,
    MemoryOwner,
    PlaceholderValue,
    PlanBreak,
    PlanMemory,
    PlannedGraph,
    PlannedKernel,
    PlannedRefusal,
    StepMemory,
    TorchPlan,
)
from perfscope.model.op_graph import OpGraph


class PlanTotals(Struct, frozen=True, kw_only=True):
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
    """FLOPs of products and attention."""
    saved_bytes: int
    """Bytes that forwards keep for their backwards."""
    refusals: int
    breaks: int
    recompiles: int

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


class LoadedPlan(Struct, frozen=True, kw_only=True):
    """A plan as read, with the ops next to it. ``None``: not kept, or corrupt (the source has the reason)."""

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


def totals(plan: TorchPlan) -> PlanTotals:
    """Sums over a step."""
    rows = [(graph.calls, kernel) for graph, kernel in kernels_of(plan)]
    triton = sum(calls for calls, kernel in rows if kernel.is_triton)
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
        refusals=sum(graph.refused for graph in plan.graphs),
        breaks=len(plan.breaks),
        recompiles=len(plan.recompiles),
    )


# The peak of a planned PyTorch step: which step is judged, what holds it by category, and whether it fits a device.


EXCLUDED_FROM_PEAK = (
    "the peak is what an allocator of device memory hands out, in blocks of 512 B; not in it: what it reserves beyond "
    "that, fragmentation, the CUDA context, workspaces of cuBLAS and cuDNN, buffers of NCCL, and what an op "
    "allocates inside and frees again"
)
"""Properties that every planned peak excludes."""


class CategoryRow(Struct, frozen=True, kw_only=True):
    """Memory of one category at the peak."""

    category: MemoryOwner
    bytes: int
    blocks: int
    most: MemoryHolder
    """The line that holds most of it."""


def memory_as_run(plan: TorchPlan) -> StepMemory | None:
    """The memory of the step as the program runs it: eagerly if it compiles nothing. ``None``: unknown."""
    if plan.memory is None:
        return None
    return plan.memory.planned if plan.compiled_by == "program" else plan.memory.eager


def by_category(step: StepMemory) -> tuple[CategoryRow, ...]:
    """Categories, the largest first. With ``left_bytes`` they sum to the peak."""
    result: dict[MemoryOwner, list[MemoryHolder]] = {}
    for holder in step.holders:
        result.setdefault(holder.category, []).append(holder)
    rows = (
        CategoryRow(
            category=category, bytes=sum(holder.bytes for holder in holders),
            blocks=sum(holder.blocks for holder in holders),
            most=holders[0],
        )
        for category, holders in result.items()
    )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def category_label(category: MemoryOwner) -> str:
    """As reports call it."""
    return category.replace("_", " ")


def fits(step: StepMemory, memory_bytes: int | None) -> bool | None:
    """Whether the peak is no more than the memory of a device; ``None``: its size is unknown."""
    return None if memory_bytes is None else step.peak_bytes <= memory_bytes


__all__ = [
    "CategoryRow",
    "LoadedPlan",
    "MemoryHolder",
    "MemoryOwner",
    "PlaceholderValue",
    "PlanBreak",
    "PlanMemory",
    "PlanTotals",
    "PlannedGraph",
    "PlannedKernel",
    "PlannedRefusal",
    "StepMemory",
    "TorchPlan",
    "by_category",
    "category_label",
    "fits",
    "kernels_of",
    "memory_as_run",
    "totals",
]
