"""What every report of a comparison says, decided once: headline, rows and words, fit to be shown, escaped for none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.analyzers.compare.keys import LEVEL_WORDS, Level
from perfscope.analyzers.compare.structure import NEUTRAL
from perfscope.analyzers.units import format_bytes, format_count, format_ns
from perfscope.dashboards.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from perfscope.analyzers.compare.causes import Cause
    from perfscope.analyzers.compare.change import PartChange, StepChange
    from perfscope.analyzers.compare.comparison import Comparison, SideSummary
    from perfscope.analyzers.compare.findings import FindingChange
    from perfscope.analyzers.compare.keys import Key
    from perfscope.analyzers.compare.verdict import MetricResult

NO_VERDICT = "not judged"
"""Of a time of single captures: it is shown, and nothing is concluded from it."""

MOST_NAMED = 4
"""Ops of a fusion that are named: chains of more are recognised by the first ones."""

BY_TIME = " (by measured time alone)"
"""Behind a finding that came or went while nothing that can be counted changed."""

MOST_OF_A_PLACE = 3
"""Parts and metrics that a place is explained with: the others follow from them more often than not."""

KIND_WORDS = {
    "compute": "compute",
    "communication": "exposed communication",
    "copy": "exposed copies",
    "idle": "idle",
    "host": "host",
}

FINDING_WORDS = {
    "new": "new",
    "worse": "worse",
    "first looked at": "base could not look",
    "fixed": "fixed",
    "better": "better",
    "no longer looked at": "head could not look",
    "unchanged": "unchanged",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """A place where something changed."""

    place: str
    exact: bool
    lines: tuple[str, ...]
    """What changed, the most telling first."""
    left: int
    """Changes of the place that are not in ``lines``."""
    time: str
    """Change of its parts a step, with sign; ``''`` where none has a time."""


def title(comparison: Comparison) -> str:
    """``base → head`` by their paths."""
    return f"{_paths(comparison.base)} → {_paths(comparison.head)}"


def headline(comparison: Comparison) -> str:
    """The verdict and what it rests on, one line."""
    judged = [one.result for one in comparison.exact if one.result.unit != "text"]
    by_verdict = {word: [one for one in judged if one.verdict == word] for word in ("regression", "improvement")}
    same = sum(one.verdict == "no change" for one in judged)
    said = []
    for word, grown in (("regression", "worse"), ("improvement", "better")):
        if by_verdict[word]:
            first = by_verdict[word][0]
            more = f", {len(by_verdict[word])} {grown} in all" if len(by_verdict[word]) > 1 else ""
            sides = [value(first, held) for held in (first.base, first.head)]
            moved = " → ".join(sides) if sides[0] != sides[1] else change(first)
            said.append(f"{grown}: {first.name} {moved}{more}")
    if not said:
        said.append(f"{same} exact metrics the same" if same else "no exact metric on both sides")
    timed = comparison.step_time
    if timed is not None and not timed.gates:
        said.append("time not judged (one launch each)")
    return f"{comparison.headline}: {'; '.join(said)}"


def value(metric: MetricResult, held: float | str | None) -> str:
    """A metric's value in its unit."""
    if held is None:
        return "-"
    if isinstance(held, str):
        return held
    return amount(metric.unit, held)


def amount(unit: str, held: float) -> str:
    """A number in its unit."""
    if unit == "ns":
        return format_ns(held)
    if unit == "bytes":
        return format_bytes(held)
    return format_count(held) if unit == "FLOP" else number(held)


def number(held: float | Fraction) -> str:
    """A count: whole where it is whole, else with two digits."""
    return f"{int(held):,}" if held == int(held) else f"{float(held):,.2f}"


def change(metric: MetricResult) -> str:
    """Relative change, with the interval where there is one; ``''`` of texts."""
    if metric.effect is None or metric.base == metric.head:
        return "" if metric.base == metric.head or isinstance(metric.base, str) else "from none"
    if metric.low is None or metric.high is None:
        return percent(metric.effect)
    return f"{percent(metric.effect)} [{percent(metric.low)}, {percent(metric.high)}]"


def percent(share: float) -> str:
    """``0.0312`` -> ``+3.1%``."""
    return f"{100 * share:+.1f}%"


def verdict(metric: MetricResult) -> str:
    """The verdict in words; of single captures none."""
    if NEUTRAL in metric.remarks:
        return "differs"
    if metric.gates:
        return metric.verdict if metric.unit != "text" else "the same" if metric.base == metric.head else "differs"
    return NO_VERDICT if metric.verdict == "inconclusive" else f"{NO_VERDICT} (looks like {metric.verdict})"


