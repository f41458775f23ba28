"""The file of a plan: what torch.compile would make of a PyTorch program, planned and never run.

Written by the child that plans (``torch_plan_child``), read by ``analyzers/readers/compiled.py``. No torch here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.compile_log import Bytes, Count, Direction, ProgramLine, Recompile, Refusal, Text
from perfscope.model.documents.bounded_json import read_document
from perfscope.model.errors import DataError
from perfscope.model.files import write_atomically

# Device memory of a planned step at its peak, as in the file of a plan. No torch here.
#
# Bytes are blocks of a caching allocator (multiples of ``allocator.ROUNDED_TO``), not the segments that it
# reserves.


MAX_HOLDERS = 200
"""Rows of a step, the largest."""

MemoryOwner = Literal["parameter", "gradient", "optimizer_state", "activation", "input", "temporary", "unknown"]
"""The words of ``MemoryCategory``."""
StepPhase = Literal["forward", "backward", "optimizer", "other"]


class MemoryHolder(Struct, frozen=True, kw_only=True):
    """Blocks at the peak of one category that one line made."""

    category: MemoryOwner
    bytes: Bytes
    blocks: Count
    file: Text | None = None
    line: Count | None = None
    function: Text | None = None
    op: Text | None = None
    """ATen op or planned kernel that made the largest of them."""


class StepMemory(Struct, frozen=True, kw_only=True):
    """The memory of one step at the moment when most was handed out. Planned: counted over tensors without data."""

    peak_bytes: Bytes
    """Handed out by an allocator of device memory, in blocks of 512 B; not what it reserves."""
    requested_bytes: Bytes
    """Largest sum of requests at one time, before rounding: the peak of an allocator that does not round."""
    start_bytes: Bytes
    """Held when the step begins."""
    given_bytes: Bytes = 0
    """Parameters, and other memory from before the forward that the step uses: steps of the same work have equal
    values. Before rounding."""
    phase: StepPhase
    """Phase of the step at the peak."""
    op: Text | None = None
    """Op or planned kernel that allocates the block at the peak."""
    file: Text | None = None
    line: Count | None = None
    graph: Text | None = None
    """``0/0 backward``: the planned graph in which it is; ``None``: outside of all graphs."""
    holders: Annotated[tuple[MemoryHolder, ...], msgspec.Meta(max_length=MAX_HOLDERS)] = ()
    """Largest first; with the unlisted bytes they sum to the peak."""
    left_bytes: Bytes = 0
    left_blocks: Count = 0


class PlanMemory(Struct, frozen=True, kw_only=True):
    """Peaks of a program's step. ``None``: no complete step was seen."""

    eager: StepMemory | None = None
    """Without torch.compile."""
    planned: StepMemory | None = None
    """With the planned graphs: their buffers as inductor's wrapper allocates, reuses and frees them."""
    uncounted: Annotated[tuple[Text, ...], msgspec.Meta(max_length=1_000)] = ()
    """Parts of the program that these numbers exclude, one sentence each."""


# Communication of one of several planned processes, as in the file of a plan. No torch here.
#
# The plan is for one of ``world_size`` processes, each with one device of the target: rank 0, and of a pipeline every
# rank. Bytes are exact; no times.


MAX_COLLECTIVES = 100_000
"""Collectives of one step."""
MAX_GROUPS = 10_000
MAX_RANKS = 1 << 20
MAX_NOTES = 1_000

CollectiveKind = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "gather", "scatter", "send",
    "recv", "barrier",
]  # fmt: skip
CollectiveOrigin = Literal[
    "the program", "DistributedDataParallel", "fully_shard", "FullyShardedDataParallel", "DTensor"
]


class StepPosition(Struct, frozen=True, kw_only=True):
    """Between two things that a step does: after so many of its ops and so many runs of planned graphs."""

    ops: Count
    """Ops of the op graph next to the plan."""
    runs: Count = 0
    """Runs of planned graphs, ``PlannedProcesses.runs``."""


