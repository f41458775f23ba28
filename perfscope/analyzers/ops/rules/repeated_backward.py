"""The backward pass of the same layers runs several times in a step.

Example:
    Before::

        for head_loss in losses:
            head_loss.backward(retain_graph=True)

    After::

        sum(losses).backward()

Why it costs: each backward pass runs the gradients of all layers below its loss. Several losses of one model share most
of these layers, and gradients are linear: one backward pass of the sum of the losses gives the same gradients in the
time of one. The same holds for a Jacobian that is computed row by row: its rows are one batched backward pass.

How it is found: autograd gives each node of a graph a number. A node that is evaluated again in the same step belongs
to a graph that was kept (`retain_graph=True`, `create_graph=True`) and run again. Nodes that build a graph themselves
(`create_graph=True`) are counted apart from the others, because a gradient penalty must run both once. Recomputation
by checkpoints makes new nodes and does not count. The cost is the time of all evaluations but the first: of the
device work that nothing else hides, or of the ops themselves without an accelerator. It is an upper bound, because the
sum of the losses still adds up their gradients. The place is the line of the forward pass with most of the time.

Fix:
    Add the losses, with their weights, and call `backward()` once::

        (loss_a + 0.5 * loss_b).backward()

    If a loss must not reach some of these layers (the discriminator's loss and the generator), detach their output for
    that loss: its graph then ends there. For the rows of a Jacobian::

        jacobian = torch.func.vmap(torch.func.jacrev(f))(x)
        rows = torch.autograd.grad(y, x, grad_outputs=eye, is_grads_batched=True)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.finding_spans import spans_of_slices
from perfscope.analyzers.ops.graph_time import spans_time
from perfscope.analyzers.ops.recompute import EVALUATE, autograd_nodes
from perfscope.analyzers.spans import named_slices, nearest_ancestor, removed_inside
from perfscope.analyzers.time import call_site, per_step, steps_at, whole_ns
from perfscope.model.finding import Finding
from perfscope.model.intervals import Int64
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, SliceKind, Trace

MIN_SHARE = 0.02
"""Smallest share of the steps: adding the losses costs a small op for each."""

MAX_ROWS = 10

_ADD = (
    "Add the losses and call `backward()` once: `(loss_a + loss_b).backward()`. Where a loss must not reach these "
    "layers, `detach()` their output for it."
)
_BATCH = (
    "Take all gradients in one call: `torch.autograd.grad(..., is_grads_batched=True)`, or "
    "`torch.func.vmap(torch.func.jacrev(f))(x)`."
)

examined = op_records


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for the graphs that `backward` runs again, and one for those that `grad` builds again."""
    rows = np.flatnonzero(trace.fact(autograd_nodes) & (trace.rows["slices"]["sequence"] != MISSING))
    builds = _build_a_graph(trace, rows)
    accumulated = named_slices(trace, lambda name: name.startswith(EVALUATE) and name.endswith("AccumulateGrad")).sum()
    for chosen, builder in ((rows[~builds], False), (rows[builds], True)):
        again, most = _again(trace, chosen)
        time = spans_time(trace, again)
        if not len(again) or time.exposed_ns < MIN_SHARE * whole_ns(trace):
            continue
        evidence = _lines(trace, again)
        where = call_site(trace, int(evidence[0][0]))
        what = "the gradients of the same outputs are taken" if builder else "the backward pass of the same graph runs"
        yield Finding(
            subject="repeated gradients" if builder else "repeated backward pass",
            title=f"{what} up to {most:,} times per step",
            detail=f"{len(again):,} evaluations of autograd nodes repeat an earlier one of their step.",
            severity=severity_of(time.exposed_ns, whole_ns(trace)),
            basis="measured",
            cost_ns=time.exposed_ns,
            cost_ns_per_step=per_step(trace, time.exposed_ns),
            where=where.where(),
            evidence=tuple(
                {"line": call_site(trace, row).where().label(), "repeated": count, "time_ns": ns}
                for row, count, ns in evidence
            ),
            spans=spans_of_slices(trace, again.tolist()),
            advice=_ADD if accumulated >= most and not builder else _BATCH,
            removes=removed_inside(trace, again),
        )


def _build_a_graph(trace: Trace, nodes: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether a node's first op builds a graph itself (``create_graph=True``)."""
    slices = trace.rows["slices"]
    is_op = slices["kind"] == SliceKind.OP
    inner = np.flatnonzero(is_op & (slices["sequence"] != MISSING) & (slices["forward_thread"] == 0))
    owners = nearest_ancestor(trace, slices["parent"][inner].astype(np.int64), trace.fact(autograd_nodes))
    return np.isin(nodes, owners)


def _again(trace: Trace, nodes: Int64) -> tuple[Int64, int]:
    """Return the rows of ``nodes`` that evaluate a node again in its step, and the most evaluations of one."""
    slices = trace.rows["slices"]
    nodes = nodes[np.argsort(slices["start_ns"][nodes], kind="stable")]
    steps = steps_at(trace, slices["start_ns"][nodes])
    seen: dict[tuple[int, ...], int] = defaultdict(int)
    again = []
    keys = zip(
        steps.tolist(), slices["sequence"][nodes].tolist(), slices["forward_thread"][nodes].tolist(),
        slices["name"][nodes].tolist(), strict=True,
    )  # fmt: skip
    for row, key in zip(nodes.tolist(), keys, strict=True):
        if key[0] == MISSING:
            continue
        if seen[key]:
            again.append(row)
        seen[key] += 1
    return np.array(again, np.int64), max(seen.values(), default=0)


def _lines(trace: Trace, rows: Int64) -> list[tuple[int, int, int]]:
    """Return (a row, repetitions, ns) by line of the forward pass, most time first."""
    slices = trace.rows["slices"]
    longest = rows[np.argsort(-(slices["end_ns"] - slices["start_ns"])[rows], kind="stable")]
    groups: dict[str, list[int]] = defaultdict(list)
    for row in longest.tolist():
        groups[call_site(trace, row).where().label()].append(row)
    found = [(members[0], len(members), spans_time(trace, np.array(members)).exposed_ns) for members in groups.values()]
    return sorted(found, key=lambda item: -item[2])[:MAX_ROWS]
