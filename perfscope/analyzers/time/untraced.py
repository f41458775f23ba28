"""The step time of one trace, and the part of a saving that remains without a profiler.

A profiler slows the host where it records: in ops, in the Python between them, and in launch calls. If traced steps are
longer than steps without a profiler, the excess is subtracted from that time in equal shares. Time without recorded
events is unchanged, whatever its cause: work of a device, sleeping, reading and writing, waiting for data, locks,
devices, processes and ranks, and Python without recorded stacks. Steps that compiled are excluded, because the profiler
is not the cause.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.time.account import StepAccount, time_of_cause, warm_accounts, warm_windows
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.steps import late_span_ns, step_windows, steps_known, whole_ns
from perfscope.analyzers.time.whole_run.cores import with_busy_note
from perfscope.model.documents.causes import Cause
from perfscope.model.documents.step_time import StepTime, step_time_of
from perfscope.model.finding import Finding, Once
from perfscope.model.intervals import covered, union
from perfscope.model.trace import MISSING, SliceKind, Trace

BETWEEN_OPS: tuple[Cause, ...] = ("launch", "memory")
"""Host time of recorded calls and the gaps between them: a profiler lengthens all of it."""

HOST_CAUSES: tuple[Cause, ...] = (
    "input", "collective_setup", "garbage_collection", "saving", "sleeping", "other_host",
)  # fmt: skip
"""Host time in which a profiler lengthens only the recorded ops."""

LEAST_LEFT = 0.2
"""Smallest remaining share of lengthened time: no profiler makes the host five times as slow, averaged over ops and the
time between them.
"""

LASTING_SHARE = 0.5
"""The other steps are assumed to compile too if compilation is at least this share of the recorded steps, and if the
others are at least this share of their length.
"""

HOST_RULES = frozenset({"graph_break", "host_bound", "input_stall", "launch_bound", "small_kernels"})
"""Rules whose costs are host time while a device works."""


def adjusted(trace: Trace, rule: str, finding: Finding) -> Finding:
    """Return the finding with bounded costs, and a note if the machine was busy."""
    return with_busy_note(trace, rule, bounded(trace, rule, finding))


def bounded(trace: Trace, rule: str, finding: Finding) -> Finding:
    """Return the finding with its costs limited to the steps, and to the part that remains without a profiler.

    A cost that was measured in steps without a profiler, or that is paid once, is unchanged. Compiling that takes
    longer than a whole step without a profiler is not part of those steps.
    """
    count, bare = trace.fact(step_windows).count, _bare_step_ns(trace)
    if not count or finding.cost_ns_per_step is None or finding.untraced_ns_per_step is not None:
        return finding
    step = round(whole_ns(trace) / count)
    if bare is not None and "compilation" in finding.covers_ns and finding.cost_ns_per_step > bare:
        paid = finding.covers_ns["compilation"] / max(1, whole_ns(trace))
        if paid < LASTING_SHARE or bare < LASTING_SHARE * step:
            return replace(finding, cost_ns_per_step=None, once=Once(times=1, steps=steps_known(trace)))
        return replace(
            finding, cost_ns=finding.covers_ns["compilation"], cost_ns_per_step=round(paid * step),
            untraced_ns_per_step=round(paid * bare),
        )  # fmt: skip
    cost = min(finding.cost_ns_per_step, step)
    whole = None if finding.cost_ns is None else min(finding.cost_ns, max(whole_ns(trace), 1))
    return replace(
        finding, cost_ns=whole, cost_ns_per_step=cost, untraced_ns_per_step=_untraced(trace, rule, finding, cost)
    )


def _untraced(trace: Trace, rule: str, finding: Finding, cost_ns: int) -> int | None:
    bare = _bare_step_ns(trace)
    if bare is None:
        return None
    lengthened = _lengthened_share(trace, rule, finding)
    left, kept = trace.fact(_shares_left)
    return min(round(cost_ns * (lengthened * left + (1 - lengthened) * kept)), round(bare))


def _bare_step_ns(trace: Trace) -> float | None:
    """Return the duration of a step without a profiler, including its work; ``None`` if none was timed."""
    time = trace_step_time(trace)
    return None if time is None or time.of == "profiled" else time.ns


def _lengthened_share(trace: Trace, rule: str, finding: Finding) -> float:
    """Return the share of the finding's cost that a profiler lengthens, 0 to 1, by the causes that it covers."""
    accounts = trace.fact(warm_accounts)
    if not accounts:
        return 0.0
    covers = {cause: value for cause, value in finding.covers_ns.items() if value > 0}
    if not covers:
        return float(rule in HOST_RULES or accounts[0].device == MISSING)
    shares = max(trace.fact(_lengthened_shares), key=lambda each: sum(each.values()))
    return sum(share * covers.get(cause, 0) for cause, share in shares.items()) / sum(covers.values())


