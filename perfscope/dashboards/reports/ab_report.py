"""The result of an A/B as a few lines for a terminal, and as JSON (``perfscope.ab-result/1``)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from perfscope.analyzers.units import format_bytes, format_ns
from perfscope.dashboards.shown import TEXT_LIMIT, shown, shown_value
from perfscope.profiler.environment import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.analyzers.compare.ab_judge import AbResult
    from perfscope.analyzers.compare.verdict import MetricResult
    from perfscope.profiler.ab_state import Plan

SCHEMA = "perfscope.ab-result/1"


def as_json(result: AbResult, plan: Plan) -> str:
    """Indented JSON text: the plan with secrets of the command hidden, every metric, the remarks."""
    held = {"schema": SCHEMA, "plan": {**asdict(plan), "command": redact(plan.command)}, **result.to_json()}
    return json.dumps(shown_value(held), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_text(result: AbResult, plan: Plan) -> str:
    """The verdict of each metric, one a line; what stands beside them; how it was found."""
    return "".join(f"{line}\n" for line in _lines(result, plan))


def _lines(result: AbResult, plan: Plan) -> Iterator[str]:
    yield f"{shown(plan.base_ref)} ({shown(plan.base[:12])}) -> {shown(plan.head_ref)} ({shown(plan.head[:12])})"
    for metric in result.gating:
        yield f"  {metric.verdict:<12}  {_row(metric)}"
    for metric in result.beside:
        yield f"  {'beside':<12}  {_row(metric)}"
    step = result.step
    if step.needed_pairs is not None:
        yield f"  about {step.needed_pairs} pairs in all would settle it, by the spread so far"
    for remark in (*step.remarks, *result.remarks):
        yield f"  {shown(remark, TEXT_LIMIT)}"
    yield f"  {result.estimator.reason()}"
    pairs = f"{result.pairs} pairs of launches" + (f" and {result.confirming} to confirm" if result.confirming else "")
    yield f"  {pairs}, order by seed {plan.seed}, a change below {plan.least:.1%} does not matter"


def _row(metric: MetricResult) -> str:
    text = f"{metric.name}  {_value(metric, metric.base)} -> {_value(metric, metric.head)}"
    if metric.effect is not None:
        text += f"  {metric.effect:+.1%}"
    if metric.low is not None and metric.high is not None and metric.level is not None:
        text += f"  ({metric.low:+.1%} to {metric.high:+.1%} at {metric.level:.1%})"
    if metric.p is not None:
        text += f"  p {metric.p:.2g}"
    return text


def _value(metric: MetricResult, value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return shown(value)
    if metric.unit == "ns":
        return format_ns(value)
    return format_bytes(value) if metric.unit == "bytes" else f"{value:g}"
