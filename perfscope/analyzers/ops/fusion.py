"""Groups of elementwise ops that one kernel could run, exact from the op graph.

A group is what a fusing compiler would merge: pointwise ops over one iteration domain, with the reductions over that
domain and the small ops that broadcast into it. Groups are convex and can all be scheduled together: every op gets a
level that never falls along a dependency and rises at every edge that cannot be fused, and a group has a single level.
A path that leaves a group has risen, so it cannot return.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.graph import Flow, base_name, flow_of, trace_flow
from perfscope.analyzers.ops.eager_cost import elementwise_result
from perfscope.analyzers.ops.kernels import Operand, input_tensors
from perfscope.analyzers.ops.op_call import OpCost
from perfscope.analyzers.ops.recompute import EVALUATE
from perfscope.analyzers.spans import GRAPH_CALL, named_slices, nearest_ancestor, slice_name
from perfscope.model.intervals import numbered
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, GraphTensor, OpGraph

FUSED_ALREADY = ("aten.native_", "aten._fused_", "aten._foreach_", "aten.cum", "aten.nll_loss", "aten.logcum")
"""Norms, losses and list ops that are one hand-written kernel over several steps of a formula, and scans. A compiler
may still fuse them with their neighbours, but that gains little.
"""

ELEMENTWISE_NATIVE = frozenset({"aten.native_dropout", "aten.native_dropout_backward"})

FORWARD_PRECISION = 0.93

FORWARD_RECALL = 0.97

_ELEMENTWISE_KERNEL = re.compile(r"\b(?:vectorized_|unrolled_|legacy_)?elementwise_kernel\b|_elementwise_kernel_")

NOTHING_LOST = re.compile(
    r"intermediate nodes"  # a kernel between them needs the value as well; its own reason is reported instead
    r"|\bextern\b|epilogue|\btemplate\b|prologue"  # library calls and matrix product templates
    r"|\bnop\b|must go before"
    r"|foreach"  # already one launch for many tensors
    r"|register spilling|grouped node"  # inductor measured it, or a setting requires it
)
"""Reasons that are right, or that do not concern a border between two fusable kernels."""

_SIZES = (
    "Bring both over the same elements: a reduction fuses with what goes over its own input or its own output, not "
    "with a third size."
)

_ORDER = (
    "Let both go over memory in one order: reduce over the last dimension, and transpose or call .contiguous() before "
    "the first of them, not between."
)

_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"no shared data",
        "they touch the same values in another order: one of them transposes, or reduces over another axis",
        _ORDER,
    ),
    (
        r"memory deps did not match",
        "the second reads the values at other positions than the first writes them (shifted, strided, transposed)",
        _ORDER,
    ),
    (r"numel/rnumel mismatch|numel(/rnumel)? incompatibility", "they go over different numbers of elements", _SIZES),
    (r"tiling|loop order", "their loops are tiled differently, for strides that do not agree", _ORDER),
    (r"different buf layouts", "their results are laid out differently in memory", _ORDER),
    (
        r"device mismatch",
        "they run on different devices",
        "Make both tensors on the same device: torch.arange(..., device=x.device), torch.zeros and similar functions.",
    ),
    (
        r"[Ss]plit scan",
        "a scan (cumsum, cumprod) over a long dimension runs in parts, which cannot hold a reduction",
        "Reduce after the scan from its last element, or in a separate function.",
    ),
    (
        r"explicit(ly)? disabled",
        "fusion was turned off for this value",
        "See torch._inductor.config for the setting.",
    ),
)
"""Part of a reason, its meaning, and the fix."""

LONGEST_CHAIN = 6
"""Maximum number of names in a chain, so that it fits on a line of a report."""


class FusionGroup(Struct, frozen=True, kw_only=True):
    """At least two ops that one kernel could run. Bytes are per step."""

    ops: tuple[int, ...]
    """Indices into ``OpGraph.ops``, in execution order."""
    eager_bytes: int
    """Sum over the ops of the bytes that each reads and writes."""
    fused_bytes: int
    """Bytes that a fused kernel reads from outside and writes for others."""

    @property
    def saved_bytes(self) -> int:
        """Bytes that stay on chip when fused; never negative."""
        return self.eager_bytes - self.fused_bytes

    @property
    def saved_share(self) -> float:
        """``saved_bytes`` as a share of ``eager_bytes``; 0 if no bytes are moved."""
        return self.saved_bytes / self.eager_bytes if self.eager_bytes else 0.0


class _Part(Struct, kw_only=True):
    """A group under construction."""

    ops: list[int]
    level: int
    domain: int
    reduces: bool


class _Kind(Struct, frozen=True, kw_only=True):
    """Properties that determine whether an op fuses, and with which others. Domain in elements."""

    domain: int
    reduces: bool
    to_scalar: bool
    device: str
    phase: str
    segment: int


def fusion_groups(trace: Trace) -> tuple[FusionGroup, ...]:
    """Return the groups of the trace's op graph, most saved bytes first; empty without a graph."""
    flow = trace.fact(trace_flow)
    return () if trace.op_graph is None or flow is None else find_groups(trace.op_graph, flow)


