"""The step of a PyTorch program: the op graph of a recording, or of a plan for a machine that is not here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from perfscope.analyzers.graph import Flow, op_program, score_groups, short_name, trace_flow
from perfscope.analyzers.ops import op_times, region_bytes
from perfscope.analyzers.plans import op_ranges, plan_works, step_ns
from perfscope.model.finding import AbstainError
from perfscope.model.op_flops import PRODUCTS
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import Trace
from perfscope.plugins.port.compiled_step import compiled_step
from perfscope.plugins.port.pieces import Basis, Fact, Held, Kind, Phase, Piece, Program, Weight

_MOVES = frozenset({"clone", "contiguous", "copy_", "_to_copy", "cat", "stack", "slice_scatter", "select_scatter"})
_REPEATS = frozenset({"repeat", "repeat_interleave", "index_select"})
_ATTENTION = "scaled_dot_product"
_COLLECTIVES = ("c10d.", "_c10d_functional.")
_WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_SMALL = 64
"""Elements up to which a value is a number or a shape, and not data."""


def torch_step(trace: Trace) -> Program | None:
    """The step of a trace's op graph, or of its compiled regions; ``None`` without either."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    if graph is None or flow is None:
        return compiled_step(trace)
    times, whole, basis, notes = _times(trace)
    reader = _Reader(graph, flow, times)
    return Program(
        path=trace.source.path,
        framework="torch",
        device=trace.target.shown if trace.target is not None else graph.device,
        pieces=tuple(reader.pieces),
        weights=tuple(reader.weights),
        step_ns=whole,
        basis=basis,
        held=tuple(_held(graph, reader.numbers)),
        facts=(*_syncs(graph), *_attentions(graph, flow, reader)),
        notes=notes,
    )


def _times(trace: Trace) -> tuple[list[int] | None, int | None, Basis | None, tuple[str, ...]]:
    """Time of each op, of the step, how they are known, and notes."""
    graph = trace.op_graph
    if trace.torch_plans and trace.target is not None and graph is not None:
        works, plan = trace.fact(plan_works), trace.torch_plans[0].plan
        ranges = op_ranges(graph, trace.target, plan.float32_products)
        eager = works[0].eager if works else None
        whole = None if eager is None else round((eager.step.low + eager.step.high) / 2)
        return [round((one.low + one.high) / 2) for one in ranges], whole, "modelled", ()
    try:
        known = trace.fact(op_times)
    except AbstainError as reason:
        return None, round(step_ns(trace)) or None, "measured", (f"ops have no time: {reason}",)
    basis: Basis = "measured" if known.basis == "measured" else "modelled"
    return [round(float(ns)) for ns in known.ns], known.step_ns, basis, (known.note,) if known.note else ()


