"""The host launches work later than the device could take it, although nothing blocks the host.

Example:
    Before::

        y = model(x)

    After::

        fast = torch.compile(model, mode="reduce-overhead")     # once; one launch replays all kernels
        y = fast(x)

Why it costs: an accelerator works through a queue that the host fills. If preparing a launch (Python, dispatcher,
runtime call) takes longer than the launched kernel, the queue is empty and the device waits for the next launch. A
faster device or faster kernels then change nothing.

How it is found: from the account of the step, the time with causes *launch* and *memory*. The device was idle, the call
that ended it came late, and no wait for the device (`host_sync`), data loader (`input_stall`) or compilation
(`warmup_compile`) explains that. The finding separates launching (idle intervals under 1 ms, and calls and ops that
launch) from device memory calls such as `cudaMalloc` and `cudaFree`. Host work in longer intervals belongs to
`host_bound`. The whole cost is idle time of the device, so overlap is accounted for. Kernels without a recorded launch
are not judged.

Without an accelerator in the recording, the time between the ops of the main thread in intervals under 1 ms is judged,
if it is more than half of every step: Python and the framework then take longer than the ops, on an accelerator even
more so. It includes the profiler's time for each op. If the steps of a JAX program are one short call of a compiled
function (under 1 ms, less than half of it work, most sampled stacks at the line of the call), they are a separate
finding; the types of arguments and results show whether a call can need the result of the previous one.

Fix: take the host out of the loop: `torch.compile(model, mode="reduce-overhead")` or `torch.cuda.CUDAGraph` replays a
whole step with one launch; larger batches and fused ops (`torch.optim.AdamW(..., fused=True)`) need fewer launches.
Against memory calls: let the caching allocator keep its blocks (stable shapes,
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, no `torch.cuda.empty_cache()` in the loop). A JAX function that is
called for each sample takes all samples in one call (`jax.vmap`). Against long gaps: move the Python work to another
thread or process, or out of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from perfscope.analyzers.examined import host_records, launched_records
from perfscope.analyzers.spans import removed_time, worst_spans
from perfscope.analyzers.time.account import (
    IdlePieces,
    StepAccount,
    abstain_if_unrecorded,
    idle_pieces,
    step_accounts,
    time_of_cause,
)
from perfscope.analyzers.time.calls import largest_by_op, launch_delays, ops_of_calls
from perfscope.analyzers.time.fixes import launch_fix, memory_fix, move, situation
from perfscope.analyzers.time.host_lines import HALF, HostLine, host_lines
from perfscope.analyzers.time.sites import call_site, op_of
from perfscope.analyzers.time.small_calls import SmallCall, small_call
from perfscope.analyzers.time.steps import step_windows, timed_cost
from perfscope.analyzers.time.unjitted import single_operations
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Cell, Finding, Scope, Where, fit_title
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.intervals import Intervals
from perfscope.model.trace import MISSING, RECORDED, Trace
from perfscope.model.units import format_ns

_LINKED = ("launch_links", "runtime_calls")

LATE_SHARE = 0.10
"""Smallest share of the step. Below a tenth, the device's own work determines the length of the step."""

SHARE_ON_HOST = 0.5
"""Smallest share of every step between the ops of a program without an accelerator: above it the ops are the smaller
part.
"""

PART_SHARE = 0.01
"""Smallest share of the step for a finding about one part."""


_HOST_ADVICE = "Give each op more work: larger batches, and {compile_model}, which merges small ops."


