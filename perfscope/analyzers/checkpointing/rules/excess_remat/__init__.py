"""Forward work is computed a second time in the backward pass.

Why it costs:
    Activation checkpointing drops activations in the forward pass and runs that part of the forward
    again when the backward needs them. It buys memory with time. Where the memory would have been
    free, or where the dropped activations are small next to the work that rebuilds them, the time is
    spent for nothing.

How it is found:
    Inside the backward pass only a re-run forward gets autograd sequence numbers of its own. Ops that
    have one inside an autograd node, and all they call, are recomputation; where shapes were recorded,
    the same op with the same shapes must occur in the forward pass, which keeps a double backward out.
    The time is that of the kernels and copies they launched, or of the ops themselves on a program
    without an accelerator. The cost is the part of it that no other device work hides. It is an upper
    bound: keeping everything saves all of it and needs the memory. Whether that memory is free is said
    where allocator events were recorded. A compiler's own recomputation inside its kernels does not
    show in a trace.

    The line is that of the call of `checkpoint` where the op graph has it, because the fix is there; the evidence
    has the lines that run again.

    Where the op graph of a step was recorded (`perfscope run`) the step is simulated without the
    checkpoints, and the finding says which of these holds: the peak lies elsewhere, at a moment at which
    no checkpointed region is alive; the peak would be no higher without; everything would fit; another
    choice of regions has as low a peak for less time; some regions could be kept. Only the share of the
    time that need not be spent is the cost. Where the memory is needed there is no finding, and where
    the size of the device is not known that is said. What each region buys is in the evidence. That holds
    for both forms of `torch.utils.checkpoint` and for selective checkpointing.

    From the log of torch.compile: nodes that the forward and the backward graph both compute, from the same inputs in
    the same shape. Elementwise ops are computed again by design, which is cheaper than to save them, and are
    not flagged; matrix products, convolutions and attention are. The cost is the time of their kernels where
    the log tells them and a recording has them; else the finding is structural. Where a recording has the memory of
    such a step, the finding says why it is for nothing, with the results laid onto the measured curve from the forward
    that makes them to the end of its backward: the peak lies elsewhere, it is no higher with all of them saved, or the
    device has room for it. That peak is an upper bound. Where they may not fit there is no finding; where the memory,
    its times or the size of the device is not known, that is said.

    From a compiled XLA program: matrix products under `rematted_computation`, which is where
    `jax.checkpoint` runs forward again, times the trip counts of the loops around; and instructions that
    XLA itself cloned to free memory, told by the name they had before (never by `.remat` in the name),
    the first of each left out. Products that take less time than writing and reading back their result
    would (short inner dimension, as in blocked attention) are cheap and not counted; on a CPU those with
    batch dimensions, as JAX's own policy has it. The cost
    is the time of the kernels that hold them: measured while nothing else ran, or for a program alone their
    roofline in one run, on `--device` or an H100 or TPU v5e (assumed); programs for a CPU have measured time only.
    It is said for each MiB that keeping would take: the most expensive are the first to keep. The peak with the
    results kept is laid beside the program's own: recomputation is too much where the peak is elsewhere and stays as it
    is, or where the device has room: what the run's allocator may take, else of the device's memory, as recorded or
    as its vendor or compiler states it, what JAX takes by itself (three quarters on a GPU). Where it would not fit,
    there is no finding: it is needed.

Fix:
    Save what is expensive to rebuild and recompute only what is cheap (norms, activations, casts)::

        from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

        def policy(ctx, op, *args, **kwargs):
            costly = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.convolution.default}
            return CheckpointPolicy.MUST_SAVE if op in costly else CheckpointPolicy.PREFER_RECOMPUTE

        y = checkpoint(block, x, use_reentrant=False,
                       context_fn=lambda: create_selective_checkpoint_contexts(policy))

    or checkpoint every second block only, or none where the memory is there. In JAX::

        f = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfscope.analyzers.ops import spans_of_regions
from perfscope.analyzers.ops.recompute import EVALUATE, RecomputeRegion, recompute_regions
from perfscope.analyzers.time import (
    NO_WORK,
    UNKNOWN_SITE,
    call_site,
    graph_op,
    named_slices,
    per_step,
    program_records,
    removed_inside,
    whole_ns,
)
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Where
from perfscope.model.severity import severity_of
from perfscope.model.trace import RECORDED, Trace
from perfscope.model.units import format_bytes, format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.checkpointing.remat_bargain import Bargain, RegionBargain

AUTOGRAD = ("host_ops", "autograd")
"""What a PyTorch recording must hold; a compiled XLA program does as well."""

MIN_SHARE = 0.01
"""Of the steps' time: recomputing less is a good bargain whatever memory it bought."""

