"""The step of a PyTorch program as values with a lifetime, from the op graph and the times of its ops.

A step recorded with checkpointing is converted back to one without: a backward read of a recomputed value becomes a
read of the forward's value, and repeated work is left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.ops import OpTimes, graph_time, op_times
from perfscope.model.finding import AbstainError
from perfscope.model.live_bytes import Int64, peak
from perfscope.model.memory import ALLOCATION_ROUNDING, MemoryTimeline
from perfscope.model.op_graph import GraphOp, GraphStorage, OpGraph, storage_devices
from perfscope.model.trace import MISSING, Trace
from perfscope.plugins.memory_advice.models import NO_GRAPH
from perfscope.plugins.memory_advice.simulate import KEPT_KINDS
from perfscope.plugins.memory_advice.step_model import KEPT_PRODUCTS, Policy, Region, StepModel, Value, ValueKind
from perfscope.plugins.memory_advice.torch_regions import Call, StepJoins, held_of, module_calls, timeline_of

# Scratch memory that graph ops allocate and free: for convolutions, products and sorts.
#
# The op graph has the results of ops; allocator events have all blocks. The scratch memory of an op is the blocks that
# were allocated and freed within its span.

RANDOM_STATE_BYTES = 5_056
"""State of torch's generator on the CPU (a Mersenne twister), of which every checkpointed call of a CPU program keeps a
copy (``preserve_rng_state``). That of a GPU's generator is 16 bytes in host memory."""

HELD_LONGER = 2
"""Ops of other nodes that may run between the last read of a saved value and its end. Autograd frees it with the node
that read it; a value that lives longer is held by the program, and checkpointing would not free it."""

_RANDOM = re.compile(r"aten\.(?:bernoulli|rand|randn|randint|normal|uniform|native_dropout|randperm)\w*\b")


def workspaces(trace: Trace, graph: OpGraph, timeline: MemoryTimeline | None) -> dict[int, int]:
    """By op of the graph the most bytes of scratch it held at once; empty without allocator events.

    The allocator may have been recorded in another pass of the same program than the times (`Trace.detail`); the graph
    is then matched to that pass.
    """
    if timeline is None or timeline.axis != "ns":
        return {}
    watched = timeline.of(trace)
    shadow = Trace(
        source=watched.source,
        strings=watched.strings,
        rows=watched.rows,
        recorded=watched.recorded,
        op_graph=graph,
    )
    sizes: dict[int, int] = defaultdict(int)
    slices = watched.rows["slices"]
    for spans in shadow.fact(graph_time).spans:
        placed = np.flatnonzero(spans != MISSING)
        rows = spans[placed]
        order = np.argsort(slices["start_ns"][rows], kind="stable")
        placed, rows = placed[order], rows[order]
        for op, size in _within(timeline, slices["start_ns"][rows], slices["end_ns"][rows]).items():
            sizes[int(placed[op])] = max(sizes[int(placed[op])], size)
    return dict(sizes)


def _within(timeline: MemoryTimeline, starts: Int64, ends: Int64) -> dict[int, int]:
    """By span (index in the sorted ``starts``) the most bytes of blocks that began and ended within it."""
    blocks = timeline.blocks
    chosen = np.flatnonzero(~blocks["before"] & ~blocks["after"])
    first, last, size = (blocks[name][chosen] for name in ("start", "end", "bytes"))
    span = np.searchsorted(starts, first, side="right") - 1
    inside = span >= 0
    inside[inside] &= last[inside] <= ends[span[inside]]
    first, last, size, span = first[inside], last[inside], size[inside], span[inside]
    return {
        index: peak(first[span == index], last[span == index], size[span == index])[1]
        for index in np.unique(span).tolist()
    }


def kind_of(op: GraphOp) -> ValueKind:
    """Kind of an op's result."""
    if op.view:
        return "view"
    if short_name(op) in KEPT_PRODUCTS:
        return "product"
    if "attention" in short_name(op):
        return "attention"
    return "random" if _RANDOM.match(op.name) else "other"


