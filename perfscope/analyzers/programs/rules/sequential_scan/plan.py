"""Loops over time in a PyTorch program: chains of small ops at one line, linear in their carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import ceil, log2

from msgspec import Struct

from perfscope.analyzers.graph import Flow, base_name, flow_of
from perfscope.analyzers.plans import PlanWork, bytes_ns, op_bytes, plan_works
from perfscope.analyzers.programs.scan import LAUNCH_NS
from perfscope.model.finding import Finding, Where
from perfscope.model.op_graph import OpGraph
from perfscope.model.severity import severity_of
from perfscope.model.torch_plan import TorchPlan
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

LINEAR = frozenset(
    {
        "aten.mul", "aten.mul_", "aten.add", "aten.add_", "aten.sub", "aten.sub_", "aten.addcmul", "aten.addcmul_",
        "aten.lerp", "aten.lerp_", "aten.neg", "aten.clone", "aten._to_copy",
    }
)  # fmt: skip
"""Ops whose result is linear in the carry if it enters through one operand."""


class EagerLoop(Struct, frozen=True, kw_only=True):
    """Ops of one line that form a chain, turn by turn, as long as the sequence."""

    file: str
    line: int
    function: str | None
    turns: int
    """Longest chain divided by the ops per turn."""
    forward: int
    """Ops of the line in the forward pass: one launch each in eager mode."""
    backward: int
    turn_bytes: int
    """Mean bytes that the ops of a turn read and write."""


def eager_loops(graph: OpGraph, least_turns: int) -> tuple[EagerLoop, ...]:
    """Return the lines whose forward ops form a chain of at least ``least_turns`` turns that is linear in its carry."""
    flow = flow_of(graph)
    lines: dict[tuple[str, int], list[int]] = defaultdict(list)
    backward: dict[tuple[str, int], int] = defaultdict(int)
    for index, op in enumerate(graph.ops):
        if op.view or op.file is None or op.line is None or op.recompute:
            continue
        if op.phase == "backward":
            backward[op.file, op.line] += 1
        elif op.phase in ("forward", "other"):
            lines[op.file, op.line].append(index)
    result = []
    for (file, line), members in lines.items():
        depth, names = _chain(graph, flow, members)
        if not names or depth < least_turns * len(names) or not names <= LINEAR:
            continue
        moved = sum(op_bytes(graph, flow, index) for index in members)
        turns = depth // len(names)
        instances = max(1, round(len(members) / depth))
        result.append(
            EagerLoop(
                file=file,
                line=line,
                function=graph.ops[members[0]].function,
                turns=turns,
                forward=len(members),
                backward=backward[file, line],
                turn_bytes=moved // max(1, turns * instances),
            )
        )
    return tuple(result)


def _chain(graph: OpGraph, flow: Flow, members: list[int]) -> tuple[int, set[str]]:
    """Return the length of the longest chain among ops, and the names of its ops.

    No names if a carry is multiplied by itself.
    """
    inside = set(members)
    depth: dict[int, int] = {}
    names: set[str] = set()
    for index in members:
        feeding = [writer for _, writer in flow.producers[index] if writer in inside]
        chained = [writer for writer in feeding if depth.get(writer, 0)]
        depth[index] = 1 + max((depth[writer] for writer in chained), default=0)
        if len(set(feeding)) > 1:
            return 0, set()
        if feeding:
            names.add(base_name(graph.ops[index]))
    return max(depth.values(), default=0), names


def scan_findings(trace: Trace, *, least_turns: int, advice: str) -> Iterator[Finding]:
    """Yield one finding per line whose loop costs more in launches than its work takes."""
    for work in trace.fact(plan_works):
        target, eager = trace.target, work.held.eager
        if target is None or eager is None:
            continue
        whole = work.as_run
        for loop in eager_loops(eager, least_turns):
            each = max(1, loop.forward // max(1, loop.turns))
            work_ns = bytes_ns(target, loop.turn_bytes)
            if work_ns >= LAUNCH_NS * each:
                continue
            compiled = kernels_at(work.held.plan, loop.file, loop.line)
            launches = compiled if work.held.plan.compiled_by == "program" else loop.forward + loop.backward
            rounds = 2 * ceil(log2(max(2, loop.turns)))
            parallel = rounds * LAUNCH_NS * each * 2 + 2 * bytes_ns(target, loop.turn_bytes * loop.turns) * 2
            saved = round(max(0, launches * LAUNCH_NS - parallel))
            if not saved:
                continue
            yield Finding(
                subject="sequential scan",
                title=f"a loop of {loop.turns:,} turns takes {launches:,} launches one after another",
                detail=f"{_also(work, loop, compiled)[0].upper()}{_also(work, loop, compiled)[1:]}. Its carry is "
                "linear, so a parallel prefix computes the same.",
                severity=severity_of(saved, max(whole.step.low, launches * LAUNCH_NS)),
                basis="modelled",
                cost_ns=saved,
                cost_ns_per_step=saved,
                where=Where(file=loop.file, line=loop.line),
                evidence=(
                    {
                        "turns": loop.turns,
                        "eager_launches_forward": loop.forward,
                        "eager_launches_backward": loop.backward,
                        "planned_kernels": compiled,
                        "moved_a_turn_bytes": loop.turn_bytes,
                        "modelled_work_a_turn_ns": work_ns,
                        "launches_ns_at_2_us": launches * LAUNCH_NS,
                        "parallel_ns": parallel,
                    },
                ),
                advice=f"{advice} A turn moves {format_bytes(loop.turn_bytes)}.",
            )


def _also(work: PlanWork, loop: EagerLoop, compiled: int) -> str:
    if work.held.plan.compiled_by == "program":
        return f"{loop.forward + loop.backward:,} without torch.compile"
    return f"compiled it would still take {compiled:,} kernels" if compiled else "torch.compile cannot compile it"


def kernels_at(plan: TorchPlan, file: str, line: int) -> int:
    """Return the launches per step of planned kernels that compute something of a line."""
    return sum(
        graph.calls
        for graph in plan.graphs
        for kernel in graph.kernels
        if any(plan_line.file == file and plan_line.line == line for plan_line in kernel.places)
    )
