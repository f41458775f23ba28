"""Modules of a PyTorch step that could be checkpointed as a whole: repeated blocks, and single large modules.

A block is a member of a ``ModuleList`` or ``Sequential``: a number in its qualified name. Blocks in one container that
run the same ops are copies of one layer. With nested containers (stages of blocks) the level is used at which
checkpointing everything would leave least memory: the inputs of all blocks, and the largest block.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.memory import memory_timelines
from perfscope.model.memory import MemoryTimeline
from perfscope.model.op_graph import GraphOp, GraphStorage, OpGraph, storage_devices, taken_over
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory
from perfscope.plugins.memory_advice.step_model import StepModel

SINGLE_SHARE = 0.05
"""Least share of the forward's values for a module that is not a repeated block to be a region. Checkpointing smaller
ones would change nothing visible."""

_SHARDED = re.compile(r"all_?gather|reduce_scatter")
"""Collectives that FSDP runs and plain data parallelism does not."""

_NUMBERED = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Call(Struct, frozen=True, kw_only=True):
    """One forward pass of a module."""

    module: str
    group: str
    """For copies of one layer: the container with ``*`` for the number."""
    first: int
    last: int
    """Index after its last op; ``first`` is its first. No ops of other modules are between."""


def module_calls(graph: OpGraph) -> tuple[Call, ...]:
    """The calls of the modules that are regions, in the order they run; a module that is called twice occurs twice.

    Calls do not overlap. A module whose ops alternate with ops of other modules has a call for each piece.
    """
    forward = [op for op in graph.ops if op.phase == "forward" and not op.recompute]
    made = {op.index: _made_bytes(graph, op) for op in forward}
    deepest = max((len(_NUMBERED.findall(op.module)) for op in forward), default=0)
    best: tuple[Call, ...] = ()
    least: float = float("inf")
    for level in range(1, deepest + 1):
        calls = _blocks(forward, level)
        if not calls:
            continue
        needed = _left_over(graph, calls, made)
        if needed < least:
            best, least = calls, needed
    return tuple(sorted((*best, *_singles(forward, best, made)), key=lambda call: call.first))


def inside(module: str, region: str) -> bool:
    """True if a module is another one or a part of it."""
    return module == region or module.startswith(region + ".")


def _made_bytes(graph: OpGraph, op: GraphOp) -> int:
    if op.view:
        return 0
    own = {graph.tensors[index].storage for index in op.inputs}
    return sum(graph.tensors[index].bytes for index in op.outputs if graph.tensors[index].storage not in own)


def _blocks(forward: Sequence[GraphOp], level: int) -> tuple[Call, ...]:
    """Calls of the modules whose name ends with its ``level``-th number, if there are copies among them."""
    pieces = _pieces(forward, {op.index: _prefix(op.module, level) for op in forward})
    signatures: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    keys = []
    for module, ops in pieces:
        container = module.rpartition(".")[0]
        key = (container, tuple(op.name for op in ops if not op.view))
        signatures[key].add(module)
        keys.append(key)
    repeated = [key for key, modules in signatures.items() if len(modules) > 1 and key[1]]
    kinds: dict[str, int] = defaultdict(int)
    names = {}
    for key in repeated:
        kinds[key[0]] += 1
        order = "" if kinds[key[0]] == 1 else f" (kind {kinds[key[0]]})"
        names[key] = f"{key[0]}.*{order}"
    return tuple(
        Call(module=module, group=names[key], first=ops[0].index, last=ops[-1].index + 1)
        for (module, ops), key in zip(pieces, keys, strict=True)
        if key in names
    )


def _pieces(forward: Sequence[GraphOp], region: Mapping[int, str | None]) -> list[tuple[str, list[GraphOp]]]:
    """Runs of consecutive forward ops of one region, in order."""
    pieces: list[tuple[str, list[GraphOp]]] = []
    current: str | None = None
    for op in forward:
        name = region[op.index]
        if name is not None and name == current:
            pieces[-1][1].append(op)
        elif name is not None:
            pieces.append((name, [op]))
        current = name
    return pieces


def _prefix(module: str, level: int) -> str | None:
    numbers = list(_NUMBERED.finditer(module))
    return module[: numbers[level - 1].end()] if len(numbers) >= level else None


def _left_over(graph: OpGraph, calls: Sequence[Call], made: Mapping[int, int]) -> int:
    """Bytes held if all the calls were checkpointed: values of others, the calls' inputs, the largest call."""
    inputs, largest, within = 0, 0, 0
    for call in calls:
        ops = graph.ops[call.first : call.last]
        own = {graph.tensors[index].storage for op in ops for index in op.outputs}
        read = {graph.tensors[index].storage: graph.tensors[index].bytes for op in ops for index in op.inputs}
        inputs += sum(size for storage, size in read.items() if storage not in own and storage not in graph.parameters)
        size = sum(made.get(op.index, 0) for op in ops)
        largest, within = max(largest, size), within + size
    return sum(made.values()) - within + inputs + largest