def torch_step_model(trace: Trace) -> StepModel:
    """The model of the recorded step. ``AbstainError`` states what was not recorded."""
    graph = trace.op_graph
    if graph is None:
        raise AbstainError(trace.why_no_step or NO_GRAPH, ("op_graph",))
    if graph.storages is None:
        raise AbstainError("the op graph is from an older recording without times of frees: record again")
    if graph.truncated:
        raise AbstainError("the op graph is cut at its op limit: the backward is not in it")
    if any(storage.born is not None and storage.born >= len(graph.ops) for storage in graph.storages):
        raise AbstainError("the op graph is damaged: it names an op that is not in it")
    if not any(op.phase == "backward" for op in graph.ops):
        raise AbstainError("the recorded step has no backward pass: nothing is kept for one")
    times = trace.fact(op_times)
    step = _Step(graph, _as_handed_out(graph, graph.storages), module_calls(graph))
    values = step.values(times)
    values += step.scratch(workspaces(trace, graph, timeline_of(trace, graph)))
    surroundings = held_of(trace, dataclasses.replace(graph, storages=step.storages), step.gradients)
    notes = [*surroundings.notes, *([times.note] if times.note else [])]
    if step.again.unmatched:
        notes.append(f"{step.again.unmatched:,} ops repeated in the backward match no op of a known module")
    return replace(
        surroundings,
        values=tuple(values),
        regions=tuple(step.regions()),
        length=step.at[len(graph.ops)],
        step_ns=times.step_ns,
        basis=times.basis,
        notes=tuple(notes),
    )