def signed_ns(ns: int) -> str:
    """``+38.7 us``."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{format_ns(abs(ns))}"


def cause_row(cause: Cause, per: str = "step") -> CauseRow:
    """A cause in words; ``per``: what its times and counts are of."""
    lines = [f"finding {FINDING_WORDS[one.change]}: {_finding(one)}" for one in cause.findings]
    lines += [
        f"{shown(one.name)}: {amount(one.unit, one.base)} → {amount(one.unit, one.head)}" for one in cause.metrics
    ]
    told = [part for part in cause.parts if part.counts_differ] or list(cause.parts)
    lines += [part_words(part, per) for part in told]
    return CauseRow(
        place=shown(cause.place),
        exact=cause.exact,
        lines=tuple(lines[:MOST_OF_A_PLACE]),
        left=max(0, len(lines) - MOST_OF_A_PLACE),
        time=signed_ns(cause.delta_ns) if cause.parts else "",
    )


def part_words(part: PartChange, per: str = "step") -> str:
    """``new: aten::item, 1 a step`` or ``fused: 3 → 1 a step: aten::add, aten::mul``."""
    key = part.key()
    others = max(len(part.base.keys), len(part.head.keys)) - 1
    name = shown(key.name()) + (f" and {others} like it" if others else "")
    phase = f" ({key.phase})" if key.phase else ""
    base, head = part.base.calls, part.head.calls
    if part.status == "new":
        return f"new: {name}{phase}" + (f", {number(head)} a {per}" if head else "")
    if part.status == "gone":
        return f"gone: {name}{phase}" + (f", was {number(base)} a {per}" if base else "")
    if part.counts_differ and part.level is Level.FUSED:
        sides = [_names(side.keys) for side in (part.base, part.head)]
        return f"{part.status}{phase}: {sides[0]} → {sides[1]}, {number(base)} → {number(head)} a {per}"
    if part.counts_differ:
        level = f" ({LEVEL_WORDS[part.level]})" if part.level is not None and part.level > Level.MOVED else ""
        return f"{part.status}: {name}{phase}, {number(base)} → {number(head)} a {per}{level}"
    return f"{part.status}: {name}{phase}, {format_ns(part.base.ns)} → {format_ns(part.head.ns)}"


def _names(keys: Sequence[Key]) -> str:
    """The first few names of several pieces of work."""
    names = list(dict.fromkeys(shown(key.name()) for key in keys))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def kinds(step: StepChange) -> tuple[tuple[str, int, int], ...]:
    """(what, base, head) in ns by kind, idle time by cause below it; rows that begin with two blanks are parts."""
    held = step.by_kind()
    rows: list[tuple[str, int, int]] = []
    for kind, word in KIND_WORDS.items():
        if kind not in held:
            continue
        rows.append((word, *held[kind]))
        if kind == "idle":
            rows += [(f"  {cause}", *amounts) for cause, amounts in idle_causes(step).items()]
    return tuple(rows)


def idle_causes(step: StepChange) -> dict[str, tuple[int, int]]:
    """(base, head) in ns by cause of idle time, the largest change first."""
    found: dict[str, list[int]] = {}
    for part in step.parts:
        if part.kind == "idle":
            for at, side in enumerate((part.base, part.head)):
                if side.keys:
                    word = side.keys[0].work.removeprefix("idle: ")
                    found.setdefault(word, [0, 0])[at] += side.ns
    return {
        word: (base, head) for word, (base, head) in sorted(found.items(), key=lambda one: -abs(one[1][1] - one[1][0]))
    }


def not_looked(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """(names, reason) of metrics that could not be compared, those of one reason together."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in comparison.not_looked:
        groups.setdefault((one.reason, one.sides), []).append(one.name)
    return tuple(
        (shown(", ".join(names), 300), shown(f"{' and '.join(sides)}: {reason}"))
        for (reason, sides), names in groups.items()
    )


def finding_counts(findings: Sequence[FindingChange]) -> str:
    """``1 new, 2 fixed, 3 unchanged``; ``none`` without any."""
    counts = {word: sum(one.change == key for one in findings) for key, word in FINDING_WORDS.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none"


def _finding(one: FindingChange) -> str:
    return f"{one.rule.replace('_', '-')}: {shown(one.shown.subject)}{BY_TIME if one.by_time else ''}"


def _paths(side: SideSummary) -> str:
    more = f" and {len(side.paths) - 1} more" if len(side.paths) > 1 else ""
    return f"{shown(side.paths[0])}{more}"