def examined(trace: Trace) -> Scope:
    """Count kernels with known launch; without device work, the host's records."""
    return launched_records(trace) if "device_work" in trace.recorded else host_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield up to two findings for the device that waits longest for its launches; without one, for the host."""
    if "device_work" not in trace.recorded:
        yield from _on_host(trace)
        return
    absent = [key for key in _LINKED if key not in trace.recorded]
    if absent:
        raise AbstainError(f"not recorded: {'; '.join(RECORDED[key] for key in absent)}", absent)
    accounts = [account for account in trace.fact(step_accounts) if account.device != MISSING and account.whole_ns]
    late = [account for account in accounts if _late_ns(account) >= LATE_SHARE * account.whole_ns]
    if late:
        yield from _findings(trace, max(late, key=_late_ns))
        return
    for account in accounts:
        abstain_if_unrecorded([account], LATE_SHARE * account.whole_ns)


def _on_host(trace: Trace) -> Iterator[Finding]:
    """Yield calls that take longer than their work.

    Else time between the main thread's ops, if it is most of each step.
    """
    call = trace.fact(small_call)
    if call is not None:
        yield _of_calls(trace, call)
        return
    if trace.fact(single_operations) is not None:
        return  # `unjitted_step` has them
    account = next((item for item in trace.fact(step_accounts) if item.device == MISSING and item.whole_ns), None)
    if account is None:
        raise AbstainError("neither device work nor ops of the host were recorded", ("host_ops",))
    wholes = [sum(step) for step in zip(*account.causes_ns.values(), strict=True)]
    if any(gaps <= SHARE_ON_HOST * whole for gaps, whole in zip(account.causes_ns["launch"], wholes, strict=True)):
        return
    gaps = time_of_cause(trace, account, "launch")
    cost, count = account.total_ns["launch"], len(gaps.starts)
    line, own = _own_line(trace, gaps, account)
    where = trace.fact(situation)
    advice = launch_fix(where) if where.framework == "jax" else where.for_device(_HOST_ADVICE)
    yield Finding(
        subject="between ops",
        title=f"the host is between ops most of the time: {count:,} gaps, {format_ns(cost // count)} on average",
        detail="Python and the framework take longer than the ops. The profiler's own time for each op is in it.",
        **timed_cost(trace, cost, account.whole_ns),
        covers_ns={"launch": cost},
        advice=own or advice,
        where=NOWHERE if line is None else line.site.where(),
        spans=worst_spans(gaps.starts, gaps.ends, gaps.ends - gaps.starts),
        removes=(removed_time(gaps),),
    )


def _of_calls(trace: Trace, call: SmallCall) -> Finding:
    """Return a finding about a compiled function that is called for too little work."""
    cost = (call.step_ns - call.work_ns) * trace.fact(step_windows).count
    together = (
        f"Call it once for all inputs: jax.vmap({call.function}) inside of one jax.jit, on an array that holds them. "
        "No call needs a result of the one before."
        if call.independent
        else f"Run the loop on the device: jax.lax.scan or jax.lax.fori_loop around {call.function}, in one jax.jit."
    )
    return Finding(
        subject=f"calls of {call.function}",
        title=fit_title(
            f"{call.function} is called {call.calls:,} times for {format_ns(call.work_ns)} of work each: a call takes "
            f"{format_ns(call.step_ns)}",
            call.function,
        ),
        detail="Most of a call is Python and dispatch. Times are those of calls without a profiler.",
        **timed_cost(trace, cost, call.step_ns * trace.fact(step_windows).count),
        untraced_ns_per_step=call.step_ns - call.work_ns,
        advice=together,
        where=call.where,
        evidence=({"function": call.function, "call_ns": call.step_ns, "work_ns": call.work_ns, "calls": call.calls},),
    )


def _own_line(trace: Trace, gaps: Intervals, account: StepAccount) -> tuple[HostLine | None, str]:
    """Return the program's line with most of the time between ops and its fix, if the line's own work has that time."""
    found = host_lines(trace, "other_host", gaps, account)
    if not found.lines or found.kind() is not FrameKind.USER or found.source not in ("free", "recorded"):
        return None, ""
    line, share = found.best()
    if share <= HALF or not line.is_users or line.site.running:
        return None, ""
    inside = line.holds_step or line.site.function in (None, "<module>")
    what = f"the work at {line.site.where().label()}" if inside else f"`{line.site.function}`"
    return line, move(what, trace.fact(situation))


def _late_ns(account: StepAccount) -> int:
    return account.total_ns["launch"] + account.total_ns["memory"]


def _findings(trace: Trace, account: StepAccount) -> Iterator[Finding]:
    total, least = account.total_ns, PART_SHARE * account.whole_ns
    if total["launch"] >= least:
        yield _overhead(trace, account, idle_pieces(trace, "launch", device=account.device))
    if total["memory"] >= least:
        yield _allocator(trace, account, idle_pieces(trace, "memory", device=account.device))


def _overhead(trace: Trace, account: StepAccount, idle: IdlePieces) -> Finding:
    cost = account.total_ns["launch"]
    delay = trace.fact(launch_delays).get(account.device)
    queue = (
        f"{delay.unqueued:,} of {delay.launches:,} launches started within 10 us; "
        f"on average {delay.mean_queue:.1f} were queued."
        if delay is not None
        else ""
    )
    return Finding(
        subject="launch overhead",
        title=f"the device waits for launches: {len(idle):,} gap{'s' if len(idle) != 1 else ''}",
        detail=queue,
        **timed_cost(trace, cost, account.whole_ns),
        covers_ns={"launch": cost},
        advice=launch_fix(trace.fact(situation)),
        evidence=_by_op(trace, idle),
        spans=worst_spans(idle.start_ns, idle.end_ns, idle.cost_ns),
        removes=(removed_time(time_of_cause(trace, account, "launch")),),
    )


def _allocator(trace: Trace, account: StepAccount, idle: IdlePieces) -> Finding:
    cost = account.total_ns["memory"]
    return Finding(
        subject="device memory calls",
        title=f"the device waits for allocation of device memory: {len(idle):,} gap{'s' if len(idle) != 1 else ''}",
        detail="The allocator asked the driver for memory, or gave it back, within the steps.",
        **timed_cost(trace, cost, account.whole_ns),
        covers_ns={"memory": cost},
        advice=memory_fix(trace.fact(situation)),
        where=_most_of(trace, idle),
        evidence=_by_op(trace, idle),
        spans=worst_spans(idle.start_ns, idle.end_ns, idle.cost_ns),
        removes=(removed_time(time_of_cause(trace, account, "memory")),),
    )


def _by_op(trace: Trace, idle: IdlePieces) -> tuple[Mapping[str, Cell], ...]:
    """Return the idle time by the op whose launch was late, worst first."""
    return tuple(
        {"op": op, "idle_ns": total, "gaps": count, "longest_ns": longest}
        for op, total, count, longest in largest_by_op(trace, idle.launch, idle.cost_ns, MOST_ROWS)
    )


def _most_of(trace: Trace, idle: IdlePieces) -> Where:
    """Return the place of the longest gap."""
    op = int(ops_of_calls(trace, idle.launch[[int(np.argmax(idle.cost_ns))]])[0])
    return call_site(trace, op).where(op=op_of(trace, op))
