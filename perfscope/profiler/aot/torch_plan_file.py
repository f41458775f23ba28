"""The file of a plan: what torch.compile would make of a PyTorch program, planned and never run.

Written by the child that plans (``torch_plan_child``), read by ``analyzers/readers/torch_plan.py``. No torch here.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfscope.profiler.aot.torch_memory_file import PlanMemory
from perfscope.profiler.aot.torch_processes_file import PlannedProcesses
from perfscope.profiler.errors import DataError

SCHEMA: Literal["perfscope.torch_plan/1"] = "perfscope.torch_plan/1"

MAX_BYTES = 256 << 20
"""Of a file; a plan of a model with a thousand kernels a step has 1 MB."""
MAX_GRAPHS = 2_000
MAX_KERNELS = 100_000
"""Of one graph."""
MAX_REFUSALS = 1_000
"""Written of one graph, those with the most shared bytes first."""
MAX_ROWS = 1_000
"""Breaks, recompilations, made-up values, notes."""
MAX_TEXT = 20_000
"""Characters of torch's text of a break."""

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]

ALL_STEPS = "after four steps: one as it is, one eagerly, one planned, one more"
"""``TorchPlan.stopped`` of a program that ran as far as it had to."""

KernelKind = Literal["pointwise", "reduction", "foreach", "product", "attention", "collective", "extern"]
"""``product``: a matrix product, which a library computes; ``collective``: an exchange with other processes;
``extern``: any other op that inductor calls as it is."""
Direction = Literal["forward", "backward", "inference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPlace:
    """A line of the user's, the file as seen from the folder the program was started in."""

    file: Text
    line: Count
    function: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """What ptxas says of a planned Triton kernel, for block sizes of our own: autotuning may choose others."""

    capability: Text
    """``sm_90``."""
    blocks: Text
    """``XBLOCK=1024, num_warps=4``."""
    registers: Count | None = None
    """A thread's; ``None``: it could not be compiled, see ``failure``."""
    spilled_bytes: Count | None = None
    """A thread's, stores and loads together."""
    shared_bytes: Count | None = None
    """A block's shared memory."""
    failure: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """One launch of a planned graph: a fused Triton kernel, or a library call. In the order of the graph."""

    name: Text
    """Inductor's: ``triton_poi_fused_gelu_0``, ``extern_kernels.mm``. Not unique in a graph."""
    kind: KernelKind
    members: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_KERNELS)]
    """Scheduler nodes in it, ``op3``: more than one where inductor fused."""
    ops: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_KERNELS)]
    """ATen ops it computes, ``aten.gelu``, sorted, without repeats; inductor decomposes some further."""
    places: Annotated[tuple[PlanPlace, ...], msgspec.Meta(max_length=MAX_ROWS)]
    """The user's lines it computes, without repeats; of a backward kernel those of its forward."""
    read_bytes: Bytes
    """Each buffer once, of a part that is read only that part."""
    written_bytes: Bytes
    reread_bytes: Bytes = 0
    """What a reduction would read again on top where its row does not fit on chip: an upper bound."""
    flops: Count | None = None
    """Of a product or attention (a multiply-add is two); ``None`` where there is no formula."""
    dtype: Text | None = None
    """Of the operands of a product or attention; of what is written otherwise."""
    shape: Text | None = None
    """Of a product: ``8192x2048x6144`` (rows, inner, columns; a batch stands before)."""
    not_covered: Text | None = None
    """Why the target may run something else here."""
    registers: Registers | None = None

    @property
    def bytes(self) -> int:
        """Bytes read and written, each buffer once."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRefusal:
    """Two kernels of a graph that inductor's scheduler did not fuse, said once."""

    first: Count
    """Index in ``PlannedGraph.kernels``."""
    second: Count
    reason: Text
    """In inductor's words, which name its own nodes and ranges."""
    times: Count = 1
    """Rounds of the scheduler that said so."""
    shared_bytes: Bytes | None = None
    """What the second reads of what the first writes."""
    common_read_bytes: Bytes | None = None
    """What the second reads of what the first reads as well."""
    needed_elsewhere: bool = True
    """Whether something besides the second needs what it reads of the first: then only the read would go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph:
    """One graph as inductor would run it."""

    compile_id: Text
    """``0/0``: frame, and how often it was compiled; a backward has that of its forward."""
    direction: Direction
    function: Text | None
    """Whose frame it is: ``Block.forward``."""
    place: PlanPlace | None
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
    """Of a forward: what it keeps for its backward, its inputs not counted. A view counts as what it views."""
    output_bytes: Bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBreak:
    """A graph break in torch's words (``compile_log.GraphBreak`` is read from it)."""

    compile_id: Text
    function: Text | None
    place: PlanPlace | None
    """First line of the frame."""
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecompile:
    """A frame that was compiled again because a guard failed."""

    compile_id: Text
    function: Text | None
    place: PlanPlace | None
    reasons: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp:
    """A value that the program read and that no data was there for, or a size that depends on one."""

    what: Text
    """``item``, ``nonzero`` ..."""
    place: PlanPlace | None
    answer: Text
    times: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPlan:
    """What torch.compile would make of one program, on a device that is not there."""

    schema: Literal["perfscope.torch_plan/1"]
    name: Text
    """Of the program: ``perfscope.workloads.attention``."""
    compiled_by: Literal["program", "perfscope"]
    """``perfscope``: the program runs eagerly, and is planned as if its outermost modules were compiled."""
    way: Literal["cpu-triton", "pretended-device"]
    """``cpu-triton``: inductor's Triton backend over CPU tensors. Grouping in backward graphs may differ a little."""
    target: Text
    """As asked: ``h100``."""
    versions: Annotated[dict[Text, Text], msgspec.Meta(max_length=20)]
    graphs: Annotated[tuple[PlannedGraph, ...], msgspec.Meta(max_length=MAX_GRAPHS)]
    breaks: Annotated[tuple[PlanBreak, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    recompiles: Annotated[tuple[PlanRecompile, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    made_up: Annotated[tuple[MadeUp, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    not_covered: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    """What of the program is not in the plan, one sentence each."""
    notes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    stopped: Text = ""
    """Where the program was stopped, in words."""
    float32_products: Literal["float32", "tf32"] = "float32"
    """What products of float32 operands are computed in, as the program sets it."""
    optimizers: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ROWS)] = ()
    """Classes of the optimizers that stepped: ``AdamW``."""
    steps_from: Text | None = None
    """What said where a step begins: ``optimizer.step``."""
    complete: bool = True
    """False: the program raised before a whole step was seen."""
    failure: Text | None = None
    eager_file: Text | None = None
    """Beside this file: the ops of one whole step as they run eagerly (``perfscope.op_graph/1``)."""
    outside_file: Text | None = None
    """Beside this file: the ops of the planned step outside of its graphs (loss, optimizer ...)."""
    memory: PlanMemory | None = None
    """The most that a step holds at once; ``None``: a plan of an earlier perfscope."""
    processes: PlannedProcesses | None = None
    """What it exchanges with the other processes of its job; ``None``: it has none."""
    fingerprint: Text = ""
    """Of graphs, breaks and recompilations: equal for equal plans. Versions and the target's name are not in it."""


def fingerprint_of(plan: TorchPlan) -> str:
    """Sha-256 (hex, 16 digits) of what was planned: two builds of the same source have the same."""
    parts: tuple[object, ...] = (plan.graphs, plan.breaks, plan.recompiles)
    if plan.processes is not None:
        parts += (plan.processes,)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def write_plan(path: Path, plan: TorchPlan) -> TorchPlan:
    """Writes the plan with its fingerprint, in one go, and gives it back."""
    stamped = replace(plan, fingerprint=fingerprint_of(plan))
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.encode(stamped, order="deterministic") + b"\n")
    partial.replace(path)
    return stamped


def read_plan(path: Path) -> TorchPlan:
    """The plan in a file, also gzip; ``DataError`` (one line) if it is missing, cut, too large or not a plan."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            content = gzip.GzipFile(fileobj=raw).read(MAX_BYTES + 1) if packed else raw.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the plan is cut or damaged inside its gzip stream") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or 'cannot be read'}") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{path}: larger than {MAX_BYTES >> 20} MiB: not a plan of perfscope")
    try:
        plan = msgspec.json.decode(content, type=TorchPlan)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a plan of perfscope ({SCHEMA}): {error}") from error
    for number, graph in enumerate(plan.graphs):
        _check(path, number, graph.kernels, graph.refusals)
    return plan


def _check(path: Path, number: int, kernels: Sequence[PlannedKernel], refusals: Sequence[PlannedRefusal]) -> None:
    worst = max((max(one.first, one.second) for one in refusals), default=-1)
    if worst >= len(kernels):
        raise DataError(f"{path}: graph {number} has {len(kernels)} kernels, and a refusal names kernel {worst}")
