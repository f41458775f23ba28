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
    bytes that the update needs, and the ranks wait for each other N times.

How it is found:
    By the ranges of DistributedDataParallel: forward passes after which its reducer works, against the steps of
    optimizers, both within the recorded steps. More passes than updates reduce too often. The cost is the time
    of the all-reduces by the share that is not needed: on a device the time in which nothing else ran, on the host
    (gloo) the whole of it, of which the backward pass may have hidden a part.

Fix:
    Reduce in the last pass of a step only; forward and backward both belong into the context::

        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss_of(model(batch)).backward()
        optimizer.step()

    With Accelerate: `with accelerator.accumulate(model):`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfscope.analyzers.ranks.job import has_ranks
from perfscope.analyzers.spans import named_slices, union_of
from perfscope.analyzers.time import call_site, exposed_communication, step_windows, timed_cost, whole_ns
from perfscope.model.finding import AbstainError, Finding, Scope, Where
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, RECORDED, Trace

LEAST_SHARE = 0.01
"""Smallest cost as a share of the steps; less is within the variation between steps."""

_FORWARD = "DistributedDataParallel.forward"
_REDUCER = ("torch.distributed.ddp.reducer::", "torch::distributed::reducer::")
_UPDATE = "Optimizer.step#"
_ALL_REDUCE = "all_reduce"


def examined(trace: Trace) -> Scope:
    """Count the forward passes of DistributedDataParallel."""
    return Scope(len(_starts(trace, _FORWARD)), "forward passes of DistributedDataParallel")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding if more passes than updates reduce gradients."""
    if not has_ranks(trace):
        raise AbstainError(f"not recorded: {RECORDED['collectives']}", ("collectives",))
    forwards, updates = _starts(trace, _FORWARD), len(_starts(trace, _UPDATE))
    reductions = _starts(trace, *_REDUCER)
    after = np.searchsorted(forwards, reductions, side="right") - 1
    passes = len(np.unique(after[after >= 0]))
    if not updates or passes <= updates:
        return
    cost, whole = round(_reduce_ns(trace) * (1 - updates / passes)), whole_ns(trace)
    if cost < LEAST_SHARE * whole:
        return
    each = round(passes / updates)
    yield Finding(
        subject="gradient reductions",
        title=f"gradients are reduced {each:,} times per optimizer step",
        detail=f"In the recorded steps {passes:,} backward passes reduce them for {updates:,} updates.",
        **timed_cost(trace, min(cost, whole), whole),
        where=_where(trace),
        covers_ns={} if _on_device(trace) else {"other_ranks": min(cost, whole)},
        evidence=({"passes_that_reduce": passes, "updates": updates, "all_reduce_ns": _reduce_ns(trace)},),
        advice="Run all passes of a step but the last under `with model.no_sync():`, forward and backward both. "
        "With Accelerate: `with accelerator.accumulate(model):`.",
    )


def _where(trace: Trace) -> Where:
    """Return the line of the backward pass from the op graph, in which the host's reductions run.

    Else the forward pass.
    """
    ops = () if trace.op_graph is None else trace.op_graph.ops
    reduction = next((op for op in ops if op.name.startswith("c10d.allreduce") and op.file is not None), None)
    if reduction is not None:
        return Where(file=reduction.file, line=reduction.line)
    return call_site(trace, int(np.flatnonzero(named_slices(trace, _is_forward))[0])).where()


def _is_forward(name: str) -> bool:
    return name == _FORWARD


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


def _reduce_ns(trace: Trace) -> int:
    """Return the time of the all-reduces: exposed time on a device, else all of it."""
    collectives = trace.rows["collectives"]
    codes = [code for code, text in enumerate(trace.strings) if text == _ALL_REDUCE]
    rows = np.isin(collectives["name"], codes)
    kernels = collectives["kernel"][rows]
    if (kernels != MISSING).any():
        return int(trace.fact(exposed_communication)[kernels[kernels != MISSING]].sum())
    return union_of(collectives, np.flatnonzero(rows)).total()
