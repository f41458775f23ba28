"""What every report format of a comparison says, decided once from its document: rows and words, sanitized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from perfscope.analyzers.compare.runs.keys import LEVEL_WORDS, Level
from perfscope.dashboards.report.compare.types import CausePart
from perfscope.dashboards.report.compare.wording import amount, number, said_of, signed_ns, verdict
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import NAME_LIMIT, TEXT_LIMIT, clean, sanitize, shorten

if TYPE_CHECKING:
    from perfscope.dashboards.report.compare.document import Document
    from perfscope.dashboards.report.compare.types import (
        Cause,
        CauseFinding,
        FindingChange,
        Kernel,
        Method,
        Metric,
        Part,
        Side,
        Step,
    )

MOST_NAMED = 4
"""Ops of a fusion that are named: chains of more are recognised by the first ones."""

BY_TIME = " (by measured time alone)"
"""Behind a finding that came or went while nothing that can be counted changed."""

MOST_OF_A_PLACE = 3
"""Parts and metrics that a place is explained with: the others follow from them more often than not."""

COMMIT_DIGITS = 12

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
    "first looked at": "not evaluated in base",
    "fixed": "fixed",
    "better": "better",
    "no longer looked at": "not evaluated in head",
    "unchanged": "unchanged",
}

_EXPECTED = frozenset({None, *(LEVEL_WORDS[level] for level in (Level.SAME, Level.RENAMED, Level.MOVED))})
"""Ways of matching that are not worth a word: it is the same work."""


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


def headline(document: Document) -> str:
    """The verdict and what it rests on, one line."""
    return f"{document.headline}: {said_of(document.metrics)}"


def title(document: Document) -> str:
    """``base → head``: commits where they are known, else their paths."""
    return " → ".join(side_title(document, name) for name in ("base", "head"))


def side_title(document: Document, name: str) -> str:
    """``main@1a2b3c4d5e6f``, else the path."""
    method = document.method
    ref, commit = (method.base_ref, method.base_commit) if name == "base" else (method.head_ref, method.head_commit)
    if commit:
        return f"{sanitize(ref)}@{sanitize(commit[:COMMIT_DIGITS])}" if ref else sanitize(commit[:COMMIT_DIGITS])
    return sanitize(ref) if ref else _paths(document.base if name == "base" else document.head)


def _paths(side: Side) -> str:
    if not side.paths:
        return "-"
    more = f" and {len(side.paths) - 1} more" if len(side.paths) > 1 else ""
    return f"{sanitize(side.paths[0])}{more}"


def short_titles(document: Document) -> tuple[str, str]:
    """Both sides; of paths the last name only, where that tells them apart: for a line where all names are long."""
    base, head = side_title(document, "base"), side_title(document, "head")
    short = [PurePath(name).name or name for name in (base, head)]
    return (short[0], short[1]) if short[0] != short[1] else (base, head)


def is_quiet(document: Document) -> bool:
    """Whether there is nothing to tell: no verdict but no change, and no finding, count or gate that says otherwise."""
    return (
        document.headline == "no change"
        and not document.failed
        and all(
            metric.verdict == "no change" or verdict(metric) == "differs" or not metric.gates
            for metric in document.metrics
        )
        and not any(cause.exact for cause in document.causes)
        and not any(finding.change != "unchanged" and not finding.by_time for finding in document.findings)
        and not changed_kernels(document.kernels)
        and all(program.identical for program in document.programs)
    )


def changed_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Those that changed beyond chance; one that cannot be told is none of them."""
    return [kernel for kernel in kernels if kernel.verdict in ("regression", "improvement")]


def metric_rows(document: Document) -> tuple[list[Metric], list[Metric]]:
    """(metrics that say something, those without a change): time first, then worse, better, open, other."""
    order = {"regression": 0, "improvement": 1, "inconclusive": 2}
    timed = [metric for metric in document.metrics if _is_timed(metric)]
    rest = [metric for metric in document.metrics if not _is_timed(metric)]
    same = [metric for metric in rest if metric.verdict == "no change"]
    rows = sorted(
        (metric for metric in rest if metric.verdict != "no change"), key=lambda metric: order[metric.verdict]
    )
    return [*timed, *rows], same