def find_groups(graph: OpGraph, flow: Flow | None = None) -> tuple[FusionGroup, ...]:
    """Return all groups of a graph, most saved bytes first. Time is linear in ops and edges."""
    known = flow_of(graph) if flow is None else flow
    builder = _Builder(graph, known)
    builder.raise_parts()
    groups = (group_of(graph, known, sorted(part.ops)) for part in builder.parts.values() if len(part.ops) > 1)
    return tuple(sorted(groups, key=lambda group: (-group.saved_bytes, group.ops)))


def group_of(graph: OpGraph, flow: Flow, ops: list[int]) -> FusionGroup:
    """Return the bytes of a set of ops, run one by one and as one kernel.

    eager = sum over ops of distinct bytes in and out; fused = distinct bytes read from outside the set, plus those
    written and used outside it, later in the step or after it.
    """
    members = set(ops)
    eager = 0
    external: set[int] = set()
    written: set[int] = set()
    live: set[int] = set()
    for index in ops:
        eager += flow_bytes(graph, flow, index)
        inside = {tensor for tensor, producer in flow.producers[index] if producer in members}
        external.update(tensor for tensor in flow.reads[index] if tensor not in inside)
        written.update(flow.writes[index])
        if flow.outlives[index] or any(reader not in members for reader in flow.consumers[index]):
            live.update(graph.tensors[tensor].storage for tensor in flow.writes[index])
    kept = tuple(tensor for tensor in written if graph.tensors[tensor].storage in live)
    fused = region_bytes(graph, flow, tuple(external)) + region_bytes(graph, flow, kept)
    return FusionGroup(ops=tuple(ops), eager_bytes=eager, fused_bytes=fused)


def region_bytes(graph: OpGraph, flow: Flow, tensors: tuple[int, ...]) -> int:
    """Return the bytes of distinct regions; for each storage at most its size."""
    regions = {flow.region(graph, tensor): graph.tensors[tensor].bytes for tensor in tensors}
    by_storage: dict[int, int] = {}
    for (storage, _), size in regions.items():
        by_storage[storage] = by_storage.get(storage, 0) + size
    return sum(min(size, flow.storage_bytes[storage]) for storage, size in by_storage.items())


def flow_bytes(graph: OpGraph, flow: Flow, index: int) -> int:
    """Return the bytes that an op reads and writes, or those that its author declared."""
    declared = graph.ops[index].declared_bytes
    if declared is not None:
        return declared
    return region_bytes(graph, flow, flow.reads[index]) + region_bytes(graph, flow, flow.writes[index])