def _singles(forward: Sequence[GraphOp], blocks: Sequence[Call], made: Mapping[int, int]) -> list[Call]:
    """Outermost modules outside of the blocks that alone make ``SINGLE_SHARE`` of all values."""
    taken = {index for call in blocks for index in range(call.first, call.last)}
    above = {prefix for call in blocks for prefix in _prefixes(call.module)}
    roots = {op.module.partition(".")[0] for op in forward if op.module}
    free = [op for op in forward if op.index not in taken]
    outermost = {
        op.index: next((prefix for prefix in _prefixes(op.module) if prefix not in above and prefix not in roots), None)
        for op in free
    }
    whole = sum(made.values())
    return [
        Call(module=module, group=module, first=ops[0].index, last=ops[-1].index + 1)
        for module, ops in _pieces(forward, {op.index: outermost.get(op.index) for op in forward})
        if sum(made[op.index] for op in ops) >= SINGLE_SHARE * whole and sum(not op.view for op in ops) > 1
    ]


def _prefixes(module: str) -> list[str]:
    """All prefixes of a qualified name, shortest first, itself last."""
    parts = module.split(".") if module else []
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


# Ops of a recorded step that checkpointing repeats, with the forward op of each.


class Repeats(Struct, frozen=True, kw_only=True):
    """The repetition by checkpointing in the recorded step."""

    of_op: Mapping[int, int]
    """Index of a repeated op -> forward op that it repeats."""
    of_storage: Mapping[int, int]
    """Storage that was made again -> storage of the forward."""
    by_call: Mapping[int, frozenset[int]]
    """Index of a call -> its forward ops that run again, without views."""
    unmatched: int
    """Repeated ops that match no op of a region, without views and copies of the random state."""


def repeats(graph: OpGraph, calls: Sequence[Call]) -> Repeats:
    """Match the repeated ops with the forward ops of their calls.

    A repeated op matches the op with the same name, module and shapes and the same inputs, recomputed or not; without
    equal inputs, the next one in order.
    """
    of_op: dict[int, int] = {}
    of_storage: dict[int, int] = {}
    by_call: dict[int, set[int]] = defaultdict(set)
    done: set[int] = set()
    unmatched = 0
    for stretch in _stretches(graph):
        index = _call_of(stretch, calls, done)
        if index is None:
            unmatched += sum(not op.view for op in stretch)
            continue
        done.add(index)
        waiting: dict[tuple[str, str], list[GraphOp]] = defaultdict(list)
        for op in graph.ops[calls[index].first : calls[index].last]:
            if not op.view:
                waiting[op.name, op.module].append(op)
        for op in stretch:
            if op.view:
                continue
            candidates = waiting[op.name, op.module]
            repeated = _repeated(graph, op, candidates, of_storage)
            if repeated is None:
                unmatched += 1
                continue
            candidates.remove(repeated)
            of_op[op.index] = repeated.index
            by_call[index].add(repeated.index)
            for made, first in zip(op.outputs, repeated.outputs, strict=True):
                if graph.tensors[made].storage != graph.tensors[first].storage:
                    of_storage[graph.tensors[made].storage] = graph.tensors[first].storage
    return Repeats(
        of_op=of_op,
        of_storage=of_storage,
        by_call={index: frozenset(ops) for index, ops in by_call.items()},
        unmatched=unmatched,
    )


def _stretches(graph: OpGraph) -> list[list[GraphOp]]:
    """Runs of consecutive repeated ops: one repetition of a checkpoint, or several in a row."""
    stretches: list[list[GraphOp]] = []
    going = False
    for op in graph.ops:
        if op.recompute:
            if not going:
                stretches.append([])
            stretches[-1].append(op)
            going = True
        elif not op.view:
            going = False
    return stretches