def _is_timed(metric: Metric) -> bool:
    return metric.unit == "ns" and metric.known != "exact"


def cause_row(cause: Cause, per: str = "step", *, limit: int = NAME_LIMIT) -> CauseRow:
    """A cause in words; ``per``: what its times and counts are of; ``limit``: characters of a name."""
    lines = [f"finding {FINDING_WORDS[finding.change]}: {_finding(finding)}" for finding in cause.findings]
    lines += [
        f"{sanitize(metric.name)}: {_held(metric.unit, metric.base)} → {_held(metric.unit, metric.head)}"
        for metric in cause.metrics
    ]
    parts = [part for part in cause.parts if part.counted] or list(cause.parts)
    lines += [part_words(part, per, limit=limit) for part in parts]
    return CauseRow(
        place=sanitize(cause.place, limit),
        exact=cause.exact,
        lines=tuple(lines[:MOST_OF_A_PLACE]),
        left=max(0, len(lines) - MOST_OF_A_PLACE),
        time=signed_ns(cause.delta_ns) if cause.parts else "",
    )


def _held(unit: str, value: float | None) -> str:
    return "-" if value is None else amount(unit, value)


def _finding(finding: CauseFinding) -> str:
    return f"{rule_name(finding.rule)}: {sanitize(finding.subject)}{BY_TIME if finding.by_time else ''}"


def rule_name(rule: str) -> str:
    """``host_sync`` -> ``host_sync``."""
    return sanitize(rule)


def part_words(part: CausePart, per: str = "step", *, limit: int = NAME_LIMIT) -> str:
    """``new: aten::item, 1 a step`` or ``fused: 3 → 1 a step: aten::add, aten::mul``."""
    others = max(len(part.base_names), len(part.head_names)) - 1
    name = sanitize(part.name, limit) + (f" and {others} like it" if others > 0 else "")
    phase = f" ({sanitize(part.phase)})" if part.phase else ""
    base, head = part.base_calls or 0, part.head_calls or 0
    if part.status == "new":
        return f"new: {name}{phase}" + (f", {number(head)} a {per}" if head else "")
    if part.status == "gone":
        return f"gone: {name}{phase}" + (f", was {number(base)} a {per}" if base else "")
    status = sanitize(part.status)
    if part.counted and part.matched == LEVEL_WORDS[Level.FUSED]:
        sides = [_names(names, limit) for names in (part.base_names, part.head_names)]
        return f"{status}{phase}: {sides[0]} → {sides[1]}, {number(base)} → {number(head)} a {per}"
    if part.counted:
        level = "" if part.matched in _EXPECTED else f" ({sanitize(part.matched or '')})"
        return f"{status}: {name}{phase}, {number(base)} → {number(head)} a {per}{level}"
    return f"{status}: {name}{phase}, {format_ns(part.base_ns or 0)} → {format_ns(part.head_ns or 0)}"


def _names(names: Sequence[str], limit: int) -> str:
    """The first few of several names."""
    texts = list(dict.fromkeys(sanitize(name, limit) for name in names))
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more


def told(part: Part) -> CausePart:
    """A part of the step as a cause tells of it."""
    keys = part.head.keys or part.base.keys
    first = next((key for key in keys if key.file), keys[0] if keys else None)
    return CausePart(
        status=part.status,
        name=part.name,
        phase="" if first is None else first.phase,
        base_calls=part.base.calls,
        head_calls=part.head.calls,
        delta_ns=part.delta_ns,
        base_ns=part.base.ns,
        head_ns=part.head.ns,
        matched=part.matched,
        counted=part.countable and part.base.calls != part.head.calls,
        base_names=tuple(key.name for key in part.base.keys),
        head_names=tuple(key.name for key in part.head.keys),
    )


def kinds(step: Step) -> tuple[tuple[str, int, int], ...]:
    """(what, base, head) in ns by kind, idle time by cause below it; rows that begin with two blanks are parts."""
    rows: list[tuple[str, int, int]] = []
    known = list(KIND_WORDS)
    for kind in sorted(step.by_kind, key=lambda kind: known.index(kind) if kind in known else len(known)):
        amount = step.by_kind[kind]
        rows.append((KIND_WORDS.get(kind, sanitize(kind)), amount.base_ns, amount.head_ns))
        if kind == "idle":
            rows += [(f"  {cause}", *amounts) for cause, amounts in idle_causes(step).items()]
    return tuple(rows)