def _lengthened_shares(trace: Trace) -> tuple[Mapping[Cause, float], ...]:
    """Return, per account, the share of each cause that a profiler lengthens, 0 to 1."""
    slices, thread = trace.rows["slices"], trace.fact(main_thread)
    mine = (slices["kind"] == SliceKind.OP) & (slices["thread"] == thread)
    ops = union(slices["start_ns"][mine], slices["end_ns"][mine])
    result: list[Mapping[Cause, float]] = []
    for account in trace.fact(warm_accounts):
        shares: dict[Cause, float] = dict.fromkeys(BETWEEN_OPS, 1.0)
        if account.device == MISSING:
            shares["compute"] = 1.0
        for cause in HOST_CAUSES:
            spans = time_of_cause(trace, account, cause)
            whole = spans.total()
            shares[cause] = int(covered(ops, spans.starts, spans.ends).sum()) / whole if whole else 0.0
        if "python_stack" in trace.recorded:
            shares["other_host"] = 1.0
        result.append(shares)
    return tuple(result)


def _shares_left(trace: Trace) -> tuple[float, float]:
    """Return the shares (0 to 1) of the host's lengthened and of all other time that a step without a profiler has.

    Based on the device that waits least for the host.
    """
    bare = _bare_step_ns(trace) or 0.0
    accounts, shares = trace.fact(warm_accounts), trace.fact(_lengthened_shares)
    return max((_share_left(*each, bare) for each in zip(accounts, shares, strict=True)), default=(1.0, 1.0))


def _share_left(account: StepAccount, shares: Mapping[Cause, float], bare_ns: float) -> tuple[float, float]:
    steps = np.sum(list(account.causes_ns.values()), axis=0)
    compiling = np.array(account.causes_ns["compilation"])
    warm = compiling == compiling.min()
    traced = float(np.mean((steps - compiling)[warm]))  # costs are means too
    if traced <= bare_ns:
        return 1.0, 1.0
    parts = [share * np.array(account.causes_ns[cause]) for cause, share in shares.items()]
    lengthened = float(np.mean(np.sum(parts, axis=0)[warm]))
    kept = traced - lengthened
    left = (bare_ns - kept) / lengthened if lengthened else 0.0
    if left >= LEAST_LEFT:
        return left, 1.0
    return bare_ns / traced, bare_ns / traced  # the machine was busier while traced: everything took longer


# The step time of one trace.


def trace_step_time(trace: Trace) -> StepTime | None:
    """Return the step time of one trace, without regard to slow steps."""
    late = late_span_ns(trace) is not None
    return step_time_of(
        window=None if trace.window_ns is None else (trace.window_ns, trace.window_steps),
        unprofiled=() if late else trace.step_times_ns,
        profiled=_profiled(trace),
        rank=trace.source.rank,
    )


def _profiled(trace: Trace) -> list[int]:
    windows, count, late = trace.fact(warm_windows), trace.fact(step_windows).count, late_span_ns(trace)
    if not count:
        return []
    if late is not None and not windows.numbers:  # the assignment of work to steps is unknown
        return [round(late / count)] * count
    lengths: list[int] = (windows.ends - windows.starts).tolist()
    return lengths