def graph_cost(graph: OpGraph, flow: Flow, index: int) -> OpCost | None:
    """Return the cost of an op of a graph; ``None`` for an op of another library without a declared cost."""
    op = graph.ops[index]
    known = op.flops is not None or op.declared_bytes is not None or op.pointwise or op.reduction
    if not known and not op.name.startswith(_LIMITED_BY_MEMORY):
        return None
    return OpCost(
        kind="product" if op.flops else "memory",
        flops=op.flops or 0,
        bytes=flow_bytes(graph, flow, index),
        dtype=op.declared_dtype or (graph.tensors[op.inputs[0]].dtype if op.inputs else ""),
    )


_LIMITED_BY_MEMORY = ("aten.", "prims.")
"""Namespaces whose ops without a formula only move data; an op of another library may compute anything."""


def is_elementwise(op: GraphOp) -> bool:
    """Whether each output element depends on one element of each input."""
    return op.pointwise and not op.view and not _stands_alone(op)


def _stands_alone(op: GraphOp) -> bool:
    name = base_name(op)
    return name.startswith(FUSED_ALREADY) and name not in ELEMENTWISE_NATIVE


class _Builder:
    """Assigns levels in execution order and merges parts at edges that fuse; then raises parts."""

    def __init__(self, graph: OpGraph, flow: Flow) -> None:
        self.graph = graph
        self.flow = flow
        self.kinds = _kinds(graph)
        self.level = [0] * len(graph.ops)
        self.part = [-1] * len(graph.ops)
        self.parts: dict[int, _Part] = {}
        self.followers: list[list[int]] = [[] for _ in graph.ops]
        """By op: later ops that must remain after it without reading from it."""
        for index, op in enumerate(graph.ops):
            if not op.view:
                self._place(index)

    def _place(self, index: int) -> None:
        edges = dict.fromkeys(producer for _, producer in self.flow.producers[index])
        joins = {producer for producer in edges if self.fuses(producer, index)}
        for before in self.flow.order[index]:
            if before not in edges:
                edges[before] = None
                self.followers[before].append(index)
        kind = self.kinds[index]
        while True:
            level = max((self.level[before] + (before not in joins) for before in edges), default=0)
            same = [before for before in joins if self.level[before] == level]
            if kind is None:
                break
            blank = _Part(ops=[index], level=level, domain=kind.domain, reduces=kind.reduces)
            failed = self._merge_all(blank, [(self.part[before], before) for before in same])
            if failed is None:
                break
            joins.discard(failed)
        self.level[index] = level
        if kind is not None:
            self._store(index, blank, {self.part[before] for before in same})

    def _merge_all(self, part: _Part, others: list[tuple[int, int]]) -> int | None:
        """Widen ``part`` by the parts that feed it; return the op whose part does not fit, or ``None``."""
        for other_id, producer in others:
            merged = self._merged(self.parts[other_id], producer, part)
            if merged is None:
                return producer
            part.domain, part.reduces = merged.domain, merged.reduces
        return None

    def _merged(self, upstream: _Part, producer: int, downstream: _Part) -> _Part | None:
        """Return the domain of two merged parts, or ``None``: one kernel has one iteration domain.

        A smaller part may broadcast into a larger one if it has no reduction; the result of a reduction may be
        processed after it.
        """
        if upstream.domain < downstream.domain and upstream.reduces:
            return None
        if upstream.domain > downstream.domain:
            shrunk = max(_elements(self.graph.tensors[t]) for t in self.flow.writes[producer]) < upstream.domain
            if downstream.reduces or not upstream.reduces or not shrunk:
                return None
        return replace(
            downstream,
            domain=max(upstream.domain, downstream.domain),
            reduces=upstream.reduces or downstream.reduces,
        )

    def _store(self, key: int, part: _Part, absorbed: set[int]) -> None:
        """Store a new or raised part under ``key`` and merge it with others of its level."""
        for op in part.ops:
            self.part[op], self.level[op] = key, part.level
        self.parts[key] = part
        for other in absorbed:
            key = self._unite(key, other)
        self.parts[key].domain, self.parts[key].reduces = part.domain, part.reduces

    def _unite(self, first: int, second: int) -> int:
        """Merge the smaller part into the larger, so that no op moves more than log(ops) times; return the key."""
        small, large = sorted((first, second), key=lambda key: len(self.parts[key].ops))
        moved = self.parts.pop(small).ops
        self.parts[large].ops.extend(moved)
        for op in moved:
            self.part[op] = large
        return large

    def fuses(self, producer: int, reader: int) -> bool:
        """Whether the two ops themselves allow one kernel."""
        first, second = self.kinds[producer], self.kinds[reader]
        if first is None or second is None or first.to_scalar:
            return False
        if (first.device, first.phase, first.segment) != (second.device, second.phase, second.segment):
            return False
        tensors = self.graph.tensors
        read = [tensors[tensor] for tensor, made_by in self.flow.producers[reader] if made_by == producer]
        made = {tensors[t].storage: tensors[t] for t in self.flow.writes[producer]}
        whole = all(t.bytes == made[t.storage].bytes and t.dtype == made[t.storage].dtype for t in read)
        in_order = all(
            before != producer or self._overwrites_only_what_it_reads(producer, reader)
            for before in self.flow.order[reader]
        )
        return whole and in_order

    def _overwrites_only_what_it_reads(self, before: int, index: int) -> bool:
        """Whether an in-place op overwrites only values of the op that made its input, not of another reader."""
        tensors = self.graph.tensors
        read_by_before = {tensors[tensor].storage for tensor in self.flow.reads[before]}
        made_by_before = {tensors[tensor].storage for tensor in self.flow.writes[before]}
        written = {tensors[tensor].storage for tensor in self.flow.writes[index]}
        return not (written & read_by_before) - made_by_before

    def raise_parts(self) -> None:
        """Raise parts to the level of their readers if that lets them merge, latest first."""
        for key in sorted(self.parts, key=lambda known: -self.parts[known].level):
            part = self.parts.get(key)
            if part is None:
                continue
            members = set(part.ops)
            feeds: dict[int, int] = {}
            ceiling: int | None = None
            reach: list[tuple[int, int, int]] = []
            for op in part.ops:
                for reader in self.flow.consumers[op]:
                    if reader not in members:
                        fused = self.fuses(op, reader)
                        reach.append((self.level[reader] - (not fused), op, reader if fused else -1))
                reach.extend((self.level[after] - 1, op, -1) for after in self.followers[op] if after not in members)
            ceiling = min((level for level, _, _ in reach), default=part.level)
            if ceiling <= part.level:
                continue
            feeds = {self.part[reader]: op for level, op, reader in reach if level == ceiling and reader >= 0}
            self._lift(key, part, ceiling, feeds)

    def _lift(self, key: int, part: _Part, level: int, feeds: dict[int, int]) -> None:
        """Merge ``part`` with the parts it feeds on ``level``, if all of them fit."""
        whole = part
        for other_id, producer in feeds.items():
            merged = self._merged(whole, producer, self.parts[other_id])
            if merged is None:
                return
            whole = replace(part, domain=merged.domain, reduces=merged.reduces)
        if feeds:
            self._store(key, replace(whole, level=level, ops=list(part.ops)), set(feeds))