class GraphRun(Struct, frozen=True, kw_only=True):
    """A run of a planned graph among the ops of the planned step."""

    graph: Count
    """Index in ``TorchPlan.graphs``."""
    ops: Count
    """Ops outside of graphs that were before it."""


class PlannedCollective(Struct, frozen=True, kw_only=True):
    """One exchange of the planned rank with others."""

    kind: CollectiveKind
    op: Text
    """Torch's own: ``c10d.allreduce_``."""
    bytes: Bytes
    """Bytes of the whole array: the result of an all-gather and a gather, the payload of ``send`` and ``recv``, and the
    operand of everything else."""
    dtype: Text | None
    group: Count
    """Index in ``PlannedProcesses.groups``."""
    by: CollectiveOrigin
    phase: StepPhase
    file: Text | None = None
    line: Count | None = None
    """The user's line; in a backward the line of the forward, if autograd has it."""
    function: Text | None = None
    at: StepPosition
    """When the host enqueues it; inside a graph: the number of kernels before it."""
    after: StepPosition
    """It begins when all earlier work of the program's own stream is done."""
    until: StepPosition | None = None
    """The program's own stream waits for it from then on; ``None``: it does not wait in this step."""
    behind: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] = ()
    """Others of the same step (by index) that must be done before it begins."""
    pairs: tuple[Count, Count] | None = None
    """The two ranks of ``send`` and ``recv``."""


class GraphCollectives(Struct, frozen=True, kw_only=True):
    """Collectives inside a planned graph, in the order of its kernels; moments count kernels."""

    graph: Count
    collectives: Annotated[tuple[PlannedCollective, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)]


class Bucket(Struct, frozen=True, kw_only=True):
    """Gradients that DistributedDataParallel all-reduces together, modelled from the sizes of the parameters."""

    bytes: Bytes
    parameters: Count


class PlannedPipeline(Struct, frozen=True, kw_only=True):
    """Place of a rank in a pipeline of ``torch.distributed.pipelining``."""

    ranks: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_GROUPS)]
    """Ranks of the pipeline's group."""
    stages: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_GROUPS)]
    """Stages of this rank."""
    of: Count
    """Stages in all."""
    schedule: Text = ""
    """Torch's class: ``Schedule1F1B``."""
    micro_batches: Count = 0


class PlannedProcesses(Struct, frozen=True, kw_only=True):
    """A job of several processes, planned as one of them."""

    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    backend: Text | None
    """As the program asked for: ``nccl``."""
    groups: Annotated[tuple[tuple[Count, ...], ...], msgspec.Meta(max_length=MAX_GROUPS)]
    """Ranks of each group that is used."""
    eager: Annotated[tuple[PlannedCollective, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] | None = None
    """Collectives of the eager step, in the order of their launches; ``None``: no complete step was seen."""
    outside: Annotated[tuple[PlannedCollective, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] | None = None
    """Collectives of the planned step outside its graphs."""
    inside: Annotated[tuple[GraphCollectives, ...], msgspec.Meta(max_length=2_000)] = ()
    runs: Annotated[tuple[GraphRun, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] = ()
    """Runs of graphs in the planned step, in order."""
    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=MAX_COLLECTIVES)] = ()
    """Buckets of DistributedDataParallel, in the order of their reduction."""
    left: Count = 0
    """Collectives beyond the limit, which are not in the lists."""
    notes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_NOTES)] = ()
    """Assumptions, one sentence each."""
    planned_rank: Count = 0
    pipeline: PlannedPipeline | None = None


SCHEMA: Literal["perfscope.torch_plan/1"] = "perfscope.torch_plan/1"

