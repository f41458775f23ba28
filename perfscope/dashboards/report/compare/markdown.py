"""A comparison as one comment on a pull request: the verdict, why, and the rest folded. One line where nothing changed.

GitHub's Markdown, within GitHub's size. Its first line is a marker by which a bot finds the comment again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfscope.dashboards.report.compare.program_formats import (
    MARKS,
    MOST_NOTES,
    NAME_LIMIT,
    NO_MARK,
    few,
    folded,
    program_paragraphs,
)
from perfscope.dashboards.report.compare.rows import (
    BY_TIME,
    FINDING_WORDS,
    advice_of,
    cause_row,
    changed_kernels,
    environment,
    finding_cost,
    finding_counts,
    is_quiet,
    kernel_word,
    kinds,
    method_lines,
    metric_rows,
    not_looked,
    pair_words,
    part_words,
    rule_name,
    short_titles,
    title,
    told,
)
from perfscope.dashboards.report.compare.svg import scale_of, text_bar
from perfscope.dashboards.report.compare.wording import NO_VERDICT, change, percent, said_of, signed_ns, value, verdict
from perfscope.dashboards.report.markdown_text import advice_text, code, escape, in_html, inline, markdown_table, prose
from perfscope.model.errors import UsageError
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.dashboards.report.compare.document import Document
    from perfscope.dashboards.report.compare.types import Cause, FindingChange, Metric, Step

MOST_CHARACTERS = 60_000
"""GitHub refuses comments above 65,536 characters; the rest is room for what a bot adds."""

DEFAULT_KEY = "compare"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&*+,;=%-]+")

MOST_METRICS = 10
MOST_CAUSES = 5
MOST_FINDINGS = 10
MOST_ADVISED = 5
"""Findings whose advice is given: those to begin with."""
MOST_KERNELS = 20
MOST_PARTS = 10
MOST_REASONS = 2
"""Why a time is open: the first remarks say it."""
MOST_ENVIRONMENT = 12
FEW_FACTS = 3
"""Facts of the machine in the line below the verdict; the others are folded."""

SHRINKS = (1, 2, 4, 8)
"""Rows are divided by these, in turn, until the comment is small enough."""

_FINDING_MARKS = {
    "new": "\N{LARGE RED CIRCLE}",
    "worse": "\N{LARGE RED CIRCLE}",
    "fixed": "\N{LARGE GREEN CIRCLE}",
    "better": "\N{LARGE GREEN CIRCLE}",
}


def marker(key: str) -> str:
    """The first line of a comment. ``UsageError`` unless the key is of letters, digits, ``.``, ``_``, ``-``."""
    if not _KEY.fullmatch(key):
        raise UsageError(f"{sanitize(key)}: a key has letters, digits, '.', '_' and '-', at most 100 of them")
    return f"<!-- perfscope-report:{key} -->"


def render(document: Document, *, key: str = DEFAULT_KEY, url: str | None = None, limit: int = MOST_CHARACTERS) -> str:
    """The comment, of at most ``limit`` characters; what is left out is said.

    ``key`` tells this comment from others of perfscope; ``url``: where the whole report is.
    """
    if url is not None and not _URL.fullmatch(url):
        raise UsageError(f"{sanitize(url)}: not an http(s) address that a link can hold")
    lead = f"{marker(key)}\n"
    link = "" if url is None else f"[full report]({url})"
    if is_quiet(document):
        text = f"{lead}{_quiet(document)}{f' · {link}' if link else ''}\n"
        if len(text) <= limit:
            return text
    for shrink in SHRINKS:
        blocks = list(_blocks(document, shrink))
        if shrink > 1:
            blocks.append("_Cut to fit a comment: the HTML and JSON reports hold all._")
        text = lead + "\n\n".join([*blocks, *([link] if link else [])]) + "\n"
        if len(text) <= limit:
            return text
    return (
        f"{lead}### perfscope: {MARKS[document.headline]} {document.headline}\n\n_Too large for a comment._\n{link}\n"
    )


def _quiet(document: Document) -> str:
    texts = [said_of(document.metrics)]
    by_time = sum(finding.change != "unchanged" for finding in document.findings)
    if by_time:
        texts.append(f"{by_time} finding{'' if by_time == 1 else 's'} changed{BY_TIME}")
    if document.not_looked:
        texts.append(f"{len(document.not_looked)} could not be compared")
    sides = " → ".join(map(code, short_titles(document)))
    return f"{MARKS['no change']} **perfscope: no change** · {inline('; '.join(texts))} · {sides}"


def _blocks(document: Document, shrink: int) -> Iterator[str]:
    yield f"### perfscope: {MARKS[document.headline]} {document.headline}: {inline(said_of(document.metrics))}"
    yield _sides(document)
    if document.failed:
        lines = [inline(sanitize(line)) for line in document.failed[: few(MOST_METRICS, shrink)]]
        yield f"**Gate not met:** {'; '.join(lines)}{_more(document.failed, lines)}"
    per = "step" if document.step is None else document.step.per
    yield from program_paragraphs(document, shrink)
    yield from _causes(document.causes, per, shrink)
    yield from _metrics(document, shrink)
    yield from _findings(document.findings, shrink)
    yield from _advice(document.findings, shrink)
    yield from _kernels(document, shrink)
    if document.step is not None:
        yield folded(_step_title(document.step), "\n\n".join(_step(document, document.step, shrink)))
    yield from _unknown(document, shrink)
    yield folded("Method and environment", "\n\n".join(_method(document, shrink)))


def _more(every: Sequence[object], kept: Sequence[object]) -> str:
    return f" and {len(every) - len(kept):,} more" if len(every) > len(kept) else ""


def _sides(document: Document) -> str:
    facts = [" → ".join(code(name) for name in short_titles(document))]
    method = document.method
    if method.pairs:
        facts.append(pair_words(method, "pairs of launches"))
    facts += [
        inline(f"{text}" if key == "device" else f"{key} {text}") for key, text in environment(document)[:FEW_FACTS]
    ]
    return " · ".join(facts)


def _causes(causes: Sequence[Cause], per: str, shrink: int) -> Iterator[str]:
    exact = [cause for cause in causes if cause.exact]
    if not exact:
        return
    kept = exact[: few(MOST_CAUSES, shrink)]
    lines = [f"**What changed**{', the most telling first' if len(exact) > 1 else ''}"]
    for number, cause in enumerate(kept, 1):
        row = cause_row(cause, per, limit=NAME_LIMIT)
        left = f"; and {row.left} more" if row.left else ""
        time = f" ({inline(row.time)} a {per})" if row.time else ""
        lines.append(f"{number}. {code(row.place)}{time}: {inline('; '.join(row.lines))}{left}")
    yield f"{lines[0]}\n\n" + "\n".join(lines[1:])
    if len(kept) < len(exact):
        yield f"and {len(exact) - len(kept):,} more places"


def _metrics(document: Document, shrink: int) -> Iterator[str]:
    rows, same = metric_rows(document)
    kept = rows[: few(MOST_METRICS, shrink)]
    if kept:
        yield _metric_table(kept, scale_of((*rows, *document.beside)))
    if len(kept) < len(rows):
        yield f"and {len(rows) - len(kept):,} more metrics that changed"
    for metric in kept:
        if metric.gates and metric.known != "exact" and metric.verdict == "inconclusive":  # why not, where it is asked
            text = "; ".join(sanitize(remark, 320) for remark in metric.remarks[:MOST_REASONS])
            if text:
                yield f"The {inline(sanitize(metric.name))} is open: {inline(text)}."
        if metric.needed_pairs is not None:
            name = inline(sanitize(metric.name))
            yield f"About {metric.needed_pairs:,} pairs in all would settle the {name}, by the spread so far."
    if same:
        names = ", ".join(sanitize(metric.name) for metric in same)
        yield f"{MARKS['no change']} no change: {inline(sanitize(names, 600))} ({len(same):,})"
    if document.beside:
        beside = document.beside[: few(MOST_METRICS, shrink)]
        yield folded("Beside it, never gating", _metric_table(beside, scale_of((*rows, *document.beside))))


def _metric_table(metrics: Sequence[Metric], end: float | None) -> str:
    heads = ["verdict", "metric", "base", "head", "change"]
    if end is not None:
        heads.append(f"-{100 * end:g}% … +{100 * end:g}%")
    rows = []
    for metric in metrics:
        text = verdict(metric)
        mark = MARKS.get(text, NO_MARK)
        cells = [
            f"{mark} {inline(text)}",
            inline(sanitize(metric.name)),
            *(inline(value(metric, side_value)) for side_value in (metric.base, metric.head)),
            inline(_change(metric, text)),
        ]
        if end is not None:
            bar = text_bar(metric, end) if NO_VERDICT not in text else ""
            cells.append(f"`{bar}`" if bar else "")
        rows.append(cells)
    return markdown_table(heads, rows, "llrrrl"[: len(heads)])


def _change(metric: Metric, text: str) -> str:
    """Without the interval of what is not judged: it is wide, and says nothing."""
    if NO_VERDICT in text and metric.effect is not None:
        return percent(metric.effect)
    return change(metric)


def _findings(findings: Sequence[FindingChange], shrink: int) -> Iterator[str]:
    changed = [finding for finding in findings if finding.change != "unchanged"]
    told_ones = [change for change in changed if not change.by_time]
    by_time = [change for change in changed if change.by_time]
    yield f"**Findings**: {finding_counts(findings)}"
    kept = told_ones[: few(MOST_FINDINGS, shrink)]
    if kept:
        yield "\n".join(map(_finding, kept))
    if len(kept) < len(told_ones):
        yield f"and {len(told_ones) - len(kept):,} more findings that changed"
    if by_time:
        rows = by_time[: few(MOST_FINDINGS, shrink)]
        left = f"\n\nand {len(by_time) - len(rows):,} more" if len(rows) < len(by_time) else ""
        title = f"{len(by_time):,} by measured time alone: a threshold was crossed, maybe by chance"
        yield folded(title, "\n".join(map(_finding, rows)) + left)


def _finding(change: FindingChange) -> str:
    where = change.shown.where.label()
    shown_at = f" at {code(sanitize(where))}" if where else ""
    cost = finding_cost(change)
    text = f", {inline(cost)}" if cost else ""
    lead = f"{_FINDING_MARKS.get(change.change, NO_MARK)} {FINDING_WORDS[change.change]}"
    title = prose(sanitize(change.shown.title, 320))
    return f"- {lead} **{inline(rule_name(change.rule))}** ({change.shown.severity}){shown_at}{text}: {title}"


def _advice(findings: Sequence[FindingChange], shrink: int) -> Iterator[str]:
    """What to do about what is new or worse."""
    worse = [finding for finding in findings if finding.is_worse and finding.shown.advice][: few(MOST_ADVISED, shrink)]
    for finding in worse:
        where = finding.shown.where.label()
        shown_at = f" at {in_html(sanitize(where))}" if where else ""
        yield folded(f"What to do: {in_html(rule_name(finding.rule))}{shown_at}", advice_text(advice_of(finding)))


def _kernels(document: Document, shrink: int) -> Iterator[str]:
    kernels = document.kernels
    changed = changed_kernels(kernels)
    if not kernels:
        return
    title = f"Kernels: {len(changed):,} of {len(kernels):,} changed (Benjamini-Hochberg over all)"
    rows = [
        (
            f"{MARKS[kernel.verdict]} {kernel_word(kernel)}", code(sanitize(kernel.name)), format_ns(kernel.base_ns),
            format_ns(kernel.head_ns), signed_ns(kernel.change_ns),
            "" if kernel.effect is None else percent(kernel.effect), "" if kernel.q is None else f"{kernel.q:.2g}",
        )
        for kernel in changed[: few(MOST_KERNELS, shrink)]
    ]  # fmt: skip
    table = markdown_table(("", "kernel", "base", "head", "change", "", "q"), rows, "llrrrrr") if rows else "none"
    yield folded(title, table + (f"\n\nand {len(changed) - len(rows):,} more" if len(rows) < len(changed) else ""))


def _step_title(step: Step) -> str:
    of = "The step" if step.per == "step" else "The recording"
    return f"{of} in parts: {format_ns(step.base_ns)} → {format_ns(step.head_ns)}, {signed_ns(step.delta_ns)}"


def _step(document: Document, step: Step, shrink: int) -> Iterator[str]:
    rows = [
        (inline(name.strip()) if not name.startswith("  ") else f"· {inline(name.strip())}", format_ns(base),
         format_ns(head), signed_ns(head - base))
        for name, base, head in kinds(step)[: 3 * few(MOST_PARTS, shrink)]
    ]  # fmt: skip
    rows.append(("**sum**", format_ns(step.base_ns), format_ns(step.head_ns), signed_ns(step.delta_ns)))
    yield markdown_table(("part", "base", "head", "change"), rows, "lrrr")
    moved = [part for part in step.parts if part.delta_ns]
    kept = moved[: few(MOST_PARTS, shrink)]
    if kept:
        chance = "" if document.method.profiled > 1 else " (one launch each: part of them is chance)"
        yield f"Largest differences of measured time{chance}:"
        yield "\n".join(
            f"- {signed_ns(part.delta_ns)}: {inline(part_words(told(part), step.per, limit=NAME_LIMIT))}"
            + (f" at {code(sanitize(part.place, NAME_LIMIT))}" if part.place else "")
            for part in kept
        )
        others = len(moved) - len(kept) + step.other_parts.count
        if others:
            yield f"and {signed_ns(step.delta_ns - sum(part.delta_ns for part in kept))} in {others:,} other parts"
    if document.worst_rank is not None:
        worst = document.worst_rank
        yield f"The rank that grew most: {worst.rank}, {signed_ns(worst.delta_ns)} a {worst.per}"


def _unknown(document: Document, shrink: int) -> Iterator[str]:
    blind = not_looked(document)
    if blind:
        rows = blind[: few(MOST_NOTES, shrink)]
        lines = [f"- {escape(names)} ({prose(reason)})" for names, reason in rows]
        count = len(document.not_looked)
        left = f"\n\nand {len(blind) - len(rows):,} more" if len(rows) < len(blind) else ""
        yield folded(f"Could not look: {count:,} metric{'' if count == 1 else 's'}", "\n".join(lines) + left)


def _method(document: Document, shrink: int) -> Iterator[str]:
    lines = [*([] if document.method.base_commit else [title(document)]), *method_lines(document)]
    for metric in document.metrics:
        if metric.known != "exact":
            lines += [f"{sanitize(metric.name)}: {sanitize(remark, TEXT_LIMIT)}" for remark in metric.remarks]
    lines += [sanitize(note, TEXT_LIMIT) for note in document.notes]
    kept = list(dict.fromkeys(lines))[: few(MOST_NOTES, shrink)]
    yield "\n".join(f"- {escape(line)}" for line in kept)
    rows = environment(document)[: few(MOST_ENVIRONMENT, shrink)]
    if rows:
        yield markdown_table(("", ""), [(inline(key), inline(text)) for key, text in rows], "ll")
