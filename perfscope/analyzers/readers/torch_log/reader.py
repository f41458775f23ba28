"""torch.compile's structured log from ``TORCH_TRACE=DIR``: one file per process, plain, gzip or xz.

A log alone is a trace without rows. It has the compilations, their reasons and durations, but not the time of anything
that ran. Configurations, environments, runnable graphs and values in guards are not read.
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perfscope.analyzers.readers.file_bytes import FILE_NAME, open_bytes
from perfscope.analyzers.readers.torch_log import breaks, compiles, graph_text, kernels, records
from perfscope.analyzers.readers.torch_log.compiles import Phases
from perfscope.analyzers.readers.torch_log.records import (
    MAX_COMPILES,
    MAX_KERNELS,
    MAX_KINDS,
    MAX_NODES,
    CorruptRecordError,
    Reader,
    Record,
    Strings,
    clean,
    decode,
)
from perfscope.analyzers.readers.torch_log.unit import GraphText, Section, Unit, unread
from perfscope.analyzers.readers.torch_log.unit import parse as parse_code
from perfscope.model.compile_log import CodeLine, CompileLog, Direction, Graph, GraphBreak, LoggedRecompile
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder

PASSED_OVER = frozenset(
    {
        "describe_storage",
        "describe_tensor",
        "describe_source",
        "dynamo_cpp_guards_str",
        "dynamo_guards",
        "guard_added",
        "guard_added_fast",
        "expression_created",
        "create_unbacked_symbol",
        "propagate_real_tensors",
        "propagate_real_tensors_provenance",
        "symbolic_shape_specialization",
        "aot_joint_graph",
        "aot_inference_graph_after_hop_passes",
        "inductor_pre_grad_graph",
        "optimize_ddp_split_graph",
        "optimize_ddp_split_child",
        "compiled_autograd_graph",
        "compilation_metrics_runtime",
        "graph_dump",
        "exported_program",
        "export",
        "dump_file",
        "link",
        "missing_fake_kernel",
        "mismatched_fake_kernel",
    }
)
"""Known kinds that the model does not need (including guards and programs of the user)."""

_AOT: dict[str, Direction] = {
    "aot_forward_graph": "forward",
    "aot_backward_graph": "backward",
    "aot_inference_graph": "inference",
}
_POST_GRAD = {"inductor_post_grad_graph": True, "after_post_grad_graph": False, "after_recompile_post_grad": False}
"""Names of the graph after inductor's passes, as kind or as artifact; true for the final graph."""

NO_COMPILE_ID = "calls of graphs in order, some without a compile id (compiled earlier, or loaded from a cache),"

FORMAT = "torch_trace"

MAX_LOG_BYTES = 16 << 30
"""Maximum bytes of a log: 50,000 compilations, with 30 kB per graph and 300 kB per compilation."""

_RANK = re.compile(r"_rank_?(\d{1,6})(?=[._]|$)")

_BY_TORCH = re.compile(r"dedicated_log_torch_trace_rank_\d")
"""Prefix of torch's name for the log of a rank."""


# Dispatch of a log's records, each kind to its parser.


class _Version(msgspec.Struct):
    pytorch_version: str | None = None


