"""What a saving is worth in a step without a profiler.

A profiler makes the host slower and leaves the device as it is. Where traced steps are longer than those that were
timed without one, what they are longer by is taken from the time in which the device waited for the host, in equal
shares of its causes; costs on the device stay. Steps that compiled are left out: that is not the profiler's doing. On a
machine without an accelerator all work is the host's, and all costs shrink alike.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.time.account import Cause, StepAccount, step_accounts
from perfscope.analyzers.time.steps import late_span_ns, step_windows, whole_ns
from perfscope.model.finding import Finding
from perfscope.model.trace import MISSING, Trace

HOST_CAUSES: tuple[Cause, ...] = (
    "input", "launch", "memory", "collective_setup", "garbage_collection", "saving", "sleeping", "other_host",
)  # fmt: skip
"""Idle time that the host makes and a profiler lengthens; compilation is told apart."""

HOST_RULES = frozenset({"graph_break", "host_bound", "input_stall", "launch_bound", "small_kernels"})
"""Rules whose costs are such idle time."""


def bounded(trace: Trace, rule: str, finding: Finding) -> Finding:
    """The finding with costs of at most the steps, and what of it a step without a profiler leaves.

    One that was measured in steps without a profiler stays as it is.
    """
    count = trace.fact(step_windows).count
    if not count or finding.cost_ns_per_step is None or finding.untraced_ns_per_step is not None:
        return finding
    step = round(whole_ns(trace) / count)
    cost = min(finding.cost_ns_per_step, step)
    whole = None if finding.cost_ns is None else min(finding.cost_ns, max(whole_ns(trace), 1))
    return replace(
        finding,
        cost_ns=whole,
        cost_ns_per_step=cost,
        untraced_ns_per_step=_untraced(trace, rule, cost, compiling="compilation" in finding.covers_ns),
    )


def _untraced(trace: Trace, rule: str, cost_ns: int, *, compiling: bool) -> int | None:
    bare = _bare_step_ns(trace)
    if bare is None or not trace.fact(step_accounts):
        return None
    if compiling and bare < cost_ns:  # those steps did not compile
        return None
    return min(round(cost_ns * trace.fact(_host_share_left) if _is_hosts(trace, rule) else cost_ns), round(bare))


def _bare_step_ns(trace: Trace) -> float | None:
    """A step without a profiler, its work included; ``None`` where none was timed."""
    if trace.step_times_ns and late_span_ns(trace) is None:
        return float(np.median(trace.step_times_ns))
    return trace.window_ns / trace.window_steps if trace.window_ns and trace.window_steps > 0 else None


def _is_hosts(trace: Trace, rule: str) -> bool:
    return rule in HOST_RULES or trace.fact(step_accounts)[0].device == MISSING


def _host_share_left(trace: Trace) -> float:
    """Of the host's part of a traced step what a bare one has, 0 to 1, by the device that waits least for it."""
    bare = _bare_step_ns(trace) or 0.0
    return max(_share_left(account, bare) for account in trace.fact(step_accounts))


def _share_left(account: StepAccount, bare_ns: float) -> float:
    steps = np.sum(list(account.causes_ns.values()), axis=0)
    compiling = np.array(account.causes_ns["compilation"])
    warm = compiling == compiling.min()
    traced = float(np.mean((steps - compiling)[warm]))  # costs are means too
    if traced <= bare_ns:
        return 1.0
    if account.device == MISSING:
        return bare_ns / traced
    host = float(np.mean(np.sum([account.causes_ns[cause] for cause in HOST_CAUSES], axis=0)[warm]))
    return max(0.0, 1 - (traced - bare_ns) / host) if host else 1.0
