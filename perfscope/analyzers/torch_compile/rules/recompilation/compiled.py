"""Findings on frames that torch.compile compiles again and again: for many sizes, or for another guard."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.torch_compile.frames import compile_log_of, compile_spans, where_of
from perfscope.analyzers.torch_compile.guards import (
    Again,
    Churn,
    Guard,
    GuardKind,
    churn_of,
    compiled_again,
    rows_of,
    user_line,
)
from perfscope.model.finding import Finding, Severity, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

MOST_SIZES_SHOWN = 8
MOST_VALUES_SHOWN = 3

FIXES: dict[GuardKind, str] = {
    "number": "Pass {source} as a tensor (torch.tensor({source}, device=...)): a Python number that changes is burnt "
    "into the graph. Where it must be a number, hand over few values of it.",
    "size": "Mark the dimension as dynamic before the first call: torch._dynamo.mark_dynamic({source}, {dimension}), "
    "or compile with dynamic=True, or pad to a few sizes.",
    "identity": "Make {source} once, outside the loop: functions, lambdas, modules and configuration objects made anew "
    "are other objects for the guard.",
    "type": "Pass the same type each time as {source}: convert before the call.",
    "training": "Call it in one mode: model.train() and model.eval() between calls make two programs; compile one each "
    "(torch.compile(model) twice) if both are needed in turn.",
    "grad_mode": "Call it in one gradient mode: with and without torch.no_grad() are two programs. Compile one for "
    "training and one for evaluation.",
    "global_state": "Keep global state as it is between calls: autocast, default dtype, number of threads, "
    "deterministic mode and torch function modes are part of the guards.",
    "tensor": "Pass {source} with one layout: dtype, device, requires_grad, rank and strides are guarded "
    "(.contiguous(), .detach(), .to(dtype) before the call).",
    "container": "Pass {source} with the same length and keys each time, or as one stacked tensor.",
}
"""What to write instead, by what the guard that failed is about."""

OTHER_FIX = (
    "Keep what the guard looks at the same from call to call, or pass it as a tensor; "
    'TORCH_LOGS="recompiles_verbose" shows all guards.'
)


def recompilation_findings(trace: Trace) -> Iterator[Finding]:
    """A finding for each frame compiled again in several steps, but those that churn through sizes."""
    compile_log_of(trace)
    for again in trace.fact(compiled_again):
        if churn_of(again) is None:
            yield _recompilation(trace, again)


def churn_findings(trace: Trace) -> Iterator[Finding]:
    """A finding for each frame that is compiled anew for each size of a dimension."""
    compile_log_of(trace)
    for again in trace.fact(compiled_again):
        churn = churn_of(again)
        if churn is not None:
            yield _churn(trace, again, churn)


def _recompilation(trace: Trace, again: Again) -> Finding:
    guard = again.main_guard()
    function = again.frame.function
    why = "; the log does not say why" if guard is None else f"; {_change(again, guard)}"
    return _finding(
        trace,
        again,
        subject=f"recompilation of {function}",
        title=f"{function} is compiled {len(again.compiles):,} more times{_in_steps(again)}, "
        f"{format_ns(again.spent_ns)} in all{why}{_then(again)}",
        advice=_fix(guard) + _limit_advice(again),
    )


def _change(again: Again, guard: Guard) -> str:
    values = again.values_of(guard)
    if guard.kind != "number" or len(values) < 2:
        return f"{guard.in_words()} changes: guard {guard.text}"
    shown = ", ".join(values[:MOST_VALUES_SHOWN]) + (" ..." if len(values) > MOST_VALUES_SHOWN else "")
    return f"{guard.in_words()} changes ({shown}): guard {guard.text}"


def _churn(trace: Trace, again: Again, churn: Churn) -> Finding:
    low, high = churn.sizes[0], churn.sizes[-1]
    shown = ", ".join(map(str, churn.sizes[:MOST_SIZES_SHOWN]))
    more = f" and {len(churn.sizes) - MOST_SIZES_SHOWN:,} more" if len(churn.sizes) > MOST_SIZES_SHOWN else ""
    symbol = f"{churn.tensor}.size()[{churn.dimension}]"
    return _finding(
        trace,
        again,
        subject=f"{again.frame.function} compiled for each size of {churn.tensor} in dimension {churn.dimension}",
        title=f"{again.frame.function} is compiled anew for {len(churn.sizes):,} sizes of {symbol} ({shown}{more})"
        f"{_in_steps(again)}, {format_ns(again.spent_ns)} in all{_then(again)}",
        advice=f"Make the dimension dynamic: torch._dynamo.mark_dynamic({churn.tensor}, {churn.dimension}, min={low}, "
        f"max={high}) before the call (the sizes seen: widen it to what can come), or torch.compile(..., dynamic=True) "
        "in place of dynamic=False; or pad to a few sizes (the next power of two)." + _limit_advice(again),
    )


def _finding(trace: Trace, again: Again, *, subject: str, title: str, advice: str) -> Finding:
    per_step = again.per_step_ns
    return Finding(
        subject=subject,
        title=title,
        severity=_severity(trace, again),
        basis="measured",
        cost_ns=again.spent_ns,
        cost_ns_per_step=per_step,
        where=where_of(user_line(trace, again)),
        evidence=rows_of(trace, again),
        spans=spans_within(trace, compile_spans(trace, again.compiles)),
        advice=advice,
    )


def _severity(trace: Trace, again: Again) -> Severity:
    """Share of the step; where no step is known of all the time in which the log compiled something."""
    if again.per_step_ns is not None:
        step = median(trace.step_times_ns) if trace.step_times_ns else 0
        return severity_of(again.per_step_ns, max(step, again.per_step_ns))
    log = trace.compile_log
    return severity_of(again.spent_ns, compile_spans(trace, log.compiles).total() if log is not None else 0)


def _in_steps(again: Again) -> str:
    steps = {step for step in again.steps if step is not None}
    return f" in {len(steps):,} steps" if again.over_steps is not None and steps else ""


def _then(again: Again) -> str:
    return "" if again.frame.limit is None else "; then the limit of compilations is reached, and new calls run eagerly"


def _limit_advice(again: Again) -> str:
    if again.frame.limit is None:
        return ""
    return " Raising torch._dynamo.config.recompile_limit only moves the limit."


def _fix(guard: Guard | None) -> str:
    if guard is None or guard.kind not in FIXES:
        return OTHER_FIX
    return FIXES[guard.kind].format(source=guard.source, dimension=guard.dimension)
