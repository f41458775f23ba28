"""The step of a PyTorch program with regions of torch.compile: kernels of inductor, from its log and the recording.

A piece is a kernel or library call of a compiled graph. Its nodes are in the log; in a backward graph without them they
are assigned by the order of the library calls. A graph that runs several times per step, such as a compiled block, is
like a loop over stacked layers. Ops outside of compiled graphs have times, and no FLOPs and bytes.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from perfscope.analyzers.spans import compiled_rows, is_compiled, lineage, outermost, work_time
from perfscope.analyzers.time import step_windows
from perfscope.analyzers.torch_compile import node_flops
from perfscope.model.compile_log import CompiledKernel, CompileLog, Graph, GraphNode
from perfscope.model.op_flops import PRODUCTS
from perfscope.model.trace import SliceKind, Trace
from perfscope.plugins.port.pieces import Kind, Phase, Piece, Program, Weight

OUTSIDE = "ops outside of compiled regions have times, and no FLOPs and bytes"
_VIEWS = frozenset(
    [
        "alias",
        "as_strided",
        "detach",
        "expand",
        "getitem",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)
"""Ops of a graph after inductor's passes that compute nothing."""
_MOVES = frozenset({"cat", "clone", "constant_pad_nd", "copy", "repeat"})
_CAST = "convert_element_type"
_ITEM = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1, "int8": 1}
_PARAMETER = re.compile(r"^L_[A-Za-z0-9_]*?_(?:modules|parameters|buffers)_(.*)$")
_PHASES: Mapping[str, Phase] = {"forward": "forward", "backward": "backward", "inference": "forward"}

_Key = tuple[str, str]


def compiled_step(trace: Trace) -> Program | None:
    """The step of a recording with compiled regions; ``None`` if none of its kernels ran, or are in the log."""
    log, rows = trace.compile_log, trace.fact(compiled_rows)
    windows = trace.fact(step_windows)
    if log is None or not rows or not windows.count:
        return None
    traced = float((windows.ends - windows.starts).mean())
    step_ns = round(median(trace.step_times_ns)) if trace.step_times_ns else round(traced)
    clock = _Clock(trace, windows.count, min(1.0, step_ns / traced))
    reader = _Reader(log, clock, _by_kernel(rows))
    if not reader.pieces:
        return None
    reader.pieces += _outside(trace, clock, set(rows))
    return Program(
        path=trace.source.path,
        framework="torch",
        device=" ".join(dict.fromkeys(trace.text(int(code)) for code in trace.rows["devices"]["name"])) or "cpu",
        pieces=tuple(reader.pieces),
        weights=tuple(reader.weights),
        step_ns=step_ns,
        basis="measured",
        notes=(OUTSIDE, *reader.notes),
    )


class _Clock:
    """Time of host rows per step without a profiler: of their work on a device if there is one, else their own."""

    def __init__(self, trace: Trace, steps: int, scale: float) -> None:
        self.trace, self.steps, self.scale = trace, steps, scale
        self._on_device = len(trace.rows["kernels"]) > 0

    def ns(self, rows: Sequence[int]) -> int:
        """Time of some rows per step."""
        chosen = np.array(sorted(rows), np.int64)
        if self._on_device:
            return round(work_time(self.trace, chosen).sum_ns / self.steps)
        slices = self.trace.rows["slices"]
        spent = int((slices["end_ns"] - slices["start_ns"])[chosen].sum())
        return round(spent / self.steps * self.scale)