def _call_of(stretch: Sequence[GraphOp], calls: Sequence[Call], done: set[int]) -> int | None:
    """The last call before the ops of the module that most of them belong to, and that was not repeated yet."""
    count: dict[int, int] = defaultdict(int)
    for index, call in enumerate(calls):
        if call.last <= stretch[0].index and index not in done:
            count[index] = sum(inside(op.module, call.module) for op in stretch)
    most = max(count.values(), default=0)
    return max((index for index, ops in count.items() if ops == most), default=None) if most else None


def _repeated(graph: OpGraph, op: GraphOp, waiting: Sequence[GraphOp], again: Mapping[int, int]) -> GraphOp | None:
    """The op of the same shapes and inputs among ``waiting``, else the first with the same shapes."""
    alike = [graph_op for graph_op in waiting if _shapes(graph, graph_op) == _shapes(graph, op)]
    read = [again.get(graph.tensors[index].storage, graph.tensors[index].storage) for index in op.inputs]
    same = (graph_op for graph_op in alike if [graph.tensors[index].storage for index in graph_op.inputs] == read)
    return next(same, alike[0] if alike else None)


def _shapes(graph: OpGraph, op: GraphOp) -> list[tuple[int, ...]]:
    return [graph.tensors[index].shape for index in op.outputs]


# Relations in the op graph of a PyTorch step: calls of modules, their backward, readers of storages.


class Readers(Struct):
    """Readers of a storage: regions whose backward reads it, and the ops."""

    regions: set[int | None] = field(default_factory=set)
    last_forward: int = -1
    last_backward: int = -1
    last_again: int = -1
    """Last of the repeated ops, as the forward op that it repeats."""