MAX_BYTES = 256 << 20
"""Largest file; a plan of a model with a thousand kernels per step has 1 MB."""
MAX_GRAPHS = 2_000
MAX_KERNELS = 100_000
"""Kernels of one graph."""
MAX_REFUSALS = 1_000
"""Refusals written per graph, those with the most shared bytes first."""
MAX_ROWS = 1_000
"""Breaks, recompilations, made-up values, notes."""
ALL_STEPS = "after five steps: one as it is, one eagerly, two planned, one eagerly again"
"""``TorchPlan.stopped`` of a program that ran as far as it had to."""

KernelKind = Literal["pointwise", "reduction", "foreach", "product", "attention", "collective", "extern"]
"""``product``: a matrix product, which a library computes; ``collective``: an exchange with other processes;
``extern``: any other op that inductor calls unchanged."""


class PlannedKernel(Struct, frozen=True, kw_only=True):
    """One launch of a planned graph: a fused Triton kernel, or a library call. In the order of the graph."""

    name: Text
    """Inductor's: ``triton_poi_fused_gelu_0``, ``extern_kernels.mm``. Not unique in a graph."""
    kind: KernelKind
    members: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_KERNELS)]
    """Scheduler nodes in it, ``op3``: more than one where inductor fused."""
    ops: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_KERNELS)]
    """ATen ops it computes, ``aten.gelu``, sorted, without repeats; inductor decomposes some further."""
    places: Annotated[tuple[ProgramLine, ...], msgspec.Meta(max_length=MAX_ROWS)]
    """The user's lines it computes, without repeats; for a backward kernel those of its forward."""
    read_bytes: Bytes
    """Each buffer once, of a part that is read only that part."""
    written_bytes: Bytes
    reread_bytes: Bytes = 0
    """Additional reads of a reduction if its row does not fit on chip: an upper bound."""
    flops: Count | None = None
    """FLOPs of a product or attention (a multiply-add is two); ``None`` if there is no formula."""
    dtype: Text | None = None
    """dtype of the operands of a product or attention, otherwise of the output."""
    shape: Text | None = None
    """Shape of a product: ``8192x2048x6144`` (rows, inner, columns; a batch comes first)."""
    not_covered: Text | None = None
    """Why the target may run something else here."""

    @property
    def bytes(self) -> int:
        """Bytes read and written, each buffer once."""
        return self.read_bytes + self.written_bytes

    @property
    def is_triton(self) -> bool:
        """Whether it is a Triton kernel, not a library call."""
        return self.name.startswith("triton_")


class PlannedRefusal(Refusal[Count], frozen=True, kw_only=True):
    """A refusal between kernels of a graph, by their index in ``PlannedGraph.kernels``."""

    needed_elsewhere: bool = True
    """Whether another kernel needs the first one's result: then fusion removes only the read."""


class PlannedGraph(Struct, frozen=True, kw_only=True):
    """One graph as inductor would run it."""

    compile_id: Text
    """``0/0``: frame, and how often it was compiled; a backward has that of its forward."""
    direction: Direction
    function: Text | None
    """Whose frame it is: ``Block.forward``."""
    place: ProgramLine | None
    nodes: Count
    """Scheduler nodes, before fusion."""
    kernels: Annotated[tuple[PlannedKernel, ...], msgspec.Meta(max_length=MAX_KERNELS)]
    refusals: Annotated[tuple[PlannedRefusal, ...], msgspec.Meta(max_length=MAX_REFUSALS)] = ()
    refusals_left: Count = 0
    """Beyond ``MAX_REFUSALS``."""
    calls: Count = 1
    """How often the planned step runs it."""
    dynamic: bool = False
    """It has sizes that are symbols; bytes are for the sizes of the call that compiled it."""
    saved_bytes: Bytes = 0
    """Bytes that a forward keeps for its backward, its inputs excluded. A view counts as its base."""
    output_bytes: Bytes = 0

    @property
    def triton_kernels(self) -> int:
        """Number of Triton kernels."""
        return sum(kernel.is_triton for kernel in self.kernels)

    @property
    def refused(self) -> int:
        """Number of pairs of kernels that inductor would not fuse."""
        return len(self.refusals) + self.refusals_left


