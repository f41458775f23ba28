"""Attention that a plan writes out: what of it inductor would still move between the products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.ops.attention import GraphAttention, find_attentions
from perfscope.analyzers.plans.time import PlanWork, bytes_ns, plan_works
from perfscope.model.finding import Finding, Where, severity_of
from perfscope.model.torch_plan import PlannedKernel
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share

SOFTMAX_OPS = frozenset({"aten._softmax", "aten._softmax_backward_data", "aten._safe_softmax"})

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedScores:
    """What the planned kernels around the softmax move in a step."""

    kernels: int
    bytes: int
    rows: tuple[tuple[str, str, int], ...]
    """(kernel, direction, bytes a step) of each."""


def planned_scores(work: PlanWork) -> PlannedScores:
    """Kernels that hold a softmax or its backward; the products beside them are not among them."""
    rows = [
        (kernel.name, one.graph.direction, one.graph.calls * kernel.bytes)
        for one in work.graphs
        for kernel in one.graph.kernels
        if _holds_softmax(kernel)
    ]
    calls = sum(one.graph.calls for one in work.graphs for kernel in one.graph.kernels if _holds_softmax(kernel))
    return PlannedScores(kernels=calls, bytes=sum(size for _, _, size in rows), rows=tuple(rows))


def _holds_softmax(kernel: PlannedKernel) -> bool:
    return kernel.kind in ("reduction", "pointwise") and bool(SOFTMAX_OPS & set(kernel.ops))


def compiled_attention_findings(trace: Trace, *, advice: str, least: float) -> Iterator[Finding]:
    """Of programs that compile themselves: one finding for each line that computes attention by its formula.

    Bytes are those of the planned kernels, shared out over the lines by the scores they make.
    """
    for work in trace.fact(plan_works):
        eager, target = work.held.eager, trace.target
        if work.held.plan.compiled_by != "program" or eager is None or target is None:
            continue
        found = [one for one in find_attentions(eager) if not one.by_sdpa]
        scores = planned_scores(work)
        whole = (work.compiled or work.inside).device.low
        every = sum(one.bytes for one in found)
        places: dict[tuple[str | None, int | None], list[GraphAttention]] = defaultdict(list)
        for one in found:
            op = eager.ops[one.matmuls[0]]
            places[op.file, op.line].append(one)
        for (file, line), members in places.items():
            moved = round(scores.bytes * sum(one.bytes for one in members) / every) if every else 0
            saved = bytes_ns(target, moved)
            if not moved or saved < least * whole:
                continue
            shape = "x".join(map(str, members[0].score_shape))
            yield Finding(
                subject="attention written out",
                title=f"attention is written out {len(members):,} times: compiled, {format_bytes(moved)} of {shape} "
                f"scores still go through memory, {format_ns(saved)} a step ({format_share(saved, whole)})",
                severity=severity_of(saved, whole),
                basis="modelled",
                cost_ns=saved,
                cost_ns_per_step=saved,
                cost_bytes=moved,
                where=Where(file=file, line=line),
                evidence=tuple(
                    {"kernel": name, "direction": direction, "moved_bytes": size}
                    for name, direction, size in scores.rows[:MAX_ROWS]
                ),
                advice=advice,
            )
