"""What was collected from a log, as the model of it."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from perfscope.analyzers.compile_log import CompileLog, Direction, Graph, GraphBreak, Place, Recompile
from perfscope.analyzers.readers.torch_log import breaks, compiles, kernels
from perfscope.analyzers.readers.torch_log.collect import Collector
from perfscope.analyzers.readers.torch_log.limits import MAX_KERNELS
from perfscope.analyzers.readers.torch_log.records import DamagedError, Reader
from perfscope.analyzers.readers.torch_log.unit import Unit


def read(data: bytes | mmap.mmap, path: str) -> CompileLog:
    """The log in ``data``. What is damaged is counted and left out; nothing in it makes this raise."""
    reader = Reader(data)
    collector = Collector()
    damaged = 0
    for record in reader:
        try:
            collector.take(record)
        except DamagedError:
            damaged += 1
    return _log(collector, path, reader.records - damaged, reader.corrupt + damaged)


def _log(collector: Collector, path: str, records: int, corrupt: int) -> CompileLog:
    units = collector.units.all
    compiles.name_by_frame(units)
    phases = collector.phases.finish()
    left_out = Counter(collector.left_out) + collector.phases.left_out
    if collector.units.beyond:
        left_out["records of compilations beyond the limit"] = collector.units.beyond
    unsaid = [found for unit in units if (found := breaks.of_failure(unit)) is not None]
    if not collector.breaks:
        unsaid.extend(breaks.of_restarts(units))
    made = [kernel for unit in units for section in unit.sections for kernel in kernels.build(unit, section)]
    if len(made) > MAX_KERNELS:
        left_out["kernels beyond the limit"] = len(made) - MAX_KERNELS
    return CompileLog(
        path=path,
        rank=collector.rank,
        torch_version=collector.version,
        compiles=tuple(unit.build() for unit in units),
        breaks=(*_with_skips(collector.breaks), *unsaid),
        recompiles=tuple(_recompiles(collector)),
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
    """Breaks, with those marked that left their frame without code: the text does not say it before torch 2.9."""
    for unit, one in found:
        yield replace(one, skipped_frame=True) if unit.has_code is False else one


def _recompiles(collector: Collector) -> Iterator[Recompile]:
    """Those with a record of why; in a log without any such record those whose id says that they are not the first."""
    for unit, reasons, guard_place, time_ns in collector.recompiles:
        yield _recompile(unit, reasons, guard_place, time_ns)
    if collector.recompiles:
        return
    for unit in collector.units.all:
        if (unit.started or unit.finished) and not unit.compile_id.endswith("/0") and "/" in unit.compile_id:
            yield _recompile(unit, (), None, unit.start_ns)


def _recompile(unit: Unit, reasons: tuple[str, ...], guard_place: Place | None, time_ns: int | None) -> Recompile:
    return Recompile(
        compile_id=unit.compile_id,
        function=unit.function,
        place=unit.place,
        reasons=reasons,
        guard_place=guard_place,
        time_ns=time_ns,
    )


def _graphs(unit: Unit) -> Iterator[Graph]:
    """Graphs after inductor's passes; AOT autograd's where a pass has no other.

    AOT autograd's partitioner copies nodes of the joint graph with their names into the forward and the backward:
    a node that both define is computed twice. Inductor's passes come later and keep the names of what they leave.
    """
    found = [(unit.direction_of(section), section.graph, True) for section in unit.sections if section.graph]
    shown: set[Direction] = {direction for direction, _, _ in found}
    found.extend((direction, graph, False) for direction, graph in unit.aot.items() if direction not in shown)
    twice = _twice(unit)
    for direction, graph, after_passes in found:
        yield Graph(
            compile_id=unit.compile_id,
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
    """Nodes that AOT autograd's forward and backward graphs both define, by name and op."""
    forward, backward = unit.aot.get("forward"), unit.aot.get("backward")
    if forward is None or backward is None:
        return set()
    return {(node.name, node.op) for node in forward.nodes} & {(node.name, node.op) for node in backward.nodes}