class _Reader:
    """Makes the pieces in the order of the ops."""

    def __init__(self, graph: OpGraph, flow: Flow, times: list[int] | None) -> None:
        self.graph, self.flow, self.times = graph, flow, times
        self.pieces: list[Piece] = []
        self.weights: list[Weight] = []
        self.numbers: dict[int, int] = {}
        """Op -> piece."""
        self._weight_of: dict[tuple[int, str], int] = {}
        """(storage, module) -> weight: a module's use of a parameter."""
        self._carried: dict[int, tuple[int, ...]] = {}
        """Piece -> weights that its result is."""
        self._forward: dict[int, int] = {}
        """Autograd sequence number -> forward piece."""
        self._modules: dict[int, str] = {}
        """Storage -> module that first read it."""
        for index, op in enumerate(graph.ops):
            if not op.view:
                self._add(index, op)

    def _add(self, index: int, op: GraphOp) -> None:
        name = short_name(op)
        reads = tuple(dict.fromkeys(self.numbers[maker] for _, maker in self.flow.producers[index]))
        phase: Phase = op.phase
        if op.phase == "other" and any(self.pieces[one].phase == "forward" for one in reads):
            phase = "forward"
        weights = self._used(op, reads) if phase != "optimizer" else ()
        kind = self._kind(op, name)
        whole = kind in ("move", "cast") or (kind == "collective" and "all_gather" in name)
        inputs = [self.pieces[one] for one in reads]
        carries = bool(weights) and whole and all(one.carries or not one.data for one in inputs)
        number = len(self.pieces)
        if op.phase == "forward" and op.sequence is not None:
            self._forward.setdefault(op.sequence, number)
        traffic = region_bytes(self.graph, self.flow, self.flow.reads[index])
        self.numbers[index] = number
        self.pieces.append(
            Piece(
                name=op.name,
                op=name,
                kind=kind,
                phase=phase,
                reads=reads,
                weights=weights,
                carries=carries,
                data=any("float" in self.graph.tensors[one].dtype for one in (*op.outputs, *op.mutated)),
                flops=op.flops or 0,
                bytes=traffic + region_bytes(self.graph, self.flow, self.flow.writes[index]),
                recompute=op.recompute,
                dtype=self._dtype(op, kind),
                size=max((math.prod(self.graph.tensors[one].shape) for one in (*op.outputs, *op.mutated)), default=0),
                time_ns=None if self.times is None else self.times[index],
                scope=op.module.partition(".")[2],
                file=op.file,
                line=op.line,
                checkpoint=op.checkpoint if op.recompute else None,
                origin=self._forward.get(op.sequence) if op.phase == "backward" and op.sequence is not None else None,
            )
        )

    def _dtype(self, op: GraphOp, kind: Kind) -> str:
        """Type of the factors of a product: the last operands, or those after the first of an attention."""
        if not op.flops or not op.inputs:
            return ""
        return self.graph.tensors[op.inputs[min(1, len(op.inputs) - 1) if kind == "attention" else -1]].dtype

    def _used(self, op: GraphOp, reads: tuple[int, ...]) -> tuple[int, ...]:
        used = []
        for tensor in op.inputs:
            seen = self.graph.tensors[tensor]
            if seen.storage in self.graph.parameters and "float" in seen.dtype:  # not a buffer of positions
                used.append(self._weight(seen.storage, op))
        used += [weight for one in reads if self.pieces[one].carries for weight in self.pieces[one].weights]
        return tuple(dict.fromkeys(used))

    def _weight(self, storage: int, op: GraphOp) -> int:
        """The use of a parameter by a module; a backward op has the module of its forward op."""
        module = op.module.partition(".")[2]
        key = (storage, module)
        if key not in self._weight_of:
            elements = max(math.prod(t.shape) for t in self.graph.tensors if t.storage == storage)
            self._weight_of[key] = len(self.weights)
            self.weights.append(Weight(name=module, elements=elements))
        return self._weight_of[key]

    def _kind(self, op: GraphOp, name: str) -> Kind:
        tensors = self.graph.tensors
        if op.flops and _ATTENTION in name:
            return "attention"
        if op.flops or name in PRODUCTS:
            return "product"
        if op.name.startswith(_COLLECTIVES):
            return "collective"
        if op.inputs and op.outputs and name in (*_MOVES, *_REPEATS):
            source, result = tensors[op.inputs[0]], tensors[op.outputs[0]]
            size = math.prod(result.shape)
            held = source.bytes // max(1, _item(source.dtype))
            if size <= _SMALL:
                return "other"
            if name in ("_to_copy", "copy_") and _item(source.dtype) != _item(result.dtype):
                return "cast"
            if len(op.inputs) == 1 or name in _REPEATS:
                return (
                    "repeat"
                    if (held and size > held and name != "index_select")
                    or (name == "index_select" and size > math.prod(source.shape))
                    else "move"
                )
            return "move"
        return "other"


def _item(dtype: str) -> int:
    return _WIDTH.get(dtype.removeprefix("torch."), 0) or 8


def _held(graph: OpGraph, numbers: dict[int, int]) -> Iterator[Held]:
    """Storages that are live at the peak, from their lives in the graph."""
    if graph.storages is None:
        return
    change: dict[int, int] = defaultdict(int)
    end = len(graph.ops)
    for life in graph.storages:
        change[life.born or 0] += life.bytes
        change[end + 1 if life.died is None else life.died] -= life.bytes
    now = most = at = 0
    for moment in sorted(change):
        now += change[moment]
        if now > most:
            most, at = now, moment
    for life in graph.storages:
        if (life.born or 0) <= at and (life.died is None or life.died > at):
            yield Held(bytes=life.bytes, piece=None if life.born is None else numbers.get(life.born))


def _syncs(graph: OpGraph) -> Iterator[Fact]:
    """Reads on the host, by line."""
    counts: dict[tuple[str | None, int | None, str], int] = defaultdict(int)
    for op in graph.ops:
        if op.host_read:
            counts[op.file, op.line, op.host_read] += 1
    for (file, line, what), count in counts.items():
        yield Fact(kind="sync", count=count, file=file, line=line, detail=what)


def _attentions(graph: OpGraph, flow: Flow, reader: _Reader) -> Iterator[Fact]:
    program = op_program(graph, flow)
    for group in score_groups(program):
        kernels = sorted(
            {program.nodes[number].kernel for number in group.values} - {None}  # type: ignore[type-var]
        )
        pieces = tuple(reader.numbers[kernel] for kernel in kernels if kernel is not None)
        file, line = program.nodes[group.place].place
        extra = sum(reader.pieces[one].bytes for one in pieces if reader.pieces[one].kind != "product")
        yield Fact(kind="attention", bytes=extra, count=1, file=file or None, line=line, pieces=pieces)