def _kinds(graph: OpGraph) -> list[_Kind | None]:
    """Return the fusion properties of each op; ``None`` for ops that never fuse.

    A host read ends a segment, and so does a backward pass: the next micro-batch is another call.
    """
    kinds: list[_Kind | None] = []
    segment, went_back = 0, False
    made: set[int] = set()
    for op in graph.ops:
        repeats_forward = op.phase == "forward" and went_back
        begins_backward = op.phase == "backward" and not went_back
        segment += op.host_read is not None or repeats_forward
        went_back = op.phase == "backward" or (went_back and not repeats_forward)
        made = set() if begins_backward else made
        older = _storages(graph, op.mutated) - made
        made |= _storages(graph, op.outputs) - older
        # the engine adds to `.grad`, and DistributedDataParallel scales into its buckets: no compiler fuses either
        collects = op.phase == "backward" and not op.recompute and bool(older)
        kinds.append(None if collects else _kind(graph, op, segment))
    return kinds


def _storages(graph: OpGraph, tensors: tuple[int, ...]) -> set[int]:
    return {graph.tensors[tensor].storage for tensor in tensors}


def _kind(graph: OpGraph, op: GraphOp, segment: int) -> _Kind | None:
    reduces = op.reduction and not op.view and not _stands_alone(op)
    if not (is_elementwise(op) or reduces) or op.host_read is not None or not op.outputs:
        return None
    inputs = [graph.tensors[tensor] for tensor in op.inputs]
    outputs = [graph.tensors[tensor] for tensor in op.outputs]
    devices = {tensor.device for tensor in (*inputs, *outputs) if tensor.shape}
    if len(devices) > 1:
        return None
    out = max(map(_elements, outputs))
    domain = max(out, *map(_elements, inputs)) if reduces and inputs else out
    return _Kind(
        domain=domain,
        reduces=reduces,
        to_scalar=reduces and out == 1 < domain,
        device=outputs[0].device,
        phase=op.phase,
        segment=segment,
    )


