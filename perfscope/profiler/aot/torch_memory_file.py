"""What a planned step holds in device memory at its peak, as it lies in the file of a plan. No torch here.

Bytes are what the caching allocator of a device would hand out (multiples of ``allocator.ROUNDED_TO``), not what it
reserves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

MAX_HOLDERS = 200
"""Rows of a step, the largest."""

MemoryOwner = Literal["parameter", "gradient", "optimizer_state", "activation", "input", "temporary", "unknown"]
"""The words of ``MemoryCategory``."""
StepPhase = Literal["forward", "backward", "optimizer", "other"]

_Bytes = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=20_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHolder:
    """Blocks of one category that one line made and that lie in memory at the peak."""

    category: MemoryOwner
    bytes: _Bytes
    blocks: _Count
    file: _Text | None = None
    line: _Count | None = None
    function: _Text | None = None
    op: _Text | None = None
    """ATen op or planned kernel that made the largest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The memory of one step at the moment when most was handed out. Planned: counted over tensors without data."""

    peak_bytes: _Bytes
    requested_bytes: _Bytes
    """The most that was asked for at once, before rounding: what an allocator that does not round hands out."""
    start_bytes: _Bytes
    """Held when the step begins."""
    given_bytes: _Bytes = 0
    """Parameters, and what is there before the forward begins and the step looks at: steps of the same work have equal
    ones. Before rounding."""
    phase: StepPhase
    """Of the peak."""
    op: _Text | None = None
    """Op or planned kernel that asks for the block that makes the peak."""
    file: _Text | None = None
    line: _Count | None = None
    graph: _Text | None = None
    """``0/0 backward``: the planned graph in which it is; ``None``: outside of any."""
    holders: Annotated[tuple[MemoryHolder, ...], msgspec.Meta(max_length=MAX_HOLDERS)] = ()
    """Largest first; with what is left they sum to the peak."""
    left_bytes: _Bytes = 0
    left_blocks: _Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemory:
    """Peaks of a program's step. ``None``: such a step was not seen whole."""

    eager: StepMemory | None = None
    """Without torch.compile."""
    planned: StepMemory | None = None
    """With the planned graphs: their buffers as inductor's wrapper allocates, reuses and frees them."""
    uncounted: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=1_000)] = ()
    """What of this program is not in these numbers, a sentence each."""
