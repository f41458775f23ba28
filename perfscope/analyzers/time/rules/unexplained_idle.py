"""Time of the step that is neither compute nor covered by another finding.

Example:
    Before::

        profile(activities=[ProfilerActivity.CUDA])

    After::

        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True)

Why it costs: time without a finding is easily taken for healthy. If a twentieth of the step is not compute, but each
cause is below the threshold of its rule or unknown, it is still a twentieth of the step.

How it is found: the account of the step divides all of its time by cause. The time that findings of other rules cover
is subtracted, cause by cause (`host_sync` covers sync, `input_stall` input, `launch_bound` launches and memory calls;
also `host_bound`, `exposed_copy`, `pageable_copy`, `exposed_communication`, `small_collectives`, `small_kernels`,
`warmup_compile`). The rest is listed by cause. *Dependency* is idle time with work already launched: the device waited
for another stream, an event, or its front end; if most of it is in waits of over 1 ms, for unrecorded work.
*Unexplained* is idle time without recorded host activity, or idle time that ends with work whose launch was not
recorded.

Time that ends with unrecorded work, or without a recorded cause, may not be due to the program. It has no saving and is
listed under *Record it better*.

Fix: the rows say where to look. For launch overhead of a few percent `torch.compile(mode="reduce-overhead")` or CUDA
graphs; for dependency fewer streams and events, or larger kernels; for unexplained time record more: runtime calls
(`activities=[CPU, CUDA]`), Python stacks (`with_stack=True`), a window that begins before the first launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from perfscope.analyzers.examined import device_records, host_records
from perfscope.analyzers.spans import removed_time, worst_spans
from perfscope.analyzers.time.account import StepAccount, cause_intervals, step_accounts
from perfscope.analyzers.time.calls import Framework, framework
from perfscope.analyzers.time.fixes import cause_fix, situation
from perfscope.analyzers.time.host_lines import host_lines
from perfscope.analyzers.time.rank_waits import MessageKind, message_kind, reduced_too_often
from perfscope.analyzers.time.steps import timed_cost
from perfscope.analyzers.time.whole_run.cores import doubtful_causes
from perfscope.model.documents.causes import BUSY, Cause
from perfscope.model.finding import NOWHERE, AbstainError, Finding, Scope, Where, covered_ns
from perfscope.model.intervals import Intervals, merge
from perfscope.model.severity import HIGH_SHARE
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_share

LAST = True

LEAST_SHARE = HIGH_SHARE
"""Smallest share of the step: a twentieth must not be lost between the thresholds of other rules."""

LEAST_SHARE_ON_HOST = 0.1
"""Smallest share of every step without an accelerator: other processes of the machine may cause less."""

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
    "other_ranks": "waiting for other ranks",
    "sleeping": "sleeping",
    "saving": "saving and logging",
    "dependency": "waiting for other device work",
}


UNRECORDED_NS = 1_000_000
"""Wait that no front end causes: a device with queued work that runs nothing recorded."""
_UNRECORDED = "waiting for work that is not recorded"
_RECORD_IT = (
    "{wait} before the recording begins. The device has work queued and runs nothing that is recorded: it runs work "
    "launched earlier or by another process, or waits for an event of another device."
)
_WAITS: dict[Framework, str] = {
    "torch": "Call {synchronize}",
    "jax": "Call `jax.block_until_ready(...)` on the results of the step",
    "none": "Wait for the device ({wait_for_device})",
}
_LINKED = "Record the step again with `perfscope run`, which links device work to the host's calls."


_PIPELINE = "Let the stages of a pipeline work side by side: stages of equal work, and more microbatches{schedule}."
_SCHEDULE = " (`Schedule1F1B`, `ScheduleInterleaved1F1B` of `torch.distributed.pipelining`)"
_TURNS = (
    "Let both ranks compute at once: each waits for the other's message before it works. Exchange data of the step "
    "before{call} at its start, or keep several microbatches under way."
)
_EXCHANGE = "Begin the exchange before the work that does not need its data{call}, and wait where the data is used."
MESSAGES: dict[MessageKind, dict[Framework, str]] = {
    "pipeline": {"torch": _PIPELINE.format(schedule=_SCHEDULE), "jax": _PIPELINE.format(schedule=""),
                 "none": _PIPELINE.format(schedule="")},
    "exchange": {"torch": _EXCHANGE.format(call=" (`dist.batch_isend_irecv`)"), "jax": _EXCHANGE.format(call=""),
                 "none": _EXCHANGE.format(call=" (`MPI_Isend`, `MPI_Irecv`)")},
    "turns": {"torch": _TURNS.format(call=" (`dist.batch_isend_irecv`)"), "jax": _TURNS.format(call=""),
              "none": _TURNS.format(call=" (`MPI_Isend`, `MPI_Irecv`)")},
}  # fmt: skip
"""Advice about waits in messages between two ranks, by framework."""


def _advice(trace: Trace, cause: Cause, *, on_host: bool) -> tuple[str, str]:
    """Return the advice about most of the time, and the recording that would show more; one may be empty."""
    if cause == "other_ranks" and (often := reduced_too_often(trace)):
        return often, ""
    where = trace.fact(situation)
    if cause == "other_ranks" and (kind := message_kind(trace)) is not None:
        stages = kind == "turns" and where.phase == "training"  # activations go forward, gradients back
        return MESSAGES["pipeline" if stages else kind][where.framework], ""
    fix = "" if on_host and cause == "sync" else cause_fix(cause, where)
    return (f"{fix} The evidence has the other causes.", "") if fix else ("", where.record_stacks())


def _place(trace: Trace, cause: Cause, parts: Mapping[Cause, Intervals], account: StepAccount) -> Where:
    """Return the user's line that waits for other ranks; other causes have no single line."""
    if cause != "other_ranks":
        return NOWHERE
    line, _ = host_lines(trace, cause, parts[cause], account).best()
    return line.site.where() if line.is_users else NOWHERE


