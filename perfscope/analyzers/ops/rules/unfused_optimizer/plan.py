"""The optimizer's step of a plan: one op a parameter, op by op over lists, or fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from perfscope.analyzers.ops.graph_time import flow_of, short_name
from perfscope.analyzers.ops.optimizer_steps import PASSES, fused_share
from perfscope.analyzers.plans.time import PlanWork, bytes_ns, launches, op_bytes, plan_works, shortest_ns
from perfscope.model.finding import Finding, Where, severity_of
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share


def optimizer_findings(
    trace: Trace, *, fewest: int, least: float, have_fused: frozenset[str], advice: Callable[[str, bool], str]
) -> Iterator[Finding]:
    """One finding where the optimizer updates in a loop, or over lists where it could be fused.

    ``fewest``: update ops of a loop below which there is nothing to batch; ``advice(optimizer, loop)``.
    """
    target = trace.target
    for work in trace.fact(plan_works):
        graph = _graph(work)
        if graph is None or target is None:
            continue
        updates = [op for op in graph.ops if op.phase == "optimizer" and launches(op)]
        names = Counter(short_name(op) for op in updates)
        optimizers = work.held.plan.optimizers
        optimizer = optimizers[0] if len(optimizers) == 1 else "the optimizer"
        if any(name.startswith("_fused_") for name in names):
            continue
        listed = any(name.startswith("_foreach_") for name in names)
        ops = Counter(
            {name.removeprefix("_foreach_"): n for name, n in names.items() if name.startswith("_foreach_") == listed}
        )
        ops = Counter({name: count for name, count in ops.items() if name in PASSES})
        if not ops or (listed and optimizer not in have_fused) or (not listed and ops.total() < fewest):
            continue
        flow = flow_of(graph)
        moved = sum(op_bytes(graph, flow, op.index) for op in updates)
        kept = fused_share(optimizer, ops)
        saved_bytes = round(moved * (1 - kept))
        saved = bytes_ns(target, saved_bytes) + shortest_ns(target) * (len(updates) - 1)
        whole = _step_ns(work)
        if saved < least * whole:
            continue
        said = advice(optimizer, not listed)
        yield _finding(
            updates, optimizer, ops, saved=saved, saved_bytes=saved_bytes, whole=whole, listed=listed, advice=said
        )


def _finding(
    updates: list[GraphOp],
    optimizer: str,
    ops: Counter[str],
    *,
    saved: int,
    saved_bytes: int,
    whole: int,
    listed: bool,
    advice: str,
) -> Finding:
    form = "op by op over lists (foreach)" if listed else "one parameter at a time"
    first = next((op for op in updates if op.file is not None), updates[0])
    return Finding(
        subject=f"{optimizer} with foreach" if listed else f"{optimizer} in a loop",
        title=f"{optimizer} updates {form}: {len(updates):,} launches a step; fused saves up to {format_ns(saved)} and "
        f"{format_bytes(saved_bytes)} of each step ({format_share(saved, whole)})",
        severity="low" if listed else severity_of(saved, whole),
        basis="modelled",
        cost_ns=saved,
        cost_ns_per_step=saved,
        cost_bytes=saved_bytes,
        where=Where(op=f"{optimizer}.step", file=first.file, line=first.line),
        evidence=(
            {
                "launches": len(updates),
                "update_ops": ops.total(),
                "ops": ", ".join(f"{name} x{count}" for name, count in ops.most_common(8)),
                "saved_bytes": saved_bytes,
                "saved_ns": saved,
            },
        ),
        advice=advice,
    )


def _graph(work: PlanWork) -> OpGraph | None:
    """The ops the optimizer is among: compiled or not, it runs outside of graphs unless the program compiles it."""
    return work.held.outside if work.held.plan.compiled_by == "program" else work.held.eager


def _step_ns(work: PlanWork) -> int:
    found = (work.compiled or work.inside) if work.held.plan.compiled_by == "program" else (work.eager or work.inside)
    return found.device.low