def _elements(tensor: GraphTensor) -> int:
    return math.prod(tensor.shape)


# Chains of elementwise kernels that appear fusable, from a bare trace with shapes.
#
# Consecutive elementwise kernels on one stream form a chain if the shape and dtype of one result are those of an input
# of the next. Such a trace has no dataflow, so this is an estimate. Compared with the exact op graph of attention, MoE
# and SSM training steps it had precision 0.93 and recall 0.97 in the forward pass, 0.24 and 1.0 in the backward, 0.67
# and 1.0 in the optimizer; only forward chains are reported.


@lru_cache(maxsize=65536)
def is_elementwise_kernel(name: str) -> bool:
    """Whether it is a generic elementwise kernel of PyTorch, by its name."""
    return _ELEMENTWISE_KERNEL.search(name) is not None


class KernelChain(Struct, frozen=True, kw_only=True):
    """At least two kernels that appear to be one elementwise expression."""

    kernels: tuple[int, ...]
    """Rows of ``kernels``, in order."""
    ops: tuple[int, ...]
    """Rows of ``slices``: the op of each kernel."""
    names: tuple[str, ...]
    duration_ns: int
    eager_bytes: int
    fused_bytes: int
    """Bytes if the value of every link stays on chip: a lower bound, because other readers of it are unknown. Links
    between two copies within one dtype do not count: those are layouts of different tensors.
    """

    @property
    def saved_ns(self) -> int:
        """Time of the saved bytes, at the bandwidth that the kernels reached."""
        share = 1 - self.fused_bytes / self.eager_bytes if self.eager_bytes else 0.0
        return round(self.duration_ns * share)


