"""Time of the step that is neither compute nor covered by another finding.

Why it costs: what no rule names is easily taken for healthy. If a twentieth of the step is not compute, and every
part of it stays below the threshold of its own rule or has no recorded cause, it still is a twentieth of the step.

How it is found: the account of the step divides all of its time by cause. Causes whose own rule flagged something are
taken off (`host_sync` for sync, `input_stall` for input, `launch_bound` for launch and memory calls, `host_bound`,
`exposed_copy`, `exposed_communication`, `warmup_compile`). What is left is listed by cause. *Dependency* is idle time
with work already launched: the device waited for another stream, an event, or its front end. *Unexplained* is idle
time that ends with work whose launch is not in the recording, or that has no recorded host activity beside it.

Fix: the rows say where to look. For launch overhead of a few percent `torch.compile(mode="reduce-overhead")` or CUDA
graphs; for dependency fewer streams and events, or larger kernels; for unexplained time record more: runtime calls
(`activities=[CPU, CUDA]`), Python stacks (`with_stack=True`), a window that begins before the first launch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfscope.analyzers.time.account import Cause, StepAccount, cause_intervals, step_accounts
from perfscope.analyzers.time.spans import worst_spans
from perfscope.analyzers.time.steps import timed_cost
from perfscope.model.finding import HIGH_SHARE, AbstainError, Finding
from perfscope.model.intervals import merge
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns, format_share

NEEDS = ()

LEAST_SHARE = HIGH_SHARE
"""Of the step: a twentieth of it must not get lost between the thresholds of other rules."""

LEAST_SHARE_ON_HOST = 0.1
"""Of every step, where no accelerator is in the recording: below it other processes of the machine may be the cause."""

RULES_OF: dict[Cause, frozenset[str]] = {
    "exposed_communication": frozenset({"exposed_communication", "small_collectives", "straggler", "pipeline_bubble"}),
    "exposed_copy": frozenset({"exposed_copy", "pageable_copy"}),
    "sync": frozenset({"host_sync"}),
    "input": frozenset({"input_stall"}),
    "launch": frozenset({"launch_bound"}),
    "memory": frozenset({"launch_bound"}),
    "compilation": frozenset({"warmup_compile", "compile_time", "recompilation"}),
    "other_host": frozenset({"host_bound"}),
    "saving": frozenset({"host_bound"}),
    "garbage_collection": frozenset({"host_bound"}),
    "sleeping": frozenset({"host_bound"}),
}
"""Cause -> rules that answer for it: one that flagged something covers all of it."""

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


def check(trace: Trace) -> Iterable[Finding]:
    """Asked alone no other rule covers anything."""
    return check_rest(trace, frozenset())


def check_rest(trace: Trace, flagged: frozenset[str]) -> Iterable[Finding]:
    """Yield a finding for the device with most time that no rule in ``flagged`` covers, if it is a twentieth."""
    accounts = trace.fact(step_accounts)
    left = [(_uncovered(account, flagged), account) for account in accounts]
    if not left:
        raise AbstainError("neither device work nor ops of the host were recorded")
    causes, account = max(left, key=lambda pair: sum(pair[0].values()))
    whole = sum(causes.values())
    cost = account.steady_ns(causes) if account.device == MISSING else whole
    least = LEAST_SHARE_ON_HOST if account.device == MISSING else LEAST_SHARE
    if not cost or cost < least * account.whole_ns:
        return
    parts = trace.fact(cause_intervals)[account.device]
    spans = merge(*(parts[cause] for cause in causes if cause in parts))
    ordered = sorted(((cause, round(ns * cost / whole)) for cause, ns in causes.items()), key=lambda item: -item[1])
    named = ", ".join(
        f"{_WORDS.get(cause, cause)} {format_ns(round(value * cost / whole))}" for cause, value in ordered[:3]
    )
    whose = "The main thread" if account.device == MISSING else account.name or "The device"
    yield Finding(
        subject="time without a finding",
        title=f"{whose} does not compute for {format_ns(cost)} ({format_share(cost, account.whole_ns)}) "
        f"that no other finding covers: {named}",
        **timed_cost(trace, cost, account.whole_ns),
        advice="See the causes in the evidence, and `perfscope rules unexplained_idle` for what to record or change.",
        evidence=tuple(
            {
                "cause": _WORDS.get(cause, cause),
                "idle_ns": round(value * cost / whole),
                "share": round(value * cost / whole / account.whole_ns, 4),
            }
            for cause, value in ordered
        ),
        spans=worst_spans(spans.starts, spans.ends, np.asarray(spans.ends - spans.starts)),
    )


def _uncovered(account: StepAccount, flagged: frozenset[str]) -> dict[Cause, int]:
    """Time by cause that is not compute and that no flagged rule answers for. On the host launching is its work."""
    on_host = account.device == MISSING
    busy = {"compute", "launch"} if on_host else {"compute"}
    return {
        cause: value
        for cause, value in account.total_ns.items()
        if value and cause not in busy and not RULES_OF.get(cause, frozenset()) & flagged
    }