class StepJoins:
    """Joins of one graph, computed once."""

    def __init__(self, graph: OpGraph, storages: tuple[GraphStorage, ...], calls: Sequence[Call]) -> None:
        self.graph, self.storages, self.calls = graph, storages, calls
        self.again: Repeats = repeats(graph, calls)
        # Positions leave out repeated ops.
        kept = np.array([not op.recompute for op in graph.ops], np.int64)
        self.at: list[int] = [0, *np.cumsum(kept).tolist()]
        self.call_of_op = self._calls_of_ops()
        self.node_end = self._node_ends()
        self.backward = self._backward_intervals()
        self.readers = self._all_readers()
        self.taken_over = taken_over(graph, storages)
        self.gradients = self._gradients()
        # Counts ops with work, to measure how long a storage outlives a moment.
        self.work = np.concatenate(([0], np.cumsum([not op.view and not op.recompute for op in graph.ops])))

    def reads_saved(self, op: GraphOp) -> bool:
        """True for a backward op that reads a value of the forward or the program."""
        if op.phase != "backward" or op.recompute or op.view:
            return False
        return any(self._is_saved(self.graph.tensors[index].storage) for index in op.inputs)

    def is_read(self, index: int) -> bool:
        """True if the backward reads a storage."""
        return self.readers[index].last_backward >= 0

    def work_between(self, first: int, last: int) -> int:
        """Ops with work between two of them."""
        return int(self.work[max(first, last)] - self.work[first])

    def _is_saved(self, storage: int) -> bool:
        born = self.storages[storage].born
        if born is None:
            return True
        made = self.graph.ops[born]
        return made.phase in ("forward", "other") or made.recompute

    def _calls_of_ops(self) -> dict[int, int]:
        """By op (forward, repeated, backward) its call."""
        calls_of_ops: dict[int, int] = {}
        by_sequence: dict[int, int] = {}
        for index, call in enumerate(self.calls):
            for op in self.graph.ops[call.first : call.last]:
                if op.phase == "forward":
                    calls_of_ops[op.index] = index
                    if op.sequence is not None:
                        by_sequence[op.sequence] = index
        for again, first in self.again.of_op.items():
            if first in calls_of_ops:
                calls_of_ops[again] = calls_of_ops[first]
        for op in self.graph.ops:
            if op.recompute and op.index in calls_of_ops and op.sequence is not None:
                by_sequence.setdefault(op.sequence, calls_of_ops[op.index])
        sequences = sorted(by_sequence)
        for op in self.graph.ops:
            if op.phase == "backward" and not op.recompute and op.sequence is not None:
                of_backward = self._call_of_backward(op, by_sequence, sequences)
                if of_backward is not None:
                    calls_of_ops[op.index] = of_backward
        return calls_of_ops

    def _call_of_backward(self, op: GraphOp, by_sequence: dict[int, int], sequences: list[int]) -> int | None:
        """The call by sequence number; for a number that no op of the graph has, by module and the nearest number."""
        number = op.sequence or 0
        if number in by_sequence:
            return by_sequence[number]
        near = bisect_left(sequences, number)
        for near_number in sequences[max(0, near - 1) : near + 1]:
            if inside(op.module, self.calls[by_sequence[near_number]].module):
                return by_sequence[near_number]
        return None

    def _node_ends(self) -> list[int]:
        """By op: index after the last op of its autograd node."""
        ends = list(range(1, len(self.graph.ops) + 1))
        for index in range(len(self.graph.ops) - 2, -1, -1):
            here, after = self.graph.ops[index], self.graph.ops[index + 1]
            if here.phase == after.phase == "backward" and here.sequence == after.sequence is not None:
                ends[index] = ends[index + 1]
        return ends

    def _backward_intervals(self) -> dict[int, tuple[int, int]]:
        """By call: from the first node of its backward that reads a saved value to its last op."""
        intervals: dict[int, tuple[int, int]] = {}
        for op in self.graph.ops:
            index = self.call_of_op.get(op.index)
            if index is None or op.phase != "backward" or op.recompute or op.view:
                continue
            if index not in intervals and not self.reads_saved(op):
                continue
            intervals[index] = (intervals.get(index, (op.index, 0))[0], op.index + 1)
        return {index: (self._node_start(first), last) for index, (first, last) in intervals.items()}

    def _node_start(self, index: int) -> int:
        """The first op of the node that runs op ``index``, unless other ops ran between."""
        sequence = self.graph.ops[index].sequence
        while index and sequence is not None:
            before = self.graph.ops[index - 1]
            if before.phase != "backward" or before.recompute or before.sequence != sequence:
                break
            index -= 1
        return index

    def _all_readers(self) -> dict[int, Readers]:
        readers_of: dict[int, Readers] = defaultdict(Readers)
        for op in self.graph.ops:
            for index in op.inputs:
                readers = readers_of[self.graph.tensors[index].storage]
                if op.recompute:
                    if not op.view:
                        readers.last_again = op.index
                elif op.phase == "backward":
                    if not op.view:
                        readers.regions.add(self.call_of_op.get(op.index))
                        readers.last_backward = op.index
                elif op.phase in ("forward", "other"):
                    readers.last_forward = op.index
        return readers_of

    def _gradients(self) -> frozenset[int]:
        """Storages made in the backward that the optimizer reads or that outlive the step."""
        read = {
            self.graph.tensors[index].storage for op in self.graph.ops if op.phase == "optimizer" for index in op.inputs
        }
        return frozenset(
            index
            for index, storage in enumerate(self.storages)
            if storage.born is not None
            and self.graph.ops[storage.born].phase == "backward"
            and not self.graph.ops[storage.born].recompute
            and (index in read or storage.died is None)
        )


# Memory of a PyTorch program during the whole step besides the step's own values, and the allocator's measurements.


def held_of(trace: Trace, graph: OpGraph, gradients: Collection[int]) -> StepModel:
    """The step without values and regions: from the program's list of tensors, else from the tensors its ops touch.

    ``gradients``: storages that the step makes for gradients.
    """
    timeline = timeline_of(trace, graph)
    listed = _listed(trace, graph)
    parameters, gradient, optimizer, kept_gradient = listed or _touched(graph)
    other = 0
    if timeline is not None:
        others, known = _before(timeline)
        other = others + known - parameters - optimizer - (0 if listed else gradient)
    devices = trace.rows["devices"]
    names = [trace.text(int(code)) for code in devices["name"]]
    sizes = [int(size) for size in devices["memory_bytes"] if size > 0]
    on_host = graph.device == "cpu"
    not_listed = "the program's tensors were not listed: parameters and optimizer state are taken from the ops' tensors"
    made = sum(graph.storages[index].bytes for index in gradients) if graph.storages else 0
    return StepModel(
        label=timeline.label if timeline is not None else graph.device,
        values=(),
        regions=(),
        length=0,
        parameter_bytes=parameters,
        gradient_bytes=max(made, kept_gradient),
        optimizer_bytes=optimizer,
        other_bytes=max(0, other),
        gradients_in_values=bool(made),
        step_ns=None,
        basis="measured",
        capacity_bytes=None if on_host else (timeline and timeline.capacity_bytes) or min(sizes, default=None),
        notes=() if listed else (not_listed,),
        device_name=next((name for name in names if name), None),
        on_host=on_host,
        measured_peak_bytes=None if timeline is None else _peak_of_steps(trace, timeline),
        world_size=trace.source.world_size or 1,
        sharded=any(_SHARDED.search(op.name) for op in graph.ops),
        reserve_share=None if timeline is None else _reserve_share(timeline),
        out_of_memory=0 if timeline is None else len(timeline.out_of_memory),
    )


