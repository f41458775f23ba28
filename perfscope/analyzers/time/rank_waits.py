"""Waiting of the steps' thread for other ranks: collectives and messages that the host itself moves (gloo, MPI).

c10d marks each of them on the calling thread or on the backend's own, from begin to end. While one is in flight and the
thread runs no op, it waits for other ranks or for their data. If stacks were sampled, only samples that wait count,
because Python may run during a collective.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.spans import named_slices
from perfscope.analyzers.time.samples import SampledPieces, shown_kinds, waiting_samples
from perfscope.model.collectives import operation_of
from perfscope.model.frames.kinds import ENGINES, FrameKind
from perfscope.model.intervals import EMPTY, Intervals, difference, intersection, numbered, union
from perfscope.model.trace import MISSING, SliceKind, Trace

BACKEND_OPS = ("c10d::", "_c10d_functional::")
"""Prefixes of ops that call the backend and may wait for the other ranks themselves."""


LEAST_WAIT_NS = 100_000
"""Shortest wait between two ops: Python and dispatch take 5 to 50 us, also during a collective."""

FORWARDS = ("DistributedDataParallel.forward", "FSDP::root_pre_forward")

REDUCTIONS = ("all_reduce", "reduce_scatter")
"""Collectives that reduce gradients; gloo reports the reduce-scatter of FSDP as an all-reduce."""

OPTIMIZER = "Optimizer.step#"

LEAST_STEPS = 2
"""Minimum number of optimizer steps that agree: the first may follow a partly recorded accumulation."""

SENDS, RECEIVES = ("send",), ("recv",)

MessageKind = Literal["pipeline", "exchange", "turns"]

PIPELINE = "torch/distributed/pipelining/"
"""Frames of PyTorch's pipeline schedules. Stages of 1F1B send activations while they receive gradients."""

EXCHANGED = 0.5
"""Share of the time of receives during which the same rank sends from which ranks exchange data."""


def in_flight(trace: Trace) -> Intervals:
    """Return when a host collective or message was in flight."""
    rows = trace.rows["collectives"]["slice"]
    rows = rows[rows != MISSING]
    slices = trace.rows["slices"]
    return union(slices["start_ns"][rows], slices["end_ns"][rows]) if len(rows) else EMPTY


def waits_in_calls(trace: Trace, thread: int) -> Intervals:
    """Return the time of the thread in calls of the backend, without anything inside them."""
    flying = in_flight(trace)
    if not len(flying.starts):
        return EMPTY
    slices = trace.rows["slices"]
    ops = (slices["kind"] == SliceKind.OP) & (slices["thread"] == thread)
    calls = ops & named_slices(trace, lambda text: text.startswith(BACKEND_OPS))
    parents = slices["parent"]
    inside = ops & ~calls & (parents != MISSING)
    inside[inside] = calls[parents[inside]]
    within = union(slices["start_ns"][calls], slices["end_ns"][calls])
    work = union(slices["start_ns"][inside], slices["end_ns"][inside])
    return intersection(difference(within, work), flying)


def waits_between_ops(trace: Trace, free: Intervals, pieces: SampledPieces | None) -> Intervals:
    """Return the waiting in ``free``, in which the thread runs nothing recorded.

    ``pieces``: its sampled stacks there.
    """
    long = free.ends - free.starts >= LEAST_WAIT_NS
    flying = intersection(in_flight(trace), Intervals(free.starts[long], free.ends[long]))
    if pieces is None or not len(flying.starts):
        return flying
    kinds = shown_kinds(trace, pieces.samples)
    # The line of `backward()` both computes and waits: no Python runs between its ops.
    runs = ~trace.fact(waiting_samples)[pieces.samples] & ~np.isin(kinds, [*ENGINES, FrameKind.COLLECTIVE])
    runs |= kinds == int(FrameKind.SLEEP)
    return difference(flying, union(pieces.starts[runs], pieces.ends[runs]))


