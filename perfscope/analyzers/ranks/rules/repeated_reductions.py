"""Gradients are reduced over the ranks in every pass of a step, where once per optimizer step would do.

Example:
    Before::

        for batch in batches:
            loss_of(model(batch)).backward()    # reduces over the ranks each time

    After::

        for number, batch in enumerate(batches):
            with contextlib.nullcontext() if number == len(batches) - 1 else model.no_sync():
                loss_of(model(batch)).backward()

Why it costs:
    With gradient accumulation a step has several forward and backward passes and one update. DistributedDataParallel
    reduces the gradients of all ranks in each backward pass except under `no_sync()`: N passes send N times the
    bytes that the update needs, and the ranks wait for each other N times. FSDP (`fully_shard`) also gathers the
    weights again in each pass.

How it is found:
    By the ranges of DistributedDataParallel or of `fully_shard`: forward passes after which gradients are reduced,
    against the steps of optimizers, both within the recorded steps. More passes than updates reduce too often. The
    cost is the time of the reductions, with FSDP also of the gathers, by the share that is not needed: on a device the
    time in which nothing else ran, on the host (gloo) the whole of it, of which other work may have hidden a part.

Fix:
    Reduce in the last pass of a step only; forward and backward both belong into the context::

        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss_of(model(batch)).backward()
        optimizer.step()

    With Accelerate: `with accelerator.accumulate(model):`. With FSDP, where memory allows to keep the weights and
    gradients whole until the update::

        fully_shard(model, reshard_after_forward=False)
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            loss_of(model(batch)).backward()
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.ranks.job import has_ranks
from perfscope.analyzers.spans import named_slices, union_of
from perfscope.analyzers.time import call_site, exposed_communication, step_windows, timed_cost, whole_ns
from perfscope.model.finding import NOWHERE, AbstainError, Finding, Scope, Where
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, RECORDED, Trace

LEAST_SHARE = 0.01
"""Smallest cost as a share of the steps; less is within the variation between steps."""

_FORWARD = ("DistributedDataParallel.forward", "FSDP::root_pre_forward")
_REDUCER = ("torch.distributed.ddp.reducer::", "torch::distributed::reducer::", "FSDP::post_backward_reduce")
_BACKWARD_END = "FSDP::root_post_backward_callback"
"""Runs in the call of `backward()`."""
_UPDATE = "Optimizer.step#"
_REDUCTIONS = ("all_reduce", "reduce_scatter")
"""gloo reports a reduce-scatter as an all-reduce."""
_ADVICE = {
    False: "Run all passes of a step but the last under `with model.no_sync():`, forward and backward both. "
    "With Accelerate: `with accelerator.accumulate(model):`.",
    True: "Call `model.set_requires_gradient_sync(last)` and `model.set_reshard_after_backward(last)` before a pass. "
    "With `fully_shard(..., reshard_after_forward=False)` weights are gathered once per update, if memory allows.",
}
"""By whether FSDP reduces them."""


def examined(trace: Trace) -> Scope:
    """Count the forward passes."""
    return Scope(len(_starts(trace, *_FORWARD)), "forward passes of DistributedDataParallel or FSDP")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding if more passes than updates reduce gradients."""
    if not has_ranks(trace):
        raise AbstainError(f"not recorded: {RECORDED['collectives']}", ("collectives",))
    forwards, updates = _starts(trace, *_FORWARD), len(_starts(trace, _UPDATE))
    reductions = _starts(trace, *_REDUCER)
    after = np.searchsorted(forwards, reductions, side="right") - 1
    passes = len(np.unique(after[after >= 0]))
    if not updates or passes <= updates:
        return
    sharded = bool(len(_starts(trace, _FORWARD[1])))
    spent = _collective_ns(trace, (*_REDUCTIONS, "all_gather") if sharded else _REDUCTIONS)
    cost, whole = round(spent * (1 - updates / passes)), whole_ns(trace)
    if cost < LEAST_SHARE * whole:
        return
    each = round(passes / updates)
    yield Finding(
        subject="gradient reductions",
        title=f"gradients are reduced{' and weights gathered' if sharded else ''} {each:,} times per optimizer step",
        detail=f"In the recorded steps {passes:,} backward passes reduce them for {updates:,} updates.",
        **timed_cost(trace, min(cost, whole), whole),
        where=_where(trace),
        covers_ns={} if _on_device(trace) else {"other_ranks": min(cost, whole)},
        evidence=({"passes_that_reduce": passes, "updates": updates, "collectives_ns": spent},),
        advice=_ADVICE[sharded],
    )


def _where(trace: Trace) -> Where:
    """Return the line of the backward pass: of DDP from the op graph, in which the host's reductions run.

    Else the forward pass.
    """
    ops = () if trace.op_graph is None else trace.op_graph.ops
    reduction = next((op for op in ops if op.name.startswith("c10d.allreduce") and op.file is not None), None)
    if reduction is not None:
        return Where(file=reduction.file, line=reduction.line)
    places = (_first_site(trace, name) for name in (_BACKWARD_END, *_FORWARD))
    return next((where for where in places if where is not None), NOWHERE)


def _first_site(trace: Trace, name: str) -> Where | None:
    """Return the call site of the first span of a name that has one."""
    rows = np.flatnonzero(named_slices(trace, lambda text: text == name))
    where = call_site(trace, int(rows[0])).where() if len(rows) else NOWHERE
    return where if where.file is not None else None


def _starts(trace: Trace, *names: str) -> Int64:
    """Return the sorted starts of the spans in the steps whose name has one of the prefixes ``names``."""
    starts = np.sort(trace.rows["slices"]["start_ns"][named_slices(trace, lambda name: name.startswith(names))])
    windows = trace.fact(step_windows)
    if not windows.count:
        return starts
    at = np.searchsorted(windows.starts, starts, side="right") - 1
    return np.asarray(starts[(at >= 0) & (starts < windows.ends[np.maximum(at, 0)])], np.int64)


def _on_device(trace: Trace) -> bool:
    return bool((trace.rows["collectives"]["kernel"] != MISSING).any())


def _collective_ns(trace: Trace, names: tuple[str, ...]) -> int:
    """Return the time of collectives: exposed time on a device, else all of it."""
    collectives = trace.rows["collectives"]
    codes = [code for code, text in enumerate(trace.strings) if text in names]
    rows = np.isin(collectives["name"], codes)
    kernels = collectives["kernel"][rows]
    if (kernels != MISSING).any():
        return int(trace.fact(exposed_communication)[kernels[kernels != MISSING]].sum())
    return union_of(collectives, np.flatnonzero(rows)).total()
