"""Plans of one of several processes, by hand: steps of a few products, and what they exchange beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.analyzers.op_graph import GraphOp, GraphTensor, OpGraph
from perfscope.analyzers.torch_plan import HeldPlan, PlannedGraph
from perfscope.analyzers.trace import Trace
from perfscope.profiler.aot.torch_processes_file import (
    GraphCollectives,
    GraphRun,
    Moment,
    PlannedCollective,
    PlannedProcesses,
)
from tests.analyzers.plan_parts import graph, kernel, plan, product, trace_of

MIB = 1 << 20
OPS = 8
"""Products of a step, each of 0.1 ms at least, on lines of their own."""


def asked(at: int, until: int | None, **changes: Any) -> PlannedCollective:
    """A sum of gradients by DistributedDataParallel, asked for behind so many ops."""
    parts: dict[str, Any] = {
        "kind": "all-reduce", "op": "c10d.allreduce_", "bytes": 32 * MIB, "dtype": "bfloat16", "group": 0,
        "by": "DistributedDataParallel", "phase": "backward", "file": "train.py", "line": 30, "function": "step",
        "at": Moment(ops=at), "after": Moment(ops=at), "until": None if until is None else Moment(ops=until),
    }  # fmt: skip
    return PlannedCollective(**{**parts, **changes})


def mine(at: int, until: int | None, **changes: Any) -> PlannedCollective:
    """A sum that the program itself asks for."""
    return asked(at, until, **{"by": "the program", "phase": "forward", "line": 12, **changes})


def ops(down: int = 0) -> OpGraph:
    """The step, its code ``down`` lines further down."""
    products = tuple(
        GraphOp(
            index=at, name="aten.mm.default", phase="backward", inputs=(0, 1), outputs=(2 + at,), mutated=(),
            pointwise=False, reduction=False, view=False, flops=10**11 * (at + 1), module="", file="train.py",
            line=14 + at + down, function="step", sequence=None,
        )
        for at in range(OPS)
    )  # fmt: skip
    tensors = tuple(
        GraphTensor(storage=number, shape=(64, 64), dtype="bfloat16", device="cpu", bytes=8192)
        for number in range(2 + OPS)
    )
    return OpGraph(step=1, device="cpu", ops=products, tensors=tensors, live_out=frozenset(), parameters=frozenset())


def job(folder: Path, *rows: PlannedCollective, world: int = 8, down: int = 0, **changes: Any) -> Trace:
    """A program that compiles nothing, as the first of ``world`` processes; 0: it sets up none."""
    processes = PlannedProcesses(
        world_size=max(world, 1), backend="nccl", groups=(tuple(range(world)), (0, 1), (0,)), eager=rows,
    )  # fmt: skip
    made = plan(
        **{"compiled_by": "perfscope", "target": "h100x8", "processes": processes if world else None, **changes}
    )
    return _with(trace_of(folder, made, "h100x8"), eager=ops(down))


def compiled_job(folder: Path, *inside: PlannedCollective, outside: tuple[PlannedCollective, ...] = ()) -> Trace:
    """A program that compiles its step: a graph of two products that runs twice, an op outside of it between them."""
    kernels = [product(), product()]
    for one in reversed(inside):
        kernels.insert(one.at.ops, kernel("all_reduce", kind="collective", read_bytes=0, written_bytes=0))
    first: PlannedGraph = graph(*kernels, calls=2)
    processes = PlannedProcesses(
        world_size=8, backend="nccl", groups=(tuple(range(8)),), outside=outside,
        inside=(GraphCollectives(graph=0, collectives=inside),),
        runs=(GraphRun(graph=0, ops=0), GraphRun(graph=0, ops=OPS)),
    )  # fmt: skip
    made = plan(first, target="h100x8", processes=processes)
    return _with(trace_of(folder, made, "h100x8"), outside=ops())


def on(trace: Trace, target: str | None) -> Trace:
    """The same plan for another machine; ``None``: for one that nobody knows."""
    trace.target = None if target is None else parse_target(target, None)
    return trace


def held(trace: Trace) -> HeldPlan:
    """The one plan of a trace."""
    (found,) = trace.torch_plans
    return found


def _with(trace: Trace, **graphs: OpGraph) -> Trace:
    trace.torch_plans = tuple(replace(one, **graphs) for one in trace.torch_plans)
    return trace