class Collector:
    """Collector of records, one by one."""

    def __init__(self) -> None:
        self.units = compiles.Units()
        self.phases = Phases()
        self.now_ns: int | None = None
        """Time of the latest event of the log, ns since the epoch; lines have local time without a year."""
        self.strings = Strings()
        self.breaks: list[tuple[Unit, GraphBreak]] = []
        self.recompiles: list[tuple[Unit, tuple[str, ...], CodeLine | None]] = []
        self.unknown: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.rank: int | None = None
        self.version: str | None = None
        self.has_provenance = False
        self.executed: tuple[str | None, ...] = ()
        self._nodes = 0
        self._kinds: dict[str, Callable[[Record], None]] = {
            "chromium_event": self._chromium,
            "str": self._string,
            "dynamo_start": self._start,
            "compilation_metrics": self._metrics,
            "torch_version": self._torch_version,
            "recompile_reasons": self._recompiled,
            "dynamo_graph_break_reason": self._broke,
            "graph_execution": self._executed,
        }
        self._kinds_of_compilation: dict[str, Callable[[Unit, Record], None]] = {
            "dynamo_output_graph": self._traced,
            "bwd_compilation_metrics": compiles.backward_metrics,
            "create_symbol": compiles.symbol,
            "inductor_output_code": self._code,
            "inductor_provenance_tracking_node_mappings": self._mappings,
            "inductor_triton_kernel_to_post_grad_nodes": self._mappings,
            "inductor_provenance_tracking_kernel_stack_traces": kernels.stack_traces,
            "triton_kernel_info": kernels.triton_info,
            "inductor_collective_schedule": compiles.schedule,
            "inductor_runtime_and_tensor_meta": compiles.estimate,
            **dict.fromkeys(_AOT, self._aot),
            **dict.fromkeys(_POST_GRAD, self._post_grad),
            **dict.fromkeys(compiles.CACHE_ANSWERS, compiles.record_cache_answer),
        }
        """Records about one compilation; artifacts by their name, as above."""

    def take(self, record: Record) -> None:
        """Record the content; ``CorruptRecordError`` if it does not fit its kind."""
        if self.rank is None:
            self.rank = record.envelope.rank
        kind = record.name or record.kind
        if record.name and record.empty:  # Artifacts from a cache are empty.
            return
        if (use := self._kinds.get(kind)) is not None:
            use(record)
        elif (use_with_unit := self._kinds_of_compilation.get(kind)) is not None:
            unit = self.units.of(record)
            if unit is not None:
                use_with_unit(unit, record)
        elif record.kind != "artifact" and record.kind not in PASSED_OVER:
            name = clean(record.kind, 80)
            self.unknown[name if name in self.unknown or len(self.unknown) < MAX_KINDS else "others"] += 1

    def _chromium(self, record: Record) -> None:
        self.now_ns = self.phases.add(record) or self.now_ns

    def _string(self, record: Record) -> None:
        text, number = decode(record.body, tuple[str, int])
        self.strings.add(text, number)

    def _start(self, record: Record) -> None:
        unit = self.units.begin(record)
        if unit is not None:
            compiles.start(unit, record, self.strings, self.now_ns)

    def _metrics(self, record: Record) -> None:
        unit = compiles.end(self.units, record)
        if unit is not None:
            self.version = compiles.metrics(unit, record) or self.version

    def _torch_version(self, record: Record) -> None:
        text = decode(record.payload(), _Version).pytorch_version
        self.version = clean(text, 100) if text else self.version

    def _executed(self, record: Record) -> None:
        self.executed = (*self.executed, *compiles.executed(record))[: compiles.MAX_EXECUTED]

    def _traced(self, unit: Unit, record: Record) -> None:
        names = graph_text.arguments(record.payload().decode("utf-8", "replace"))
        unit.update(traced_graphs=unit.compilation.traced_graphs + 1, arguments=names)

    def _aot(self, unit: Unit, record: Record) -> None:
        graph = self._graph(record)
        if graph is not None:
            unit.aot[_AOT[record.kind]] = graph

    def _graph(self, record: Record) -> GraphText | None:
        graph = graph_text.parse(record.payload().decode("utf-8", "replace"))
        self._nodes += len(graph.nodes)
        if self._nodes > MAX_NODES:
            self.left_out["graphs beyond the limit"] += 1
            return None
        return graph

    def _post_grad(self, unit: Unit, record: Record) -> None:
        graph = self._graph(record)
        if graph is None:
            return
        final = _POST_GRAD[record.name or record.kind]
        section = unit.section
        if section is None or section.code is not None or (section.graph is not None and section.final >= final):
            section = Section()
            unit.sections.append(section)
        section.graph, section.final = graph, final
        if graph_text.is_backward(graph):
            section.direction = "backward"

    def _code(self, unit: Unit, record: Record) -> None:
        code = parse_code(record.payload().decode("utf-8", "replace"))
        if not code.is_python:
            self.left_out["output codes other than Python"] += 1
        section = unit.section
        if section is None or section.code is not None:
            section = Section()
            unit.sections.append(section)
        section.code = code
        section.direction = code.direction or section.direction

    def _mappings(self, unit: Unit, record: Record) -> None:
        kernels.mappings(unit, record)
        self.has_provenance = self.has_provenance or unit.section is not None

    def _recompiled(self, record: Record) -> None:
        unit = self.units.begin(record)
        if unit is None:
            return
        if len(self.recompiles) >= MAX_COMPILES:
            self.left_out["recompilations beyond the limit"] += 1
            return
        self.recompiles.append((unit, *breaks.failed_guards(record)))

    def _broke(self, record: Record) -> None:
        unit = self.units.of(record)
        if unit is None:
            unit = unread("")  # torch.export has no compile id.
        unit.breaks += 1
        if len(self.breaks) >= MAX_COMPILES:
            self.left_out["graph breaks beyond the limit"] += 1
            return
        graph_break = breaks.parse_break(record.payload().decode("utf-8", "replace"), unit.compilation)
        self.breaks.append((unit, graph_break))