def examined(trace: Trace) -> Scope:
    """Count the records of the account."""
    return Scope(device_records(trace).count + host_records(trace).count, "kernels, copies, ops and calls")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield the findings if no other rule covers anything."""
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
    on_host = account.device == MISSING
    whose = "main thread" if on_host else "device"
    unrecorded = first == "dependency" and not on_host and _unrecorded(parts[first])
    if unrecorded or first == "unexplained":
        most = _UNRECORDED if unrecorded else "without a recorded cause"
        record = (
            _RECORD_IT.format(wait=trace.fact(situation).for_device(_WAITS[framework(trace)]))
            if unrecorded
            else _LINKED
        )
        yield _of_recording(f"{whose} idles {format_share(cost, account.whole_ns)} of the step: mostly {most}", record)
        return
    most, (advice, record) = _WORDS.get(first, first), _advice(trace, first, on_host=on_host)
    yield Finding(
        subject="time without a finding",
        title=f"{whose} does not compute: mostly {most}",
        detail="No other finding covers this time.",
        **timed_cost(trace, cost, account.whole_ns),
        advice=advice,
        record=record,
        where=_place(trace, first, parts, account),
        covers_ns=dict(ordered),
        evidence=tuple(
            {"cause": _WORDS.get(cause, cause), "idle_ns": value, "share": round(value / account.whole_ns, 4)}
            for cause, value in ordered
        ),
        spans=worst_spans(spans.starts, spans.ends, np.asarray(spans.ends - spans.starts)),
        removes=() if set(causes) & set(BUSY) else (removed_time(spans),),
    )


def _of_recording(title: str, record: str) -> Finding:
    """Return a finding about time whose cause only another recording would show."""
    return Finding(
        subject="time without a recorded cause",
        title=title,
        severity="low",
        basis="measured",
        advice="",
        about="recording",
        record=record,
    )


def _unrecorded(waits: Intervals) -> bool:
    """Whether most of the time with queued work is in waits that no front end causes."""
    lengths = waits.ends - waits.starts
    return bool(lengths[lengths >= UNRECORDED_NS].sum() * 2 > lengths.sum())


def _uncovered(account: StepAccount, covered: Mapping[str, int]) -> dict[Cause, int]:
    """Return the time by cause other than compute that no finding covers. On the host, launching is its work."""
    on_host = account.device == MISSING
    busy = {"compute", "core_wait", *(("launch",) if on_host else ())}
    busy |= doubtful_causes(account.total_ns, account.whole_ns)
    left = {cause: value - covered.get(cause, 0) for cause, value in account.total_ns.items() if cause not in busy}
    return {cause: value for cause, value in left.items() if value > 0}