def idle_causes(step: Step) -> dict[str, tuple[int, int]]:
    """(base, head) in ns by cause of idle time, the largest change first."""
    amounts: dict[str, list[int]] = {}
    for part in step.parts:
        if part.kind == "idle":
            for index, side in enumerate((part.base, part.head)):
                if side.keys:
                    word = sanitize(side.keys[0].work.removeprefix("idle: "))
                    amounts.setdefault(word, [0, 0])[index] += side.ns
    return {
        word: (base, head)
        for word, (base, head) in sorted(amounts.items(), key=lambda row: -abs(row[1][1] - row[1][0]))
    }


def not_looked(document: Document) -> tuple[tuple[str, str], ...]:
    """(names, reason) of metrics that could not be compared, those of one reason together."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for metric in document.not_looked:
        groups.setdefault((metric.reason, metric.sides), []).append(metric.name)
    return tuple(
        (sanitize(", ".join(names), 300), sanitize(f"{' and '.join(sides)}: {reason}" if sides else reason, TEXT_LIMIT))
        for (reason, sides), names in groups.items()
    )


def finding_counts(findings: Sequence[FindingChange]) -> str:
    """``1 new, 2 fixed, 3 unchanged``; ``none`` without any."""
    counts = {word: sum(finding.change == key for finding in findings) for key, word in FINDING_WORDS.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none"


def finding_cost(change: FindingChange) -> str:
    """``costs up to 5.10 ms a step``, and what it did cost; ``''`` where it has no time."""
    before, after = (None if side is None else side.cost_ns_per_step for side in (change.base, change.head))
    if change.head is None:
        return "" if before is None else f"did cost up to {format_ns(before)} a step"
    if after is None:
        return ""
    was = "" if before is None else f", was {format_ns(before)}"
    return f"costs up to {format_ns(after)} a step{was}"


def advice_of(change: FindingChange) -> str:
    """What to do about it, lines kept, fit to be shown."""
    return shorten(clean(change.shown.advice), TEXT_LIMIT)


def kernel_word(kernel: Kernel) -> str:
    """``slower``, ``faster``, ``new``, ``gone``, or its verdict."""
    if kernel.kind != "changed":
        return kernel.kind
    return {"regression": "slower", "improvement": "faster"}.get(kernel.verdict, kernel.verdict)


def pair_words(method: Method, what: str = "pairs") -> str:
    """``10 pairs and 10 to confirm``."""
    confirming = f" and {method.confirming_pairs} to confirm" if method.confirming_pairs else ""
    return f"{method.pairs} {what}{confirming}"


def method_lines(document: Document) -> list[str]:
    """How it was compared, a sentence a line, without stops at their ends."""
    method = document.method
    texts = [sanitize(method.kind)]
    if method.pairs:
        seed = f", order by seed {method.seed}" if method.seed is not None else ""
        texts = [f"{sanitize(method.kind)}: {pair_words(method)}{seed}"]
    if method.profiled:
        launches = "launch of each side was" if method.profiled == 1 else "launches of each side were"
        texts.append(f"{method.profiled} {launches} profiled, beside those that were timed")
    if method.estimator:
        texts.append(sanitize(method.estimator, TEXT_LIMIT))
    if method.least is not None:
        texts.append(f"a change of time below {method.least:.1%} does not matter")
    texts += [sanitize(remark, TEXT_LIMIT) for remark in method.remarks]
    if method.command:
        texts.append(f"command: {sanitize(' '.join(method.command), 400)}")
    return texts


def environment(document: Document) -> list[tuple[str, str]]:
    """(what, value) of the machine, devices first."""
    rows = []
    devices = dict.fromkeys((*document.base.devices, *document.head.devices))
    if devices:
        rows.append(("device", sanitize(", ".join(devices), 300)))
    return rows + [(sanitize(key), sanitize(text)) for key, text in document.method.environment.items()]
