"""Programs of torch.compile at each stage, from its structured log (TORCH_TRACE)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from perfscope.analyzers.readers import READERS, LoggedGraph, logged_graphs, read_head
from perfscope.model.compile_log import CompiledKernel, CompileLog, GraphNode
from perfscope.model.errors import DataError
from perfscope.plugins.lower.kernel_code import KERNEL_SOURCE
from perfscope.plugins.lower.program import Program, ProgramStage, StageOp
from perfscope.plugins.lower.torch.fates import Passage, fates_of, weight_of

FX, JOINT = "FX graph (dynamo)", "joint graph (AOT autograd)"
FORWARD, BACKWARD = "forward graph (AOT autograd)", "backward graph (AOT autograd)"
INFERENCE, AFTER = "inference graph (AOT autograd)", "after inductor's passes"
CODE = "output code"
_WHY = "not in this log: TORCH_TRACE=DIR writes it when torch compiles and takes nothing from a cache"
_DEFINED = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)
_MOST_TEXT = 240


class TorchLog(Struct, frozen=True, kw_only=True):
    """A log with its graphs."""

    log: CompileLog
    graphs: tuple[LoggedGraph, ...]


def read_logs(files: Sequence[Path]) -> list[TorchLog]:
    """The logs among the files; ``DataError`` in one line for a damaged log."""
    reader = import_module(READERS["torch_trace"])
    found = []
    for file in files:
        if file.suffix in (".pb", ".json", ".html", ".py", ".so", ".cpp") or not reader.sniff(file, read_head(file)):
            continue
        log = reader.read(file).compile_log
        if log.compiles:
            found.append(TorchLog(log=log, graphs=tuple(logged_graphs(file))))
        elif len(files) == 1:
            raise DataError(f"{file}: no compilation in this log of torch.compile")
    return found


def programs_of(read: TorchLog) -> tuple[Program, ...]:
    """One program per compilation with a graph, the largest first."""
    found = []
    compilations = {compilation.compile_id: compilation for compilation in read.log.compiles}
    for number, compilation in compilations.items():
        graphs = [graph for graph in read.graphs if graph.compile_id == number]
        kernels = [kernel for kernel in read.log.kernels if kernel.compile_id == number]
        if graphs or kernels:
            found.append(_program(f"{compilation.function or 'graph'} [{number}]", number, read.log, graphs, kernels))
    return tuple(sorted(found, key=lambda program: -program.weight))


def _program(
    name: str, number: str, log: CompileLog, graphs: Sequence[LoggedGraph], kernels: Sequence[CompiledKernel]
) -> Program:
    after = {graph.is_backward: graph for graph in graphs if graph.stage == AFTER}
    latest = {graph.stage: graph for graph in graphs if graph.stage not in (AFTER, CODE)}
    passage = Passage(
        program=name, dynamo=latest.get(FX), joint=latest.get(JOINT), after=after, kernels=tuple(kernels),
        written={False: latest.get(FORWARD) or latest.get(INFERENCE), True: latest.get(BACKWARD)},
        recomputed=frozenset(
            node for graph in log.graphs if graph.compile_id == number for node in graph.recomputed
        ),
    )  # fmt: skip
    stages = [*_stages(latest, after, passage.recomputed), _kernel_stage(kernels)]
    stages += _code(graphs)
    notes = []
    if any(kernel.direction == "backward" and not kernel.nodes for kernel in kernels):
        notes.append(f"{name}: torch logs no nodes of its backward kernels, so values shared by them are not listed")
    if kernels and not log.has_provenance:
        notes.append("the log has no provenance of kernels: INDUCTOR_PROVENANCE=1 adds the ops and lines of each")
    return Program(
        name=name, stages=tuple(stages), fates=tuple(fates_of(passage)), notes=tuple(notes), weight=weight_of(passage)
    )


def _stages(
    latest: dict[str, LoggedGraph], after: dict[bool, LoggedGraph], recomputed: Collection[str]
) -> Iterator[ProgramStage]:
    for name in (FX, JOINT, FORWARD, BACKWARD, INFERENCE):
        if name in latest:
            phase = "backward" if name == BACKWARD else "" if name in (FX, JOINT) else "forward"
            yield ProgramStage(name=name, ops=stage_ops(latest[name], phase, recomputed))
        elif name != INFERENCE and not (name in (JOINT, FORWARD, BACKWARD) and INFERENCE in latest):
            yield ProgramStage(name=name, missing=_WHY)
    for backward, graph in sorted(after.items()):
        direction = "backward" if backward else "forward"
        yield ProgramStage(name=f"{AFTER}, {direction}", ops=stage_ops(graph, direction, recomputed))
    if not after:
        yield ProgramStage(name=AFTER, missing=_WHY)


def stage_ops(graph: LoggedGraph, phase: str, recomputed: Collection[str] = ()) -> tuple[StageOp, ...]:
    """The nodes of a graph as ops of a stage; of a backward, those in ``recomputed`` have that phase."""
    return tuple(
        StageOp(
            name=node.name, op=node.op, file=node.place.file if node.place else None,
            line=node.place.line if node.place else None, result=shown_type(graph, node),
            phase="recompute" if phase == "backward" and node.name in recomputed else phase,
            text=f"{node.name} = {node.op}({', '.join(node.inputs)})"[:_MOST_TEXT], scope=node.op,
        )
        for _, nodes in graph.modules for node in nodes
    )  # fmt: skip


def shown_type(graph: LoggedGraph, node: GraphNode) -> str:
    """``bf16[4, 8][8, 1]``: dtype, sizes and strides."""
    return re.sub(r"(?<=\])[a-z]\w*(:\d+)?$", "", graph.types.get(node.name, ""))


def _kernel_stage(kernels: Sequence[CompiledKernel]) -> ProgramStage:
    if not kernels:
        return ProgramStage(name="kernels", missing=_WHY)
    ops = [
        StageOp(
            name=kernel.handle or kernel.name, op=kernel.backend, file=place.file if place else None,
            line=place.line if place else None, phase=kernel.direction, inside=kernel.name,
            text=f"{kernel.name}: {', '.join(kernel.ops) or 'ops not logged'}"[:_MOST_TEXT],
            scope=" ".join((*kernel.ops, *kernel.nodes)),
        )
        for kernel in kernels for place in kernel.places or (None,)
    ]  # fmt: skip
    return ProgramStage(name="kernels", ops=tuple(ops), size=len(kernels))


def _code(graphs: Sequence[LoggedGraph]) -> Iterator[ProgramStage]:
    """Inductor's output code: the source of each kernel, C++ or Triton, by its line there."""
    codes = [graph for graph in graphs if graph.stage == CODE]
    ops = []
    for graph in codes:
        for match in _DEFINED.finditer(graph.text):
            line = graph.text.count("\n", 0, match.start()) + 1
            ops.append(StageOp(name=match[1], op="source", inside=match[1], text=f"{graph.file or CODE}:{line}"))
    if codes:
        yield ProgramStage(name=KERNEL_SOURCE, ops=tuple(ops), file=codes[0].file)
    else:
        yield ProgramStage(name=KERNEL_SOURCE, missing=_WHY)
