"""Forward work is computed a second time in the backward pass.

Example:
    Before::

        y = checkpoint(block, x, use_reentrant=False)

    After::

        contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
        y = checkpoint(block, x, use_reentrant=False, context_fn=contexts)

Why it costs:
    Activation checkpointing drops activations in the forward pass and runs that part of the forward
    again when the backward needs them. It buys memory with time. Where the memory would have been
    free, or where the dropped activations are small next to the work that rebuilds them, the time is
    wasted.

How it is found:
    Inside the backward pass only a repeated forward gets new autograd sequence numbers. Ops that have one inside an
    autograd node, and all ops they call, are recomputation, unless every op of the node has one: that is a double
    backward (`create_graph=True`). The time is that of the kernels and copies they launched, or of the ops themselves
    in a program without an accelerator. The cost is the part of it that other device work does not hide. It is an
    upper bound: keeping everything saves all of it and needs the memory. If allocator events were recorded, the
    finding has the free memory. Recomputation by a compiler inside its kernels is not visible in a trace.

    The place is the call of `checkpoint` if the op graph has it, because the fix is there; the evidence has the lines
    that run again.

    If the op graph of a step was recorded (`perfscope run`), the step is simulated without the checkpoints, and the
    finding gives the first of these reasons that holds: the peak lies elsewhere, at a moment at which no checkpointed
    region is alive; the peak would not be higher without; everything would fit; another choice of regions has as low a
    peak for less time; some regions could be kept. The cost is only the avoidable share of the time. If the memory is
    needed there is no finding, and an unknown size of the device is noted. The benefit of each region is in the
    evidence. This covers both forms of `torch.utils.checkpoint` and selective checkpointing.

    From the log of torch.compile: nodes that the forward and the backward graph both compute, from the same inputs in
    the same shape. Elementwise ops are recomputed by design, because that is cheaper than saving them, and are not
    flagged; matrix products, convolutions and attention are. The cost is the time of their kernels if the log names
    them and a recording has them; else the finding is structural. If a recording has the memory of such a step, the
    results are added to the measured curve, from the forward that makes them to the end of its backward, and the
    finding has the reason: the peak lies elsewhere, it is not higher with all of them saved, or the device has room for
    it. That peak is an upper bound. If they may not fit there is no finding; unknown memory, times or device size are
    noted.

    From a compiled XLA program: matrix products under `rematted_computation`, where `jax.checkpoint` runs forward work
    again, times the trip counts of the enclosing loops; and instructions that XLA itself cloned to free memory,
    recognised by their earlier name (never by `.remat` in the name), without the first of each. Products that take less
    time than writing and reading back their result (short inner dimension, as in blocked attention) are cheap and not
    counted; on a CPU, products with batch dimensions are not counted, as in JAX's own policy. The cost is the time of
    their kernels: measured while nothing else ran, or, without a recording, their roofline in one run on `--device`, or
    on an H100 or TPU v5e (assumed); programs for a CPU have measured time only. It is also given per MiB that keeping
    would take: the most expensive results should be kept first. The peak with the results kept is compared with the
    program's own: recomputation is excessive if the peak is elsewhere and stays equal, or if the device has room. Room
    is the limit of the run's allocator, else the part of the device's memory (as recorded, or stated by its vendor or
    compiler) that JAX takes by default (three quarters on a GPU). If it would not fit, there is no finding.

Fix:
    Save what is expensive to rebuild and recompute only what is cheap (norms, activations, casts)::

        from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

        def policy(ctx, op, *args, **kwargs):
            costly = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.convolution.default}
            return CheckpointPolicy.MUST_SAVE if op in costly else CheckpointPolicy.PREFER_RECOMPUTE

        y = checkpoint(block, x, use_reentrant=False,
                       context_fn=lambda: create_selective_checkpoint_contexts(policy))

    or checkpoint only every second block, or no block if the memory suffices. In JAX::

        f = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfscope.analyzers.examined import program_records
from perfscope.analyzers.ops import EVALUATE, RecomputeRegion, recompute_regions, spans_of_regions
from perfscope.analyzers.spans import NO_WORK, named_slices, removed_inside
from perfscope.analyzers.time import UNKNOWN_SITE, call_site, graph_op, per_step, whole_ns
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Where
from perfscope.model.severity import severity_of
from perfscope.model.trace import RECORDED, Trace
from perfscope.model.units import format_bytes, format_ns

if TYPE_CHECKING:
    from perfscope.plugins.memory_advice.remat_bargain import Bargain, RegionBargain

AUTOGRAD = ("host_ops", "autograd")
"""Required contents of a PyTorch recording; a compiled XLA program also suffices."""

MIN_SHARE = 0.01
"""Least share of the steps' time: less recomputation is acceptable whatever memory it saves."""