# The model of a log from its collected records.


def read_records(data: bytes | mmap.mmap, path: str, folders: Sequence[str] = ()) -> CompileLog:
    """Return the log in ``data``. Corrupt parts are counted and left out, and never raise."""
    reader = Reader(data, folders)
    collector = Collector()
    damaged = 0
    for record in reader:
        try:
            collector.take(record)
        except CorruptRecordError:
            damaged += 1
    return _log(collector, path, reader.records - damaged, reader.corrupt + damaged)


def _log(collector: Collector, path: str, records: int, corrupt: int) -> CompileLog:
    units = collector.units.all
    compiles.name_by_frame(units)
    phases = collector.phases.finish()
    left_out = Counter(collector.left_out) + collector.phases.left_out
    if collector.units.beyond:
        left_out["records of compilations beyond the limit"] = collector.units.beyond
    executed = tuple(number for number in collector.executed if number is not None)
    if len(executed) < len(collector.executed):
        left_out[NO_COMPILE_ID], executed = len(collector.executed), ()
    failures = [graph_break for unit in units if (graph_break := breaks.failure_break(unit)) is not None]
    made = [kernel for unit in units for section in unit.sections for kernel in kernels.build(unit, section)]
    if len(made) > MAX_KERNELS:
        left_out["kernels beyond the limit"] = len(made) - MAX_KERNELS
    return CompileLog(
        path=path,
        rank=collector.rank,
        torch_version=collector.version,
        compiles=tuple(unit.compilation for unit in units),
        executed=executed,
        breaks=(*_with_skips(collector.breaks), *failures),
        recompiles=tuple(
            LoggedRecompile(
                compile_id=unit.compilation.compile_id,
                function=unit.compilation.function,
                place=unit.compilation.place,
                reasons=reasons,
                guard_place=guard_place,
                time_ns=unit.compilation.start_ns,
            )
            for unit, reasons, guard_place in collector.recompiles
        ),
        graphs=tuple(graph for unit in units for graph in _graphs(unit)),
        kernels=tuple(made[:MAX_KERNELS]),
        phases=phases,
        records=records,
        corrupt=corrupt,
        unknown=dict(collector.unknown),
        left_out=dict(left_out),
        has_provenance=collector.has_provenance,
    )


def _with_skips(found: list[tuple[Unit, GraphBreak]]) -> Iterator[GraphBreak]:
    """Yield breaks with the start of their frame, and whether it was skipped, which the text lacks before torch 2.9."""
    for unit, graph_break in found:
        skipped = graph_break.skipped_frame or unit.compilation.has_code is False
        yield replace(graph_break, skipped_frame=skipped, time_ns=unit.compilation.start_ns)