def _as_handed_out(graph: OpGraph, storages: tuple[GraphStorage, ...]) -> tuple[GraphStorage, ...]:
    """Storages with the bytes that an allocator hands out for them: CUDA's rounds up, the CPU's does not."""
    if graph.device != "cuda":
        return storages
    return tuple(
        dataclasses.replace(storage, bytes=-(-storage.bytes // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING)
        for storage in storages
    )


class _Step(StepJoins):
    """Computes values and regions of one graph."""

    def values(self, times: OpTimes) -> list[Value]:
        """Values in the order they are made."""
        devices = storage_devices(self.graph)
        by_op: dict[int, list[int]] = defaultdict(list)
        values: list[Value] = []
        made_again: dict[int, list[int]] = defaultdict(list)
        for copy, first in self.again.of_storage.items():
            made_again[first].append(copy)
        for index, storage in enumerate(self.storages):
            if devices.get(index) != self.graph.device:
                continue
            if storage.born is None:
                if storage.died is not None:  # left over from the previous step
                    values.append(self._plain(index, 0))
            elif index not in self.again.of_storage and not self._of_repeat(index):
                by_op[storage.born].append(index)
        for op in self.graph.ops:
            if op.recompute:
                continue
            cost = round(float(times.ns[op.index]))
            if not by_op[op.index] and not op.view and op.phase == "forward":
                values.append(self._without_bytes(op, cost))
            for index in by_op[op.index]:
                values.append(self._value(index, op, cost, made_again[index]))
                cost = 0
        values.extend(self._reads_of_inputs())
        return values

    def scratch(self, sizes: Mapping[int, int]) -> list[Value]:
        """Memory held by running ops; a repeated forward op holds it again."""
        values = []
        for index, size in sizes.items():
            op, position = self.graph.ops[index], self.at[index]
            if not op.recompute:
                region = self.call_of_op.get(index) if op.phase == "forward" else None
                values.append(replace(_marker(position, region, 0, frozenset(), "other"), bytes=size))
        return values

    def regions(self) -> list[Region]:
        """The regions, in the order of the calls."""
        return [self._region(index, call) for index, call in enumerate(self.calls)]

    def _region(self, index: int, call: Call) -> Region:
        graph = self.graph
        ops = graph.ops[call.first : call.last]
        own = {graph.tensors[index].storage for op in ops for index in op.outputs}
        read = {graph.tensors[index].storage for op in ops for index in op.inputs} - own
        parameters = read & graph.parameters
        again = self.again.by_call.get(index, frozenset())
        limit = max(again, default=-1)
        costly = [op.index for op in ops if kind_of(op) in KEPT_KINDS and op.index <= limit]
        today: Policy = "keep" if not again else "full" if again.issuperset(costly) else "selective"
        random_state = RANDOM_STATE_BYTES if graph.device == "cpu" else 0
        first, last = self.backward.get(index, (0, 0))
        return Region(
            name=call.module,
            group=call.group,
            forward=(self.at[call.first], self.at[call.last]),
            backward=(self.at[first], self.at[last]),
            input_bytes=random_state
            + sum(self.storages[storage].bytes for storage in read - parameters if self._dies(storage)),
            today=today,
            parameter_bytes=sum(self.storages[storage].bytes for storage in parameters),
        )

    def _dies(self, storage: int) -> bool:
        """True for an input of a region that nothing else is sure to keep until the region's backward."""
        made = self.storages[storage]
        if made.born is None or self.graph.ops[made.born].phase not in ("forward", "other"):
            return False
        needed = self._needed_by(storage)
        return not needed or needed == {self.call_of_op.get(made.born)}

    def _value(self, index: int, op: GraphOp, cost: int, copies: Sequence[int]) -> Value:
        storage = self.storages[index]
        if op.phase != "forward" or index in self.gradients:
            return self._plain(index, cost)
        needed = self._needed_by(index)
        readers = self.readers[index]
        for copy in copies:
            needed |= self._needed_by(copy)
        birth = op.index
        died = len(self.graph.ops) if storage.died is None else storage.died
        reads = max(readers.last_forward, birth)
        last_use, death = reads, died
        ends = [self.node_end[self.readers[copy].last_backward] for copy in (index, *copies) if self.is_read(copy)]
        # checkpointing shortens the life of values kept for the backward: only the forward's part is recorded
        if copies and ends:
            last_use, death = max(reads, died - 1) if died <= ends[0] else reads, max(*ends, died)
        elif ends:
            if self.work_between(max(ends), died) > HELD_LONGER:
                needed = needed | {None}
        elif readers.last_again >= 0 or self._kept_selectively(op):
            death = reads + 1  # held by a checkpoint, not needed by the backward
        return Value(
            bytes=storage.bytes,
            birth=self.at[birth],
            death=max(self.at[death], self.at[birth] + 1),
            last_forward_use=self.at[last_use],
            kind=kind_of(op),
            region=self.call_of_op.get(op.index),
            needed_by=frozenset(needed),
            cost_ns=cost,
        )

    def _plain(self, index: int, cost: int) -> Value:
        """A value independent of policies: of the backward, the optimizer, or outside of both."""
        storage = self.storages[index]
        birth = self.at[(storage.born or 0) + (index in self.taken_over)]
        death = self.at[len(self.graph.ops) if storage.died is None else storage.died]
        return Value(
            bytes=storage.bytes,
            birth=birth,
            death=max(death, birth),
            last_forward_use=birth,
            kind="other",
            region=None,
            needed_by=frozenset(),
            cost_ns=cost,
            gradient=index in self.gradients,
        )

    def _without_bytes(self, op: GraphOp, cost: int) -> Value:
        """An op that writes in place, or whose result reuses memory: it takes time but no memory."""
        position = self.at[op.index]
        region = self.call_of_op.get(op.index)
        return _marker(position, region, cost, frozenset(), kind_of(op))

    def _reads_of_inputs(self) -> list[Value]:
        """One value of 0 bytes per region, because it must run up to the last op that saves any value."""
        last: dict[int, int] = {}
        saving = {op.sequence for op in self.graph.ops if self.reads_saved(op)}
        for index, call in enumerate(self.calls):
            for op in self.graph.ops[call.first : call.last]:
                if not op.view and op.sequence is not None and op.sequence in saving:
                    last[index] = op.index
        return [
            _marker(self.at[op - 1], index, 0, frozenset({index}), "view")
            for index, op in last.items()
            if op > self.calls[index].first and index in self.backward
        ]

    def _needed_by(self, index: int) -> set[int | None]:
        return set(self.readers[index].regions)

    def _kept_selectively(self, op: GraphOp) -> bool:
        """True for a costly op that did not run again although its region did."""
        index = self.call_of_op.get(op.index, -1)
        again = self.again.by_call.get(index, frozenset())
        return bool(again) and op.index not in again and kind_of(op) in KEPT_KINDS

    def _of_repeat(self, index: int) -> bool:
        """True for additional results of repeated ops, which are freed with them."""
        born = self.storages[index].born
        return born is not None and self.graph.ops[born].recompute and not self.is_read(index)


def _marker(position: int, region: int | None, cost: int, needed: frozenset[int | None], kind: ValueKind) -> Value:
    return Value(
        bytes=0,
        birth=position,
        death=position + 1,
        last_forward_use=position,
        kind=kind,
        region=region,
        needed_by=needed,
        cost_ns=cost,
    )