class PlanBreak(Struct, frozen=True, kw_only=True):
    """A graph break in torch's words (``compile_log.GraphBreak`` is read from it)."""

    compile_id: Text
    function: Text | None
    place: ProgramLine | None
    """First line of the frame."""
    text: Text


class PlaceholderValue(Struct, frozen=True, kw_only=True):
    """A value that the program read and that no data was there for, or a size that depends on one."""

    what: Text
    """``item``, ``nonzero`` ..."""
    place: ProgramLine | None
    answer: Text
    times: Count


class TorchPlan(Struct, frozen=True, kw_only=True):
    """torch.compile's plan for one program on a device that is not present."""

    schema: Literal["perfscope.torch_plan/1"]
    name: Text
    """Name of the program: ``perfscope.workloads.attention``."""
    compiled_by: Literal["program", "perfscope"]
    """``perfscope``: the program runs eagerly, and is planned as if its outermost modules were compiled."""
    target: Text
    """As asked: ``h100``."""
    versions: Annotated[dict[Text, Text], msgspec.Meta(max_length=20)]
    graphs: Annotated[tuple[PlannedGraph, ...], msgspec.Meta(max_length=MAX_GRAPHS)]
    breaks: Annotated[tuple[PlanBreak, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    recompiles: Annotated[tuple[Recompile, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    made_up: Annotated[tuple[PlaceholderValue, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    not_covered: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    """Parts of the program that the plan excludes, one sentence each."""
    notes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    stopped: Text = ""
    """Place where the program was stopped, in words."""
    float32_products: Literal["float32", "tf32"] = "float32"
    """Precision of products of float32 operands, as set by the program."""
    optimizers: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    """Classes of the optimizers that stepped: ``AdamW``."""
    steps_from: Text | None = None
    """The event that begins a step: ``optimizer.step``."""
    complete: bool = True
    """False: the program raised before a whole step was seen."""
    failure: Text | None = None
    eager_file: Text | None = None
    """Beside this file: the ops of one whole step as they run eagerly (``perfscope.op_graph/1``)."""
    outside_file: Text | None = None
    """Beside this file: the ops of the planned step outside of its graphs (loss, optimizer ...)."""
    memory: PlanMemory | None = None
    """Peak memory of a step; ``None``: a plan of an earlier perfscope."""
    processes: PlannedProcesses | None = None
    """Exchanges with the other processes of its job; ``None``: there are no others."""
    converted_from: Literal["", "onnx"] = ""
    """Format of the file that another package made a PyTorch program of: its lines and calls are not the user's."""
    fingerprint: Text = ""
    """Hash of graphs, breaks and recompilations: equal for equal plans. It excludes versions and the target's name."""


def fingerprint_of(plan: TorchPlan) -> str:
    """Sha-256 (hex, 16 digits) of the plan: two builds of the same source have the same."""
    parts: tuple[object, ...] = (plan.graphs, plan.breaks, plan.recompiles)
    if plan.processes is not None:
        parts += (plan.processes,)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def write_plan(path: Path, plan: TorchPlan) -> TorchPlan:
    """Writes the plan with its fingerprint, in one go, and gives it back."""
    stamped = replace(plan, fingerprint=fingerprint_of(plan))
    write_atomically(path, msgspec.json.encode(stamped, order="deterministic") + b"\n", durable=False)
    return stamped


def read_plan(path: Path) -> TorchPlan:
    """The plan in a file, also gzip; ``DataError`` (one line) if it is missing, cut, too large or not a plan."""
    plan = read_document(path, TorchPlan, SCHEMA, what="a plan of perfscope", most_bytes=MAX_BYTES)
    for number, graph in enumerate(plan.graphs):
        worst = max((max(refusal.first, refusal.second) for refusal in graph.refusals), default=-1)
        if worst >= len(graph.kernels):
            raise DataError(
                f"{path}: graph {number} has {len(graph.kernels)} kernels, and a refusal names kernel {worst}"
            )
    return plan