def _graphs(unit: Unit) -> Iterator[Graph]:
    """Yield graphs that inductor compiled, after its passes; else AOT autograd's graph.

    If inductor logged any code, a graph of AOT autograd without code was never compiled (a backward that never ran), or
    is the same graph under another name (before torch 2.8 an inference graph was logged as a forward).

    AOT autograd's partitioner copies nodes of the joint graph with their names into the forward and the backward: a
    node that both define is computed twice. Inductor's passes run later and keep the names of the remaining nodes.
    """
    found: list[tuple[Direction, GraphText, bool]] = []
    for section in unit.sections:
        direction = unit.direction_of(section)
        graph = section.graph or unit.aot.get(direction)
        if graph is None and direction == "inference":
            graph = unit.aot.get("forward")
        if graph is not None:
            found.append((direction, graph, section.graph is not None))
    if not unit.sections:
        found.extend((direction, graph, False) for direction, graph in unit.aot.items())
    twice = _twice(unit)
    for direction, graph, after_passes in found:
        yield Graph(
            compile_id=unit.compilation.compile_id,
            direction=direction,
            nodes=graph.nodes,
            recomputed=tuple(node.name for node in graph.nodes if (node.name, node.op) in twice)
            if direction == "backward"
            else (),
            inputs=graph.inputs,
            outputs=graph.outputs,
            after_passes=after_passes,
        )


def _twice(unit: Unit) -> set[tuple[str, str]]:
    """Return nodes that AOT autograd's forward and backward graphs both define, by name and op."""
    forward, backward = unit.aot.get("forward"), unit.aot.get("backward")
    if forward is None or backward is None:
        return set()
    return {(node.name, node.op) for node in forward.nodes} & {(node.name, node.op) for node in backward.nodes}


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the first lines of the text are records of the log (``head``: first bytes, decompressed)."""
    return records.sniff(head)


def read(path: Path) -> Trace:
    """Return the log in ``path`` as a trace with ``compile_log`` only. ``DataError`` as in ``read_log``.

    ``compile_log`` counts as recorded if there is a compilation in it.
    """
    log = read_log(path)
    builder = TraceBuilder(str(path), FORMAT)
    builder.rank_source = log.rank_source
    builder.rank, builder.events, builder.unplaced["damaged"] = log.rank, log.records, log.corrupt
    builder.note("this is a log of compiling, not a recording of a run: it holds no time of any op or kernel")
    if log.corrupt:
        builder.note(f"{log.corrupt:,} of {log.corrupt + log.records:,} records of the log are corrupt and left out")
    if log.compiles:
        builder.record("compile_log")
    else:  # Rules without input report that.
        builder.note("no compilation in it: torch.export and AOTInductor log without ids of compilations")
    builder.note(*(f"{count:,} {what} are left out" for what, count in sorted(log.left_out.items())))
    return builder.build(compile_log=log)


def read_log(path: Path, folders: Sequence[str] = ()) -> CompileLog:
    """Return the log in ``path``. The rank is that in torch's file name, else the records', else any name's.

    Files below ``folders`` (absolute paths) are named from there.

    Records have rank 0 if the process group did not exist yet, and so do combined logs.

    ``DataError``, one line, for a file that is not such a log, empty, too large, or compressed and truncated. Damaged
    records are counted in ``corrupt`` and left out.
    """
    with open_bytes(path, MAX_LOG_BYTES) as data:
        log = read_records(data, str(path), folders)
    if not log.records:
        raise DataError(f"{path}: no intact record of a torch.compile log in it")
    by_torch, named = _BY_TORCH.search(path.name), _RANK.search(path.name)
    if named is None or (log.rank is not None and by_torch is None):
        return log
    return replace(log, rank=int(named[1]), rank_source=FILE_NAME)
