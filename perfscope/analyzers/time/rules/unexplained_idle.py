"""Time of the step that is neither compute nor covered by another finding.

Why it costs: what no rule names is easily taken for healthy. If a twentieth of the step is not compute, and every
part of it stays below the threshold of its own rule or has no recorded cause, it still is a twentieth of the step.

How it is found: the account of the step divides all of its time by cause. What the findings of other rules cover is
taken off, each cause by as many nanoseconds as they name (`host_sync` names sync, `input_stall` input, `launch_bound`
launches and memory calls, further `host_bound`, `exposed_copy`, `pageable_copy`, `exposed_communication`,
`small_collectives`, `small_kernels`, `warmup_compile`). What is left is listed by cause. *Dependency* is idle time
with work already launched: the device waited for another stream, an event, or its front end; where most of it is in
waits of over 1 ms, for work that is not recorded. *Unexplained* is idle time that ends with work whose launch is not in
the recording, or that has no recorded host activity beside it.

Fix: the rows say where to look. For launch overhead of a few percent `torch.compile(mode="reduce-overhead")` or CUDA
graphs; for dependency fewer streams and events, or larger kernels; for unexplained time record more: runtime calls
(`activities=[CPU, CUDA]`), Python stacks (`with_stack=True`), a window that begins before the first launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfscope.analyzers.time.account import BUSY, Cause, StepAccount, cause_intervals, step_accounts
from perfscope.analyzers.time.cores import doubtful_causes
from perfscope.analyzers.time.records import device_records, host_records
from perfscope.analyzers.time.spans import removed_time, worst_spans
from perfscope.analyzers.time.steps import timed_cost
from perfscope.model.finding import AbstainError, Finding, Scope, covered_ns
from perfscope.model.intervals import Intervals, merge
from perfscope.model.severity import HIGH_SHARE
from perfscope.model.trace import MISSING, Trace

LAST = True

LEAST_SHARE = HIGH_SHARE
"""Of the step: a twentieth of it must not get lost between the thresholds of other rules."""

LEAST_SHARE_ON_HOST = 0.1
"""Of every step, where no accelerator is in the recording: below it other processes of the machine may be the cause."""

_WORDS: dict[Cause, str] = {
    "exposed_communication": "exposed communication",
    "exposed_copy": "exposed copies",
    "sync": "waiting for the device",
    "input": "waiting for input",
    "launch": "launching",
    "memory": "device memory calls",
    "collective_setup": "setting up collectives",
    "other_host": "other host work",
    "garbage_collection": "garbage collection",
    "sleeping": "sleeping",
    "saving": "saving and logging",
    "dependency": "waiting for other device work",
}


_FIXES: dict[Cause, str] = {
    "exposed_communication": "Start collectives earlier, so that independent work runs beside them.",
    "exposed_copy": "Start copies earlier, from pinned memory and on a stream of their own.",
    "sync": "Read results on the host less often, or after the next step is launched.",
    "input": "Fetch the next batch while the step runs.",
    "launch": "Launch less often: larger batches, `torch.compile`, or a `torch.cuda.CUDAGraph` around the step.",
    "memory": "Keep shapes stable, so that the caching allocator keeps the memory it has.",
    "collective_setup": "Make the process groups and run a collective of each before the loop.",
    "other_host": "Do less on the host within the step, or do it in another process or thread.",
    "garbage_collection": "Call `gc.freeze()` after the warm-up, and collect every N steps at most.",
    "sleeping": "Take the wait for a lock, a queue or a thread out of the step.",
    "saving": "Log every N steps, and save asynchronously.",
    "compilation": "Warm up before measuring, and keep shapes stable.",
    "dependency": "Fuse kernels that follow each other, or run independent work on another stream.",
    "unexplained": "Record the step again with `perfscope run`, which links device work to the host's calls.",
}
_JAX_FIXES: dict[Cause, str] = {
    "launch": "Launch less often: put the step in one `jax.jit`, and several steps in one `jax.lax.scan`.",
    "memory": "Leave preallocation on (`XLA_PYTHON_CLIENT_PREALLOCATE=true`).",
    "dependency": "Put the whole step in one `jax.jit`, so that XLA fuses what follows each other.",
}
"""Where it differs, for programs that XLA compiled."""

UNRECORDED_NS = 1_000_000
"""Longer than any front end takes: a device that has work queued and runs nothing recorded meanwhile."""
_UNRECORDED = "waiting for work that is not recorded"
_RECORD_IT = (
    "Call `torch.cuda.synchronize()` before the recording begins. The device has work queued and runs nothing that is "
    "recorded: what was launched before, work of another process, or it waits for an event of another device."
)


def _fix(cause: Cause, *, compiled: bool) -> str:
    """What to do about most of the time. ``compiled``: by XLA."""
    fix = _JAX_FIXES.get(cause, _FIXES[cause]) if compiled else _FIXES[cause]
    return f"{fix} The evidence has the other causes."


def examined(trace: Trace) -> Scope:
    """What the account is made of."""
    return Scope(device_records(trace).count + host_records(trace).count, "kernels, copies, ops and calls")


def check(trace: Trace) -> Iterable[Finding]:
    """Asked alone no other rule covers anything."""
    return check_rest(trace, ())


def check_rest(trace: Trace, found: Sequence[tuple[str, Finding]]) -> Iterable[Finding]:
    """Yield a finding for the device with most time that none of ``found`` covers, if it is a twentieth."""
    accounts = trace.fact(step_accounts)
    covered = covered_ns(found)
    left = [(_uncovered(account, covered), account) for account in accounts]
    if not left:
        raise AbstainError("neither device work nor ops of the host were recorded", ("host_ops",))
    causes, account = max(left, key=lambda pair: sum(pair[0].values()))
    whole = sum(causes.values())
    cost = min(whole, account.steady_ns(causes)) if account.device == MISSING else whole
    least = LEAST_SHARE_ON_HOST if account.device == MISSING else LEAST_SHARE
    if not cost or cost < least * account.whole_ns:
        return
    parts = trace.fact(cause_intervals)[account.device]
    spans = merge(*(parts[cause] for cause in causes if cause in parts))
    ordered = sorted(((cause, round(ns * cost / whole)) for cause, ns in causes.items()), key=lambda item: -item[1])
    first = ordered[0][0]
    most, advice = _WORDS.get(first, first), _fix(first, compiled=bool(len(trace.rows["hlo_ops"])))
    if first == "dependency" and account.device != MISSING and _unrecorded(parts[first]):
        most, advice = _UNRECORDED, _RECORD_IT
    whose = "main thread" if account.device == MISSING else "device"
    yield Finding(
        subject="time without a finding",
        title=f"{whose} does not compute: mostly {most}",
        detail="No other finding covers this time.",
        **timed_cost(trace, cost, account.whole_ns),
        advice=advice,
        covers_ns=dict(ordered),
        evidence=tuple(
            {"cause": _WORDS.get(cause, cause), "idle_ns": value, "share": round(value / account.whole_ns, 4)}
            for cause, value in ordered
        ),
        spans=worst_spans(spans.starts, spans.ends, np.asarray(spans.ends - spans.starts)),
        removes=() if set(causes) & set(BUSY) else (removed_time(spans),),
    )


def _unrecorded(waits: Intervals) -> bool:
    """Whether most of the time with work queued is in waits that no front end takes."""
    lengths = waits.ends - waits.starts
    return bool(lengths[lengths >= UNRECORDED_NS].sum() * 2 > lengths.sum())


def _uncovered(account: StepAccount, covered: Mapping[str, int]) -> dict[Cause, int]:
    """Time by cause that is not compute and that no finding covers. On the host launching is its work."""
    on_host = account.device == MISSING
    busy = {"compute", "core_wait", *(("launch",) if on_host else ())}
    busy |= doubtful_causes(account.total_ns, account.whole_ns)
    left = {cause: value - covered.get(cause, 0) for cause, value in account.total_ns.items() if cause not in busy}
    return {cause: value for cause, value in left.items() if value > 0}