def _by_kernel(rows: Mapping[int, int]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = defaultdict(list)
    for row, kernel in rows.items():
        result[kernel].append(row)
    return result


class _Reader:
    """Makes the pieces of all graphs that ran, forward graphs first."""

    def __init__(self, log: CompileLog, clock: _Clock, rows: Mapping[int, list[int]]) -> None:
        self.pieces: list[Piece] = []
        self.weights: list[Weight] = []
        self.notes: list[str] = []
        self._clock = clock
        self._made: dict[tuple[str, str], int] = {}
        """(Compile id, node) -> piece."""
        self._views: dict[tuple[str, str], str] = {}
        """(Compile id, node) -> the node or input that it is a view of."""
        self._given: set[str] = set()
        """Inputs of the present graph."""
        self._factor_of: dict[tuple[str, str], int] = {}
        """(Compile id, node) -> product of the forward pass that it is a factor of."""
        self._weight_of: dict[tuple[str, str], int] = {}
        self._arguments = {compiled.compile_id: compiled.arguments for compiled in log.compiles}
        kernels: dict[_Key, list[int]] = defaultdict(list)
        for index, kernel in enumerate(log.kernels):
            kernels[kernel.compile_id, kernel.direction].append(index)
        frames = {graph.compile_id.partition("/")[0] for graph in log.graphs}
        self._prefix = len(frames) > 1
        graphs = {(graph.compile_id, graph.direction): graph for graph in log.graphs}
        for key, graph in sorted(graphs.items(), key=lambda pair: pair[0][1] == "backward"):
            ran = [rows[index] for index in kernels[key] if index in rows]
            if ran:
                calls = max(1, round(max(map(len, ran)) / clock.steps))
                self._graph(graph, [(log.kernels[index], rows.get(index, [])) for index in kernels[key]], calls)

    def _graph(self, graph: Graph, kernels: list[tuple[CompiledKernel, list[int]]], calls: int) -> None:
        name = graph.compile_id
        values = {node.name: node for node in (*graph.inputs, *graph.nodes)}
        self._given = {node.name for node in graph.inputs}
        for node in graph.nodes:
            if _short(node) in _VIEWS and node.inputs:
                self._views[name, node.name] = node.inputs[0]
        groups = _assigned(graph, [kernel for kernel, _ in kernels])
        read_by: dict[str, set[int]] = defaultdict(set)
        for number, nodes in enumerate(groups):
            for node in nodes:
                for one in node.inputs:
                    read_by[self._base(name, one)].add(number)
        kept = {self._base(name, one) for one in graph.outputs}
        for number, ((kernel, rows), nodes) in enumerate(zip(kernels, groups, strict=True)):
            inside = {node.name for node in nodes}
            given = {self._base(name, one) for node in nodes for one in node.inputs} - inside
            written = [one for one in nodes if one.name in kept or read_by[one.name] - {number}]
            self._piece(graph, kernel, nodes, rows, calls,
                        [values[one] for one in sorted(given) if one in values], written)  # fmt: skip

    def _piece(
        self, graph: Graph, kernel: CompiledKernel, nodes: Sequence[GraphNode], rows: list[int], calls: int,
        given: Sequence[GraphNode], written: Sequence[GraphNode],
    ) -> None:  # fmt: skip
        name, number = graph.compile_id, len(self.pieces)
        reads = {self._made[source] for one in given if (source := self._source(name, one.name)) in self._made}
        weights = [weight for one in given if (weight := self._weight(name, one, calls)) is not None]
        shapes = {one.name: one for one in (*graph.inputs, *graph.nodes)}
        products = [node for node in nodes if _short(node) in PRODUCTS]
        place = next((one for one in (*kernel.places, *(node.place for node in nodes if node.place is not None))), None)
        main = products[0] if products else max(nodes, key=_elements, default=None)
        kind = _kind(nodes)
        origin = self._differentiated(name, kind, _PHASES[graph.direction], weights, given)
        floats = [node for node in written if "float" in (node.dtype or "")]
        self.pieces.append(
            Piece(
                name=kernel.name,
                op="" if main is None else _short(main),
                kind=kind,
                phase=_PHASES[graph.direction],
                reads=tuple(sorted(reads)),
                weights=tuple(dict.fromkeys(weights)),
                carries=bool(weights) and not reads and kind in ("move", "cast"),
                data=bool(floats) or not written,
                flops=calls * sum(node_flops(node, shapes) or 0 for node in products),
                bytes=calls * sum(map(_bytes, (*given, *written))),
                launches=calls * kernel.calls,
                turns=calls,
                recompute=any(node.name in graph.recomputed for node in products),
                dtype=(products[0].dtype or "") if products else "",
                size=max(map(_elements, written), default=0),
                time_ns=self._clock.ns(rows) if rows else 0,
                origin=origin,
                file=None if place is None else place.file,
                line=None if place is None else place.line,
            )
        )
        for node in nodes:
            self._made[name, node.name] = number

    def _base(self, compile_id: str, name: str) -> str:
        """The value that a view is of, in the present graph."""
        while name not in self._given and (compile_id, name) in self._views:
            name = self._views[compile_id, name]
        return name

    def _source(self, compile_id: str, name: str) -> tuple[str, str]:
        """The same, also in the forward graph that a backward graph has its inputs from."""
        while (compile_id, name) in self._views:
            name = self._views[compile_id, name]
        return compile_id, name

    def _differentiated(
        self, name: str, kind: Kind, phase: Phase, weights: Sequence[int], given: Sequence[GraphNode]
    ) -> int | None:
        """The forward product with one of the factors of a product of the backward pass: it gives a weight's gradient.

        Factors of products of the forward pass are noted.
        """
        sources = [self._source(name, one.name) for one in given]
        if kind != "product":
            return None
        if phase == "forward":
            self._factor_of.update(dict.fromkeys(sources, len(self.pieces)))
            return None
        return None if weights else next((self._factor_of[one] for one in sources if one in self._factor_of), None)

    def _weight(self, compile_id: str, node: GraphNode, calls: int) -> int | None:
        """The parameter that an input of the graph is."""
        if not node.name.startswith("primals_") or "float" not in (node.dtype or ""):
            return None
        arguments = self._arguments.get(compile_id, ())
        index = int(node.name.removeprefix("primals_")) - 1 if node.name[8:].isdecimal() else len(arguments)
        found = _PARAMETER.match(arguments[index]) if index < len(arguments) else None
        if found is None:
            return None
        key = (compile_id, node.name)
        if key not in self._weight_of:
            owner = _path(found[1]).rpartition(".")[0]
            frame = compile_id.partition("/")[0]
            title = ".".join(filter(None, (f"region{frame}" if self._prefix or calls > 1 else "", owner)))
            self._weight_of[key] = len(self.weights)
            self.weights.append(Weight(name=title or "model", elements=_elements(node), stacked=calls))
        return self._weight_of[key]


def _assigned(graph: Graph, kernels: Sequence[CompiledKernel]) -> list[list[GraphNode]]:
    """Nodes of each kernel: as logged; else products in order, and other nodes before the first that reads them."""
    nodes = [node for node in graph.nodes if _short(node) not in _VIEWS]
    by_name = {node.name: node for node in nodes}
    if any(kernel.nodes for kernel in kernels):
        return [[by_name[name] for name in kernel.nodes if name in by_name] for kernel in kernels]
    groups: list[list[GraphNode]] = [[] for _ in kernels]
    at: dict[str, int] = {}
    for number, kernel in enumerate(kernels):
        if kernel.backend == "extern":
            op = kernel.name.rpartition(".")[2]
            own = next((node for node in nodes if _short(node) == op and node.name not in at), None)
            if own is not None:
                at[own.name] = number
                groups[number].append(own)
    fused = [number for number, kernel in enumerate(kernels) if kernel.backend != "extern"]
    views = {node.name: node.inputs for node in graph.nodes if _short(node) in _VIEWS}
    users: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        for one in node.inputs:
            users[one].append(node.name)

    def last_use(name: str) -> int:
        """The first kernel that reads a value, also through views."""
        found = [at[user] if user in at else last_use(user) if user in views else len(kernels) for user in users[name]]
        return min(found, default=len(kernels))

    for node in reversed(nodes):
        if node.name in at or not fused:
            continue
        use = last_use(node.name)
        allowed = [number for number in fused if number <= use]
        at[node.name] = allowed[-1] if allowed else fused[0]
        groups[at[node.name]].append(node)
    return groups


def _outside(trace: Trace, clock: _Clock, inside: set[int]) -> Iterator[Piece]:
    """Ops that ran outside of compiled graphs, by name and phase, with their times."""
    slices = trace.rows["slices"]
    windows = trace.fact(step_windows)
    starts = slices["start_ns"]
    in_step = np.zeros(len(slices), bool)
    for begin, end in zip(windows.starts, windows.ends, strict=True):
        in_step |= (starts >= begin) & (starts < end)
    names = np.array([text.startswith(("aten::", "c10d::")) for text in trace.strings])
    ops = in_step & (slices["kind"] == SliceKind.OP) & names[slices["name"]]
    groups: dict[tuple[Phase, str], list[int]] = defaultdict(list)
    for row in outermost(trace, ops).tolist():
        around = [trace.text(int(slices["name"][one])) for one in lineage(trace, row)]
        if row in inside or any(map(is_compiled, around)):
            continue
        phase: Phase = "forward"
        if any(text.startswith("Optimizer.step") for text in around):
            phase = "optimizer"
        elif any(text.startswith("autograd::engine") for text in around):
            phase = "backward"
        groups[phase, around[0].partition("::")[2]].append(row)
    for (phase, name), rows in groups.items():
        launches = max(1, round(len(rows) / clock.steps))
        yield Piece(name=name, op=name, kind="other", phase=phase, launches=launches, time_ns=clock.ns(rows))


def _short(node: GraphNode) -> str:
    parts = node.op.split(".")
    return parts[1] if len(parts) > 2 or (parts[0] in ("aten", "prims") and len(parts) > 1) else parts[0]


def _elements(node: GraphNode) -> int:
    return math.prod(size for size in node.shape if isinstance(size, int))


def _bytes(node: GraphNode) -> int:
    return _elements(node) * _ITEM.get(node.dtype or "", 4)


def _kind(nodes: Sequence[GraphNode]) -> Kind:
    ops = {_short(node) for node in nodes}
    if ops & PRODUCTS:
        return "product"
    if any("scaled_dot_product" in op or "flash_attention" in op for op in ops):
        return "attention"
    if any(op.startswith(("all_gather", "all_reduce", "reduce_scatter")) for op in ops):
        return "collective"
    if ops and ops <= {_CAST}:
        return "cast"
    return "move" if ops and ops <= {*_MOVES, _CAST} else "other"


def _path(text: str) -> str:
    """``blocks_modules_0_modules_up_parameters_weight_`` as ``blocks.0.up.weight``."""
    parts = re.split(r"_(?:modules|parameters|buffers)_", text.removesuffix("_"))
    return ".".join(part.strip("_") for part in parts)