def reductions_per_update(trace: Trace) -> int:
    """Return how often DDP or FSDP reduced the gradients per optimizer step.

    1 if each reduction is followed by one, 0 if unknown.

    A reduction is a forward pass of them with a reduction before the next one. A forward pass without any, as under
    ``no_sync()``, or two of them before one backward pass, count once.
    """
    slices, collectives = trace.rows["slices"], trace.rows["collectives"]
    annotations = slices["kind"] == SliceKind.ANNOTATION
    forwards = np.sort(slices["start_ns"][annotations & named_slices(trace, lambda text: text.startswith(FORWARDS))])
    updates = np.sort(slices["start_ns"][annotations & _named(trace, OPTIMIZER)])
    codes, _ = numbered(collectives["name"])
    reduces = [code for code in codes.tolist() if operation_of(trace.text(code)) in REDUCTIONS]
    rows = np.flatnonzero(np.isin(collectives["name"], reduces))
    begins = collectives["start_ns"][rows].copy()
    kernels, calls = trace.rows["kernels"], trace.rows["calls"]
    kernel = collectives["kernel"][rows]
    call = np.where(kernel == MISSING, MISSING, kernels["call"][np.maximum(kernel, 0)]) if len(kernels) else kernel
    launched = call != MISSING
    begins[launched] = calls["start_ns"][call[launched]]  # for device work the launch, because the work runs later
    if len(updates) <= LEAST_STEPS or not len(forwards) or not len(begins):
        return 0
    reduced = forwards[np.diff(np.searchsorted(np.sort(begins), np.append(forwards, np.inf))) > 0]
    per_update = np.diff(np.searchsorted(reduced, updates))
    return int(per_update.min())


def _named(trace: Trace, prefix: str) -> npt.NDArray[np.bool_]:
    return named_slices(trace, lambda text: text.startswith(prefix))


def reduced_too_often(trace: Trace) -> str:
    """Return the advice if gradients are reduced several times per optimizer step; ``""`` otherwise."""
    count = trace.fact(reductions_per_update)
    if count < 2:
        return ""
    fix = (
        "Call `set_requires_gradient_sync(False)` of the FSDP model before all passes of a step but the last"
        if named_slices(trace, lambda text: text.startswith(FORWARDS[1])).any()
        else "Run all but the last backward pass under `no_sync()` of the DDP model"
    )
    return f"{fix}: gradients are reduced {count:,} times per optimizer step."


def message_kind(trace: Trace) -> MessageKind | None:
    """Return how ranks use point-to-point messages, if these have most of the host's communication time; else None.

    ``exchange``: a rank sends while it receives, as around a ring or between neighbours of a grid. ``turns``: it does
    both, one after the other. ``pipeline``: it only sends or only receives.
    """
    collectives = trace.rows["collectives"]
    rows = np.flatnonzero(collectives["slice"] != MISSING)
    lasted = (collectives["end_ns"] - collectives["start_ns"])[rows]
    sends, receives = (_spans_of(trace, rows, names) for names in (SENDS, RECEIVES))
    both = np.isin(collectives["name"][rows], _codes(trace, (*SENDS, *RECEIVES, "send_recv")))
    if not 2 * lasted[both].sum() > lasted.sum():
        return None
    if any(PIPELINE in text for text in trace.strings):
        return "pipeline"
    together = intersection(sends, receives).total()
    if together >= EXCHANGED * min(sends.total(), receives.total()) and together:
        return "exchange"
    return "turns" if len(sends.starts) and len(receives.starts) else "pipeline"


def _codes(trace: Trace, names: tuple[str, ...]) -> list[int]:
    return [code for code, text in enumerate(trace.strings) if text in names]


def _spans_of(trace: Trace, rows: npt.NDArray[np.int64], names: tuple[str, ...]) -> Intervals:
    collectives = trace.rows["collectives"]
    chosen = rows[np.isin(collectives["name"][rows], _codes(trace, names))]
    return union(collectives["start_ns"][chosen], collectives["end_ns"][chosen])
