"""The host launches work later than the device could take it, with nothing blocking the host.

Why it costs: an accelerator works through a queue that the host fills. When preparing a launch (Python,
dispatcher, runtime call) takes longer than the kernel it launches, the queue is empty and the device
waits for the next launch. A faster device or faster kernels then change nothing.

How it is found: every gap in the work of a device is looked at. If the call that ended it began after the
gap did, the host was late. If no call that waits for the device explains that (`host_sync`) and the
thread was not waiting for input (`input_stall`), the gap counts here. Two things are told apart: gaps
under 1 ms (the price of launching, op by op), and time in device memory calls such as `cudaMalloc` and
`cudaFree`. In longer gaps the host does something else, which `host_bound` judges. The cost is the sum of the
gaps: all of it is device idle time, so overlap is accounted for. Kernels whose launch was not recorded are not
judged.

Fix: take the host out of the loop: `torch.compile(model, mode="reduce-overhead")` or
`torch.cuda.CUDAGraph` replays a whole step with one launch; larger batches and fused ops
(`torch.optim.AdamW(..., fused=True)`) need fewer launches. Against memory calls: let the caching
allocator keep its blocks (stable shapes, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, no
`torch.cuda.empty_cache()` in the loop). Against long gaps: move the Python work to another thread or
process, or out of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from perfscope.analyzers.time.calls import largest_by_op, launch_delays, ops_of_calls
from perfscope.analyzers.time.device_time import DeviceTime, device_times
from perfscope.analyzers.time.gaps import GapCause, Gaps, gaps
from perfscope.analyzers.time.host_activity import STALL_NS
from perfscope.analyzers.time.sites import call_site, op_of
from perfscope.analyzers.time.spans import worst_spans
from perfscope.analyzers.time.steps import timed_cost, whole_ns
from perfscope.model.finding import AbstainError, Cell, Finding, Where
from perfscope.model.intervals import Int64
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, format_share

NEEDS = ("device_work", "launch_links", "runtime_calls")

LATE_SHARE = 0.10
"""Of a device's span. Below a tenth the device's own work decides how long the step takes."""

PART_SHARE = 0.01
"""Of a device's span: a part smaller than this gets no finding of its own."""

UNKNOWN_SHARE = 0.5
"""Of idle: if more than half of it follows work with no recorded launch, a clean answer would be a guess."""

ROWS = 20


def check(trace: Trace) -> Iterable[Finding]:
    """Yield up to two findings for the device that waits longest for its launches."""
    result = trace.fact(gaps)
    devices = trace.fact(device_times)
    waits = _launching_ns(result) + result.allocator_ns
    late = {device.device: waits[result.device == device.device].sum() for device in devices}
    judged = [device for device in devices if late[device.device] >= LATE_SHARE * device.span_ns > 0]
    if not judged:
        for device in devices:
            unknown = result.totals(device.device)["unknown"]
            if unknown > UNKNOWN_SHARE * device.idle_ns and unknown >= LATE_SHARE * device.span_ns:
                raise AbstainError(
                    f"{format_share(unknown, device.idle_ns)} of the idle time follows work whose launch was not "
                    "recorded; record runtime calls with correlation ids from before the window"
                )
        return []
    return _findings(trace, result, max(judged, key=lambda device: int(late[device.device])))


def _launching_ns(gaps: Gaps) -> Int64:
    """Per gap shorter than ``STALL_NS``: its time without memory calls."""
    own = gaps.charged_ns(GapCause.LAUNCH) - gaps.allocator_ns
    return np.where(gaps.duration_ns < STALL_NS, own, 0)


def _findings(trace: Trace, gaps: Gaps, device: DeviceTime) -> Iterator[Finding]:
    here = gaps.device == device.device
    launching = np.where(here, _launching_ns(gaps), 0)
    allocating = np.where(here, gaps.allocator_ns, 0)
    least = PART_SHARE * device.span_ns
    if launching.sum() >= least:
        yield _overhead(trace, gaps, device, launching)
    if allocating.sum() >= least:
        yield _allocator(trace, gaps, device, allocating)


def _overhead(trace: Trace, gaps: Gaps, device: DeviceTime, idle: Int64) -> Finding:
    cost, count = int(idle.sum()), int((idle > 0).sum())
    lookup = int(gaps.compile_lookup_ns[idle > 0].sum())
    delay = trace.fact(launch_delays).get(device.device)
    queue = (
        f"{delay.unqueued} of {delay.launches} launches started within 10 us, "
        f"on average {delay.mean_queue:.1f} were queued. "
        if delay is not None
        else ""
    )
    lookups = f"{format_ns(lookup)} of it is the lookup of compiled code. " if lookup else ""
    return Finding(
        subject="launch overhead",
        title=f"{device.name or 'The device'} waits {format_ns(cost)} ({format_share(cost, device.span_ns)} of its "
        f"span) for launches, in {count:,} gaps under 1 ms",
        **timed_cost(trace, cost, whole_ns(trace)),
        advice=f'{queue}{lookups}Launch less often: `torch.compile(model, mode="reduce-overhead")` or a '
        "`torch.cuda.CUDAGraph` around the step, larger batches, fused optimizers (`fused=True`).",
        evidence=_by_op(trace, gaps, idle),
        spans=worst_spans(gaps.start_ns, gaps.end_ns, idle),
    )


def _allocator(trace: Trace, gaps: Gaps, device: DeviceTime, idle: Int64) -> Finding:
    cost = int(idle.sum())
    return Finding(
        subject="device memory calls",
        title=f"{device.name or 'The device'} waits {format_ns(cost)} ({format_share(cost, device.span_ns)} of its "
        "span) while the host allocates or frees device memory",
        **timed_cost(trace, cost, whole_ns(trace)),
        advice="The caching allocator asked the driver for memory in the loop. Keep shapes stable, warm up with the "
        "largest batch, remove `torch.cuda.empty_cache()`, or set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
        where=_most_of(trace, gaps, idle),
        evidence=_by_op(trace, gaps, idle),
        spans=worst_spans(gaps.start_ns, gaps.end_ns, idle),
    )


def _by_op(trace: Trace, gaps: Gaps, idle: Int64) -> tuple[Mapping[str, Cell], ...]:
    """Idle time by the op whose launch came late, worst first."""
    chosen = np.flatnonzero(idle)
    return tuple(
        {"op": op, "idle_ns": total, "gaps": count, "longest_ns": longest}
        for op, total, count, longest in largest_by_op(trace, gaps.launch[chosen], idle[chosen], ROWS)
    )


def _most_of(trace: Trace, gaps: Gaps, idle: Int64) -> Where:
    """The place of the longest gap."""
    op = int(ops_of_calls(trace, gaps.launch[[int(np.argmax(idle))]])[0])
    return call_site(trace, op).where(op=op_of(trace, op))
