"""What one of several planned processes says to the others, as it lies in the file of a plan. No torch here.

A plan is of rank 0 of ``world_size`` processes, each with a device of the target. Bytes are exact; no time is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from perfscope.profiler.aot.torch_memory_file import StepPhase

MAX_COLLECTIVES = 100_000
"""Of one step."""
MAX_GROUPS = 10_000
MAX_RANKS = 1 << 20
MAX_NOTES = 1_000

CollectiveKind = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "gather", "scatter", "send",
    "recv", "barrier",
]  # fmt: skip
AskedBy = Literal["the program", "DistributedDataParallel", "fully_shard", "FullyShardedDataParallel", "DTensor"]

_Bytes = Annotated[int, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=20_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Between two things that a step does: after so many of its ops and so many runs of planned graphs."""

    ops: _Count
    """Ops of the op graph that lies beside the plan."""
    runs: _Count = 0
    """Runs of planned graphs, ``PlannedProcesses.runs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRun:
    """A run of a planned graph among the ops of the planned step."""

    graph: _Count
    """Index in ``TorchPlan.graphs``."""
    ops: _Count
    """Ops outside of graphs that were before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCollective:
    """One exchange of rank 0 with others."""

    kind: CollectiveKind
    op: _Text
    """Torch's own: ``c10d.allreduce_``."""
    bytes: _Bytes
    """Of the whole array: the result of an all-gather and a gather, the operand of everything else. Of ``send`` and
    ``recv`` what is sent."""
    dtype: _Text | None
    group: _Count
    """Index in ``PlannedProcesses.groups``."""
    by: AskedBy
    phase: StepPhase
    file: _Text | None = None
    line: _Count | None = None
    """The user's; in a backward that of the forward, where autograd knows it."""
    function: _Text | None = None
    at: Moment
    """When the host asks for it; inside of a graph: after so many of its kernels."""
    after: Moment
    """It begins when what the program's own stream was given until then is done."""
    until: Moment | None = None
    """From then on the program's own stream waits for it; ``None``: it does not in this step."""
    behind: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] = ()
    """Others of the same step (by index) that must be done before it begins."""
    pairs: tuple[_Count, _Count] | None = None
    """Of ``send`` and ``recv``: the two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCollectives:
    """Those inside of a planned graph, in the order of its kernels; moments count kernels."""

    graph: _Count
    collectives: Annotated[tuple[PlannedCollective, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that DistributedDataParallel sums up together, by its documented rule and not by torch's reducer."""

    bytes: _Bytes
    parameters: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcesses:
    """A job of several processes, planned as its first."""

    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    backend: _Text | None
    """As the program asked for: ``nccl``."""
    groups: Annotated[tuple[tuple[_Count, ...], ...], msgspec.Meta(max_length=MAX_GROUPS)]
    """Ranks of each group that is used."""
    eager: Annotated[tuple[PlannedCollective, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] | None = None
    """Of the eager step, in the order in which they are asked for; ``None``: such a step was not seen whole."""
    outside: Annotated[tuple[PlannedCollective, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] | None = None
    """Of the planned step, outside of its graphs."""
    inside: Annotated[tuple[GraphCollectives, ...], msgspec.Meta(max_length=2_000)] = ()
    runs: Annotated[tuple[GraphRun, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] = ()
    """Of the planned step, in order."""
    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] = ()
    """Of DistributedDataParallel, in the order in which they are reduced."""
    left: _Count = 0
    """Collectives beyond the limit, which are not in the lists."""
    notes: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_NOTES)] = ()
    """What was assumed, a sentence each."""
