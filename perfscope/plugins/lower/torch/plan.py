"""Programs of PyTorch that `perfscope compile` planned for a machine that is not here: kernels with their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from perfscope.analyzers.torch_compile import planned_pairs
from perfscope.model.torch_plan import PlannedGraph, TorchPlan
from perfscope.model.trace import Trace
from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.program import (
    FLOPS_PER_BYTE,
    Grouped,
    Program,
    ProgramStage,
    StageOp,
    fate,
    listed,
    place_of,
)

_MISSING = ("FX graph (dynamo)", "forward graph (AOT autograd)", "backward graph (AOT autograd)")
_WHY = "a plan keeps kernels only; `perfscope lower --target` of the program itself has the graphs and the code"


def planned_programs(trace: Trace) -> Iterator[Program]:
    """Yield a program per planned graph, forward and backward apart."""
    for loaded in trace.torch_plans:
        plan: TorchPlan = loaded.plan
        for graph in plan.graphs:
            name = f"{graph.function or 'graph'} [{graph.compile_id}] {graph.direction}"
            stages = [ProgramStage(name=stage, missing=_WHY) for stage in _MISSING]
            stages.append(ProgramStage(name="kernels", ops=tuple(_kernels(graph)), size=len(graph.kernels)))
            weight = sum(kernel.bytes + (kernel.flops or 0) / FLOPS_PER_BYTE for kernel in graph.kernels)
            fates = tuple(_between(name, plan, graph))
            yield Program(name=name, stages=tuple(stages), fates=fates, weight=weight * graph.calls)


def with_reasons(program: Program, planned: Sequence[Program]) -> Program:
    """A program of the log of a plan; values between kernels have inductor's reason, of the largest pair at the line.

    Lines that the log has no such values of, as torch logs no nodes of some kernels, have the rows of the plan.
    """
    pairs = [found for other in planned if other.name.startswith(f"{program.name} ") for found in other.fates]
    reasons = {PurePath(found.place).name: found for found in sorted(pairs, key=lambda found: found.bytes)}
    fates, explained = [], set()
    for found in program.fates:
        place = PurePath(found.place).name
        if found.what == "materialised" and place in reasons:
            explained.add(place)
            said = reasons[place].reason.partition("; read at ")[0]
            found = replace(found, reason=f"{found.reason}; {said}")
        fates.append(found)
    others = [replace(found, program=program.name) for found in pairs if PurePath(found.place).name not in explained]
    return replace(program, fates=(*fates, *others))


def _kernels(graph: PlannedGraph) -> Iterator[StageOp]:
    for kernel in graph.kernels:
        for line in kernel.places or (None,):
            yield StageOp(
                name=kernel.name, op=kernel.kind, file=line.file if line else None, line=line.line if line else None,
                result=kernel.dtype or "", phase=graph.direction, inside=kernel.name, scope=" ".join(kernel.ops),
                text=f"{kernel.name}: {', '.join(kernel.ops)}, reads {kernel.read_bytes:,} B, writes "
                f"{kernel.written_bytes:,} B",
            )  # fmt: skip


def _between(name: str, plan: TorchPlan, graph: PlannedGraph) -> Iterator[Fate]:
    """Values that inductor writes for a kernel that it did not fuse, with its reason."""
    groups: dict[tuple[str, str], Grouped] = defaultdict(Grouped)
    for pair in planned_pairs(plan):
        if pair.graph is not graph:
            continue
        made = next(iter(pair.first.places), None)
        read = [place_of(line.file, line.line) for line in pair.second.places]
        reason = f"inductor: {pair.refusal.reason}{f'; read at {listed(read[:3])}' if read else ''}"
        group = groups[place_of(made.file, made.line) if made else "", reason]
        group.add(pair.first.name, bytes_=pair.saved_bytes * graph.calls, kernel=pair.first.name, phase=graph.direction)
    for (where, reason), group in groups.items():
        yield fate("materialised", name, where, group, reason, by="compiler")
