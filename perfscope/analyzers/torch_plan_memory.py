"""The peak of a planned PyTorch step: which step is judged, what holds it by category, and whether it fits a device."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.torch_plan import TorchPlan
from perfscope.profiler.aot.torch_memory_file import MemoryHolder, MemoryOwner, PlanMemory, StepMemory

__all__ = [
    "CategoryRow",
    "MemoryHolder",
    "MemoryOwner",
    "PlanMemory",
    "StepMemory",
    "as_written",
    "by_category",
    "category_words",
    "fits",
]

NOT_IN_IT = (
    "the peak is what an allocator of device memory hands out, in blocks of 512 B; not in it: what it reserves beyond "
    "that, fragmentation, the CUDA context, workspaces of cuBLAS and cuDNN, buffers of NCCL, and what an op "
    "allocates inside and frees again"
)
"""Of every planned peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """What one category holds at the peak."""

    category: MemoryOwner
    bytes: int
    blocks: int
    most: MemoryHolder
    """The line that holds most of it."""


def as_written(plan: TorchPlan) -> StepMemory | None:
    """The memory of the step as the program runs it: eagerly where it compiles nothing. ``None``: not known."""
    if plan.memory is None:
        return None
    return plan.memory.planned if plan.compiled_by == "program" else plan.memory.eager


def by_category(step: StepMemory) -> tuple[CategoryRow, ...]:
    """Categories, the largest first. With ``left_bytes`` they sum to the peak."""
    found: dict[MemoryOwner, list[MemoryHolder]] = {}
    for holder in step.holders:
        found.setdefault(holder.category, []).append(holder)
    rows = (
        CategoryRow(
            category=category, bytes=sum(one.bytes for one in held), blocks=sum(one.blocks for one in held),
            most=held[0],
        )
        for category, held in found.items()
    )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def category_words(category: MemoryOwner) -> str:
    """As reports call it."""
    return "not known" if category == "unknown" else category.replace("_", " ")


def fits(step: StepMemory, memory_bytes: int | None) -> bool | None:
    """Whether the peak is no more than the memory of a device; ``None``: its size is not known."""
    return None if memory_bytes is None else step.peak_bytes <= memory_bytes