MAX_ROWS = 20

MOST_OPS = 50
"""Most ops of a region whose line is looked up: the first few restore the random state, inside torch."""


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
    """One finding per place in the program whose recomputation costs at least ``MIN_SHARE``."""
    absent = [key for key in AUTOGRAD if key not in trace.recorded]
    compiled = trace.compile_log is not None and any(
        graph.direction == "backward" for graph in trace.compile_log.graphs
    )
    if compiled:
        from perfscope.plugins.memory_advice.rules.excess_remat.compiled import compiled_findings

        yield from compiled_findings(trace, MIN_SHARE)
    if not absent:
        yield from _from_autograd(trace)
    elif "hlo" in trace.recorded:
        from perfscope.plugins.memory_advice.rules.excess_remat.program import program_findings

        yield from program_findings(trace)
    elif not compiled:
        raise AbstainError("not recorded: " + "; ".join(RECORDED[key] for key in absent), absent)


def _from_autograd(trace: Trace) -> Iterable[Finding]:
    from perfscope.plugins.memory_advice.remat_bargain import remat_bargain

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
    """The call of the region's checkpoint in the program, where the fix is; ``None`` if not recorded."""
    ops = (graph_op(trace, row) for row in region.ops[:MOST_OPS])
    call = next((op.checkpoint for op in ops if op is not None and op.checkpoint is not None), None)
    return None if call is None else Where(file=call[0], line=call[1], module=_place(trace, region).module)


def _place(trace: Trace, region: RecomputeRegion) -> Where:
    """Source place of the repeated forward. Numbered copies of a module (Block_0, Block_1) count as one place."""
    sites = [site for op in region.ops[:MOST_OPS] if (site := call_site(trace, op)).file is not None]
    site = next((site for site in sites if site.exact), sites[0] if sites else UNKNOWN_SITE)
    module = site.module.rstrip("0123456789").rstrip("_.") if site.module else None
    return Where(file=site.file, line=site.line, module=module)


def _by_region(regions: Sequence[RecomputeRegion], bargain: Bargain | None) -> dict[int, RegionBargain]:
    """By autograd node that ran a region again the benefit of that region; empty if they do not correspond.

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
    from perfscope.plugins.memory_advice.remat_bargain import what_to_do, why

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
    return "The device's memory size was not recorded."


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


def _form(place: Cell, region: RegionBargain | None) -> str | None:
    """The form of checkpointing used."""
    if "CheckpointFunction" in str(place):
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
    """Free memory according to the allocator events, in words."""
    memory, devices = trace.rows["memory"], trace.rows["devices"]
    in_use = memory["allocated_bytes"][memory["on_device"]]
    sizes = devices["memory_bytes"]
    if not len(in_use) or not len(sizes) or sizes.min() <= 0:
        return "free memory was not recorded (record allocator events to see it)."
    peak, size = int(in_use.max()), int(sizes.min())
    return f"{format_bytes(max(0, size - peak))} of {format_bytes(size)} were free at the recorded peak."