def _listed(trace: Trace, graph: OpGraph) -> tuple[int, int, int, int] | None:
    """Bytes of parameters, gradients, optimizer state, and of gradients that are not freed; None if not recorded."""
    source = next((trace for trace in (trace.detail, trace) if trace is not None and len(trace.rows["tensors"])), None)
    if source is None:
        return None
    rows = source.rows["tensors"]
    here = rows["on_device"] == (graph.device != "cpu")
    sizes = {
        category: int(rows["bytes"][here & (rows["category"] == category)].sum())
        for category in (MemoryCategory.PARAMETER, MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE)
    }
    stay = here & (rows["category"] == MemoryCategory.GRADIENT) & (rows["freed_ns"] == MISSING)
    return (*sizes.values(), int(rows["bytes"][stay].sum()))  # type: ignore[return-value]


def _touched(graph: OpGraph) -> tuple[int, int, int, int]:
    """The same, from the tensors that the step's ops write in place."""
    storages, devices = graph.storages or (), storage_devices(graph)
    parameters = {storage for storage in graph.parameters if devices.get(storage) == graph.device}
    written: set[int] = set()
    summed: set[int] = set()
    for op in graph.ops:
        stored = {graph.tensors[index].storage for index in op.mutated}
        touched = {
            storage for storage in stored if storages[storage].born is None and devices.get(storage) == graph.device
        } - parameters
        if op.phase == "optimizer":
            written |= touched
        elif op.phase == "backward":
            summed |= touched
    state = written - summed  # an optimizer that clears gradients writes them too
    return (
        sum(storages[storage].bytes for storage in parameters),
        sum(storages[storage].bytes for storage in summed),
        sum(storages[storage].bytes for storage in state),
        sum(storages[storage].bytes for storage in summed),
    )


def timeline_of(trace: Trace, graph: OpGraph) -> MemoryTimeline | None:
    """The recorded memory in which the graph's program computes; None without a recorded allocator."""
    space = "host" if graph.device == "cpu" else "device"
    timelines = (
        timeline for timeline in trace.fact(memory_timelines) if timeline.space == space and not timeline.of_driver
    )
    return next(timelines, None)


def _before(timeline: MemoryTimeline) -> tuple[int, int]:
    """Bytes held before the recording: other than gradients and listed tensors, and of parameters and optimizer state.

    Rounded as by the allocator: the rounding of the latter is held as well.
    """
    blocks = timeline.blocks
    size, category = blocks["bytes"], blocks["category"]
    listed = blocks["before"] & np.isin(category, (MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE))
    others = blocks["before"] & ~listed & (category != MemoryCategory.GRADIENT)
    return timeline.unseen_bytes + int(size[others].sum()), int(size[listed].sum())


def _peak_of_steps(trace: Trace, timeline: MemoryTimeline) -> int | None:
    """The highest moment of the recorded steps, as counted by the allocator."""
    steps = timeline.of(trace).rows["steps"]
    curve = timeline.live()
    if not len(steps) or timeline.axis != "ns":
        return int(curve.bytes.max()) if len(curve.bytes) else None
    first, last = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    within = curve.bytes[(curve.positions > first) & (curve.positions < last)]
    return int(max(curve.at(np.array(first)), within.max(initial=0)))


def _reserve_share(timeline: MemoryTimeline) -> float | None:
    """Memory the allocator held beyond the peak, as a share of the peak; 0 on the host, which reserves nothing."""
    if timeline.space == "host":
        return 0.0
    if timeline.reserved is None or not len(timeline.reserved.bytes):
        return None
    _, peak = timeline.live().peak()
    return max(0.0, int(timeline.reserved.bytes.max()) / peak - 1.0) if peak else None