MAX_ROWS = 20

MOST_ASKED = 50
"""Ops of a region that are asked for their line: the first few restore the random state, inside torch."""


_BACKWARD_NODE = "autograd::engine::evaluate_function"


def examined(trace: Trace) -> Scope:
    """Graphs of a compiled backward pass, ops of an eager one, instructions of XLA programs."""
    log, autograd = trace.compile_log, all(key in trace.recorded for key in AUTOGRAD)
    graphs = sum(graph.direction == "backward" for graph in log.graphs) if log is not None else 0
    if not autograd and trace.hlo:
        return program_records(trace)
    nodes = int(named_slices(trace, lambda name: name.startswith(_BACKWARD_NODE)).sum()) if autograd else 0
    return Scope(graphs + nodes, "ops of a backward pass in the recording")


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each place in the program whose recomputation costs at least ``MIN_SHARE``."""
    absent = [key for key in AUTOGRAD if key not in trace.recorded]
    compiled = trace.compile_log is not None and any(
        graph.direction == "backward" for graph in trace.compile_log.graphs
    )
    if compiled:
        from perfscope.analyzers.checkpointing.rules.excess_remat.compiled import compiled_findings

        yield from compiled_findings(trace, MIN_SHARE)
    if not absent:
        yield from _from_autograd(trace)
    elif "hlo" in trace.recorded:
        from perfscope.analyzers.checkpointing.rules.excess_remat.program import program_findings

        yield from program_findings(trace)
    elif not compiled:
        raise AbstainError("not recorded: " + "; ".join(RECORDED[key] for key in absent), absent)


def _from_autograd(trace: Trace) -> Iterable[Finding]:
    from perfscope.analyzers.checkpointing.remat_bargain import remat_bargain

    whole = whole_ns(trace)
    regions = trace.fact(recompute_regions)
    total = sum(region.time.exposed_ns for region in regions)
    if not regions or total < MIN_SHARE * whole:
        return
    bargain = trace.fact(remat_bargain)
    if bargain is not None and bargain.verdict == "needed":
        return
    bought = _by_region(regions, bargain)
    by_place: dict[Where, list[RecomputeRegion]] = {}
    for region in regions:
        by_place.setdefault(_call(trace, region) or _place(trace, region), []).append(region)
    for where, members in by_place.items():
        yield _finding(trace, where, members, whole, bargain, bought)


def _call(trace: Trace, region: RecomputeRegion) -> Where | None:
    """Where the program calls the checkpoint of the region, which is where the fix is; ``None``: not recorded."""
    ops = (graph_op(trace, row) for row in region.ops[:MOST_ASKED])
    call = next((op.checkpoint for op in ops if op is not None and op.checkpoint is not None), None)
    return None if call is None else Where(file=call[0], line=call[1], module=_place(trace, region).module)


def _place(trace: Trace, region: RecomputeRegion) -> Where:
    """Where the re-run forward is written. Numbered copies of a module (Block_0, Block_1) are one place."""
    sites = [site for op in region.ops[:MOST_ASKED] if (site := call_site(trace, op)).file is not None]
    site = next((site for site in sites if site.exact), sites[0] if sites else UNKNOWN_SITE)
    module = site.module.rstrip("0123456789").rstrip("_.") if site.module else None
    return Where(file=site.file, line=site.line, module=module)


def _by_region(regions: Sequence[RecomputeRegion], bargain: Bargain | None) -> dict[int, RegionBargain]:
    """By autograd node that ran a region again what that region buys; empty where they do not correspond.

    In each step the regions run again in the order of their backward.
    """
    if bargain is None or not bargain.regions or len(regions) % len(bargain.regions):
        return {}
    begins = {region.name: region.backward[0] for region in bargain.model.regions}
    order = sorted(bargain.regions, key=lambda region: begins[region.name])
    nodes = sorted(region.node for region in regions)
    return {node: order[index % len(order)] for index, node in enumerate(nodes)}


def _finding(
    trace: Trace,
    where: Where,
    members: list[RecomputeRegion],
    whole: int,
    bargain: Bargain | None,
    bought: Mapping[int, RegionBargain],
) -> Finding:
    from perfscope.analyzers.checkpointing.remat_bargain import what_to_do, why

    time = sum((region.time for region in members), NO_WORK)
    ops = sum(len(region.ops) for region in members)
    hidden = time.sum_ns - time.exposed_ns
    worst = sorted(members, key=lambda region: -region.time.exposed_ns)
    detail = f"{ops:,} ops in {len(members):,} regions, {format_ns(time.sum_ns)} in all"
    repeated = _place(trace, worst[0]).label()
    if repeated != where.label():
        detail += f", most of it at {repeated}"
    if hidden > 0:
        detail += f", {format_ns(hidden)} of it hidden under other work"
    avoidable = 1.0
    if bargain is not None:
        detail += f"; {why(bargain)}"
        avoidable = bargain.avoidable
    cost = round(time.exposed_ns * avoidable)
    return Finding(
        subject="recomputed forward",
        title=f"forward work runs again in backward: {len(members):,} region{'' if len(members) == 1 else 's'}",
        detail=f"{detail}.",
        severity=severity_of(cost, whole),
        basis="measured",
        cost_ns=cost,
        cost_ns_per_step=per_step(trace, cost),
        where=where,
        evidence=tuple(_row(trace, region, bargain, bought) for region in worst[:MAX_ROWS]),
        spans=spans_of_regions(trace, (region.ops for region in members)),
        advice=_advice(trace) if bargain is None else what_to_do(bargain) + _room(trace, bargain),
        removes=removed_inside(trace, np.array([op for region in members for op in region.ops]), 1 - avoidable),
    )


def _room(trace: Trace, bargain: Bargain) -> str:
    if bargain.room_bytes is not None or bargain.verdict in ("elsewhere", "not lowered"):
        return ""
    return "How much memory the device has was not recorded."


def _row(
    trace: Trace, region: RecomputeRegion, bargain: Bargain | None, bought: Mapping[int, RegionBargain]
) -> dict[str, Cell]:
    names = trace.rows["slices"]["name"]
    ops = Counter(trace.text(int(names[row])).rpartition("::")[2] for row in region.ops)
    row: dict[str, Cell] = {
        "at": _place(trace, region).label(),
        "module": _place(trace, region).module,
        "asked_by": trace.text(int(names[region.node])).removeprefix(EVALUATE).lstrip(": "),
        "recomputed": ", ".join(f"{name} x{count}" if count > 1 else name for name, count in ops.most_common(5)),
        "ops": len(region.ops),
        "kernels": region.time.kernels,
        "recompute_ns": region.time.sum_ns,
        "exposed_ns": region.time.exposed_ns,
    }
    if bargain is None:
        return row
    region_bargain = bought.get(region.node)
    known = ("at", "ops", "recompute_ns", "exposed_ns")
    return {
        "region": row["module"] if region_bargain is None else region_bargain.name,
        **{key: row[key] for key in known},
        "form": _form(row["asked_by"], region_bargain),
        "held_bytes": None if region_bargain is None else region_bargain.held_bytes,
        "bought_bytes": None if region_bargain is None else region_bargain.bought_bytes,
    }


def _form(asked_by: Cell, region: RegionBargain | None) -> str | None:
    """Which form of checkpointing it is."""
    if "CheckpointFunction" in str(asked_by):
        return "reentrant"
    if region is None:
        return None
    return "selective" if region.policy == "selective" else "non-reentrant"


def _advice(trace: Trace) -> str:
    advice = (
        "Checkpoint fewer blocks, or only what is cheap: a policy that saves matmuls, convolutions and attention. "
        "checkpoint(fn, *args, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)) "
        "takes one. Saving activations needs memory: "
    )
    return advice + _headroom(trace)


def _headroom(trace: Trace) -> str:
    """What the allocator events say of free memory, in words."""
    memory, devices = trace.rows["memory"], trace.rows["devices"]
    in_use = memory["allocated_bytes"][memory["on_device"]]
    sizes = devices["memory_bytes"]
    if not len(in_use) or not len(sizes) or sizes.min() <= 0:
        return "how much is free was not recorded (record allocator events to know)."
    peak, size = int(in_use.max()), int(sizes.min())
    return f"{format_bytes(max(0, size - peak))} of {format_bytes(size)} were free at the recorded peak."