def _outside_forward(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``slices`` inside an autograd node, an optimizer's step, or a graph that inductor compiled.

    Inductor has already fused its graphs where possible.
    """
    marked = named_slices(trace, lambda name: name.startswith((EVALUATE, "Optimizer.", GRAPH_CALL)))
    return np.asarray(nearest_ancestor(trace, np.arange(len(marked)), marked) != MISSING)


def forward_chains(trace: Trace) -> tuple[KernelChain, ...]:
    """Return the chains of the forward pass, in order of time. Requires kernels linked to ops, and shapes."""
    kernels, slices = trace.rows["kernels"], trace.rows["slices"]
    forward = ~_outside_forward(trace) & (slices["kind"] == SliceKind.OP)
    codes, name = numbered(kernels["name"])
    elementwise = np.array([is_elementwise_kernel(trace.text(code)) for code in codes.tolist()], bool)
    order = np.lexsort((kernels["start_ns"], kernels["stream"], kernels["device"]))
    op, device, stream = (kernels[column][order] for column in ("op", "device", "stream"))
    fits = (op != MISSING) & elementwise[name[order]]
    fits[fits] = forward[op[fits]]
    follows = fits.copy()
    follows[:1] = False
    follows[1:] &= fits[:-1] & (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    finished: list[list[int]] = []
    chain: list[int] = []
    made: Operand | None = None
    columns = (order[fits], op[fits], follows[fits])
    for kernel, reader, after in zip(*(column.tolist() for column in columns), strict=True):
        reads, result = _signature(trace, reader)
        if not after or made is None or made not in reads:
            finished.append(chain)
            chain = []
        if result is not None:
            chain.append(kernel)
        made = result
    finished.append(chain)
    chains = [_chain(trace, found) for found in finished if len(found) > 1]
    return tuple(sorted(chains, key=lambda chain: int(kernels["start_ns"][chain.kernels[0]])))


def _chain(trace: Trace, chain: list[int]) -> KernelChain:
    kernels = trace.rows["kernels"]
    ops = [int(kernels["op"][kernel]) for kernel in chain]
    names = tuple(slice_name(trace, op).rpartition("::")[2] for op in ops)
    eager = linked = 0
    copied, before = False, 0
    for position, op in enumerate(ops):
        reads, result = _signature(trace, op)
        made = result.bytes if result is not None else 0
        eager += sum(tensor.bytes for tensor in dict.fromkeys(reads)) + made
        copies = names[position] == "copy_" and [tensor.dtype for tensor in reads] == [result.dtype if result else ""]
        if position and not (copies and copied):
            linked += before
        copied, before = copies, made
    return KernelChain(
        kernels=tuple(chain),
        ops=tuple(ops),
        names=names,
        duration_ns=int((kernels["end_ns"][chain] - kernels["start_ns"][chain]).sum()),
        eager_bytes=eager,
        fused_bytes=max(0, eager - 2 * linked),
    )


def _signature(trace: Trace, op: int) -> tuple[tuple[Operand, ...], Operand | None]:
    """Return (tensors read, tensor made) of an elementwise op; None if its shapes are unknown."""
    tensors = input_tensors(trace, op)
    name = slice_name(trace, op).rpartition("::")[2]
    if not tensors:
        return (), None
    if name == "copy_":
        return tensors[1:], tensors[0]
    if name.endswith("_"):
        return tensors, tensors[0]
    return tensors, elementwise_result(name, tensors)


# Why inductor's scheduler did not fuse two neighbours, in plain words.
#
# Reasons of torch 2.13 (``torch/_inductor/scheduler.py`` and ``codegen/simd.py``, which call ``WhyNoFuse``).


class FusionReason(Struct, frozen=True, kw_only=True):
    """Meaning of a reason. ``fix``: an imperative sentence that makes them fuse."""

    meaning: str
    fix: str | None = None


def fusion_reason(reason: str) -> FusionReason:
    """Return the meaning of ``reason``; an unknown reason is quoted."""
    for part, meaning, fix in _REASONS:
        if re.search(part, reason):
            return FusionReason(meaning=meaning, fix=fix)
    return FusionReason(meaning=f'inductor gives "{reason}"')


def chain_text(names: tuple[str, ...]) -> str:
    """Return ``add -> mul -> silu``: names in order, without repeats, truncated with ``...``."""
    shown: list[str] = []
    for name in names:
        if name not in shown or len(names) <= LONGEST_CHAIN:
            shown.append(name)
    return " -> ".join((*shown[:LONGEST_CHAIN], "...") if len(shown) > LONGEST_CHAIN else shown)
