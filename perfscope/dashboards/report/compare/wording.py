"""Numbers and verdicts of a comparison in words, the same in every report format. Not escaped."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from perfscope.analyzers.compare.runs.structure import NEUTRAL
from perfscope.model.units import format_bytes, format_count, format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.compare.statistics.verdict import MetricResult
    from perfscope.dashboards.report.compare.types import Metric

    Judged: TypeAlias = MetricResult | Metric
    """A metric with its verdict: as it was computed, or read back from a document."""

NO_VERDICT = "not judged"
"""Of a time of single captures: it is shown, and nothing is concluded from it."""

SINGLE = "single captures"

IDENTICAL = "identical: same fingerprint"
"""Of compiled programs: the same ops, shapes and schedule, whatever they are called."""

MOST_PERCENT = 10
"""Relative change from which on percents are given without a decimal: +196.0%, but +1,234%."""


def said_of(metrics: Sequence[Judged]) -> str:
    """What the metrics say together, one line: the judged time with its interval, then what is worse, or better."""
    timed = next((metric for metric in metrics if metric.gates and has_interval(metric)), None)
    texts = [] if timed is None else [interval_words(timed)]
    if timed is not None and timed.verdict in ("no change", "inconclusive"):
        texts[0] += f": {timed.verdict}"  # the headline may be that of another metric
    judged = [metric for metric in metrics if metric.gates and metric.unit != "text" and metric is not timed]
    for verdict, grown in (("regression", "worse"), ("improvement", "better")):
        changed = [metric for metric in judged if metric.verdict == verdict]
        if changed:
            first = changed[0]
            sides = [value(first, side_value) for side_value in (first.base, first.head)]
            words = " → ".join(sides) if sides[0] != sides[1] else change(first)
            more = f", {len(changed)} {grown} in all" if len(changed) > 1 else ""
            texts.append(f"{grown}: {sanitize(first.name)} {words}{more}")
    same = sum(metric.verdict == "no change" for metric in judged)
    if same and not any(metric.verdict in ("regression", "improvement") for metric in judged):
        texts.append(f"{same} exact metric{'' if same == 1 else 's'} the same")
    prints = [metric for metric in metrics if metric.unit == "text"]
    moved = any(metric.verdict in ("regression", "improvement") for metric in judged)
    if prints and not moved and all(metric.base == metric.head is not None for metric in prints):
        texts.append(IDENTICAL)
    if not texts:
        texts.append("no exact metric on both sides")
    if any(metric.known == SINGLE and not metric.gates for metric in metrics):
        texts.append("time not judged (one launch each)")
    return "; ".join(texts)


def has_interval(metric: Judged) -> bool:
    """Whether its effect has both ends of an interval."""
    return metric.effect is not None and metric.low is not None and metric.high is not None


def interval_words(metric: Judged) -> str:
    """``step time +3.0% (95% CI +2.0% … +4.0%)``."""
    if metric.effect is None or metric.low is None or metric.high is None:
        return sanitize(metric.name)
    level = 0.95 if metric.level is None else metric.level
    ends = f"{percent(metric.low)} … {percent(metric.high)}"
    return f"{sanitize(metric.name)} {percent(metric.effect)} ({100 * level:.3g}% CI {ends})"


def value(metric: Judged, side_value: float | str | None) -> str:
    """A metric's value in its unit."""
    if side_value is None:
        return "-"
    if isinstance(side_value, str):
        return sanitize(side_value)
    return amount(metric.unit, side_value)


def amount(unit: str, quantity: float) -> str:
    """A number in its unit."""
    if unit == "ns":
        return format_ns(quantity)
    if unit == "bytes":
        return format_bytes(quantity)
    return format_count(quantity) if unit == "FLOP" else number(quantity)


def number(count: float | Fraction) -> str:
    """A count: whole where it is whole, else with two digits."""
    return f"{int(count):,}" if count == int(count) else f"{float(count):,.2f}"


def change(metric: Judged) -> str:
    """Relative change, with the interval where there is one; ``''`` of texts."""
    if metric.effect is None or metric.base == metric.head:
        return "" if metric.base == metric.head or isinstance(metric.base, str) else "from none"
    if metric.low is None or metric.high is None:
        return percent(metric.effect)
    return f"{percent(metric.effect)} [{percent(metric.low)}, {percent(metric.high)}]"


def percent(share: float) -> str:
    """``0.0312`` -> ``+3.1%``."""
    return f"{100 * share:+.1f}%" if abs(share) < MOST_PERCENT else f"{100 * share:+,.0f}%"


def verdict(metric: Judged) -> str:
    """The verdict in words; of single captures none."""
    if NEUTRAL in metric.remarks:
        return "differs"
    if metric.unit == "text":
        return "the same" if metric.base == metric.head else "differs"
    if metric.gates or metric.known != SINGLE:
        return metric.verdict
    return NO_VERDICT if metric.verdict == "inconclusive" else f"{NO_VERDICT} (looks like {metric.verdict})"


def signed_ns(ns: float) -> str:
    """``+38.7 us``."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{format_ns(abs(ns))}"
