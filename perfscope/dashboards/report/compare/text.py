"""A comparison on one screen of a terminal: the verdict, what changed and where, the step in parts, the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.compare.document import modelled_line, program_lines, program_title, written_line
from perfscope.dashboards.report.compare.rows import (
    BY_TIME,
    FINDING_WORDS,
    cause_row,
    changed_kernels,
    finding_counts,
    headline,
    kernel_word,
    kinds,
    method_lines,
    not_looked,
    part_words,
    rule_name,
    title,
    told,
)
from perfscope.dashboards.report.compare.wording import SINGLE, change, percent, signed_ns, value, verdict
from perfscope.dashboards.report.renderers.text import WIDTH, printed
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.report.compare.document import Document
    from perfscope.dashboards.report.compare.types import Cause, FindingChange, Kernel, Metric, Rank, Step


MOST_CAUSES = 8
"""Places on the one screen; a change of the program touches a few, a new version of a library hundreds."""
MOST_PROGRAMS = 4
MOST_PROGRAM_ROWS = 6
MOST_PARTS = 8
MOST_FINDINGS = 12
MOST_RANKS = 16
MOST_KERNELS = 8
MOST_ROWS = 200
"""Of everything else, also with ``-v``: nobody scrolls through more, and a document may be untrusted."""
EXACT = "exact"

PLACE_SHARE = 36
"""Percent of the width for a place: cut at its beginning, never folded."""

_STYLES = {"regression": "bold red", "improvement": "green", "inconclusive": "yellow"}


def render(document: Document, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """A comparison as text for ``width`` columns; ``verbose``: everything, not only what fits one screen."""
    return printed(lambda columns: _parts(document, columns, verbose=verbose), width=width, color=color)


def _parts(document: Document, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield _line("perfscope: ", headline(document), style=_STYLES.get(document.headline, "bold"))
    yield _line("  ", title(document))
    yield ""
    yield from _metrics(document, verbose=verbose)
    per = "step" if document.step is None else document.step.per
    yield from _programs(document, width, verbose=verbose)
    yield from _causes(document.causes, width, per, verbose=verbose)
    if document.step is not None:
        yield from _time(document, document.step, verbose=verbose)
    yield from _kernels(document.kernels, verbose=verbose)
    yield from _findings(document.findings, verbose=verbose)
    blind = not_looked(document)
    if blind:
        yield "  not evaluated:"
        yield from (_line("    ", f"{names} ({reason})") for names, reason in blind[:MOST_ROWS])
        yield from _left(blind)
    yield from (_line("  note: ", sanitize(note, TEXT_LIMIT)) for note in document.notes[:MOST_ROWS])
    yield from _left(document.notes)
    if document.method.launches or verbose:
        yield from (_line("  method: ", line) for line in method_lines(document))


def _metrics(document: Document, *, verbose: bool) -> Iterator[RenderableType]:
    shown_ones = [metric for metric in document.metrics if verbose or _says(metric)]
    same = [sanitize(metric.name) for metric in document.metrics if not (verbose or _says(metric))]
    beside = document.beside[:MOST_ROWS]
    if shown_ones or document.beside:
        table = _table("metric", ratio=1)
        table.add_column("verdict", overflow="fold")
        for metric in shown_ones[:MOST_ROWS]:
            style = _STYLES.get(metric.verdict, "") if metric.gates else "dim"
            table.add_row(*_cells(metric), Text(verdict(metric), style=style))
        for metric in beside:
            table.add_row(*_cells(metric), Text(f"beside: {verdict(metric)}", style="dim"))
        yield Padding(table, (0, 0, 0, 2))
        yield from _left(shown_ones)
    if same:
        yield _line("  no change: ", f"{sanitize(', '.join(same), TEXT_LIMIT)} ({len(same)})")
    for metric in document.metrics[:MOST_ROWS]:
        if verbose or metric.known not in (EXACT, SINGLE):
            yield from (
                _line(f"  {sanitize(metric.name)}: ", sanitize(remark, TEXT_LIMIT)) for remark in metric.remarks
            )
        if metric.needed_pairs is not None:
            yield f"  about {metric.needed_pairs:,} pairs in all would settle it, by the spread so far"
    yield ""


def _table(what: str, ratio: int | None = None) -> Table:
    """A table of what both sides have: its name, base, head and change."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(what, overflow="fold", ratio=ratio)
    for name in ("base", "head", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _left(rows: Sequence[object]) -> Iterator[RenderableType]:
    """That there are more."""
    if len(rows) > MOST_ROWS:
        yield f"    and {len(rows) - MOST_ROWS:,} more"


def _says(metric: Metric) -> bool:
    """Whether it has a line of its own: the time of launches has one also where it did not change."""
    return metric.verdict != "no change" or metric.known != EXACT or not metric.gates


def _cells(metric: Metric) -> tuple[Text, ...]:
    return (
        Text(sanitize(metric.name)), Text(value(metric, metric.base)), Text(value(metric, metric.head)),
        Text(change(metric)),
    )  # fmt: skip


def _programs(document: Document, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    several = len(document.programs) > 1
    for program in document.programs[: MOST_ROWS if verbose else MOST_PROGRAMS]:
        yield _line("  ", program_title(program, several=several))
        for lead, text in (("written: ", written_line(program)), ("modelled: ", modelled_line(program))):
            if text:
                yield _line(f"    {lead}", text)
        yield from (_line("    note: ", sanitize(note, TEXT_LIMIT)) for note in program.notes[:MOST_ROWS])
        lines, left = program_lines(program, MOST_ROWS if verbose else MOST_PROGRAM_ROWS)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", ratio=1)
        for row in lines:
            text = "\n".join(filter(None, (row.title, row.amounts, *(row.said if row.is_worse or verbose else ()))))
            style = "bold" if row.is_worse else ""
            table.add_row(Text(place_end(row.where or "no line", width * PLACE_SHARE // 100), style=style), Text(text))
        if lines:
            yield Padding(table, (0, 0, 0, 4))
        if left:
            yield f"    and {left:,} more{'' if verbose else ': -v shows more'}"
    if document.programs:
        yield ""


def _causes(causes: Sequence[Cause], width: int, per: str, *, verbose: bool) -> Iterator[RenderableType]:
    exact = [cause for cause in causes if cause.exact]
    rows = exact if verbose else exact[:MOST_CAUSES]
    if not rows:
        yield "  nothing changed in what can be counted"
        yield ""
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where", no_wrap=True)
    table.add_column("what changed", overflow="fold", ratio=1)
    table.add_column(f"time a {per}", justify="right", no_wrap=True)
    for row in (cause_row(row, per) for row in rows):
        text = "\n".join(row.lines) + (f"\nand {row.left} more" if row.left else "")
        table.add_row(Text(place_end(row.place, width * PLACE_SHARE // 100), style="bold"), Text(text), Text(row.time))
    yield Padding(table, (0, 0, 0, 2))
    if len(rows) < len(exact):
        yield f"  and {len(exact) - len(rows)} more places: -v shows all"
    yield ""


def _time(document: Document, step: Step, *, verbose: bool) -> Iterator[RenderableType]:
    worst = document.worst_rank
    whose = "" if worst is None else f" of the rank in the middle ({_rank(step)})"
    of = "a step" if step.per == "step" else "in all"
    yield _line("  ", f"where the recorded time goes{whose}, {of}; parts sum to the whole exactly")
    table = _table("part")
    for name, base, head in (*kinds(step), ("sum", step.base_ns, step.head_ns)):
        table.add_row(*map(Text, (name, format_ns(base), format_ns(head), signed_ns(head - base))))
    yield Padding(table, (0, 0, 0, 2))
    yield from _largest(document, step, verbose=verbose)
    if worst is not None:
        share = percent(worst.delta_ns / worst.base_ns) if worst.base_ns else "from none"
        yield _line("  ", f"worst: {_rank(worst)}, {signed_ns(worst.delta_ns)} a {worst.per} ({share})")
        yield from _ranks(document.ranks, verbose=verbose)
    yield ""


def _ranks(ranks: Sequence[Rank], *, verbose: bool) -> Iterator[RenderableType]:
    rows = ranks if verbose else ranks[:MOST_RANKS]
    text = ", ".join(f"{row.rank}: {signed_ns(row.head_ns - row.base_ns)}" for row in rows)
    left = f" and {len(ranks) - len(rows)} more" if len(rows) < len(ranks) else ""
    yield _line("  change by rank: ", text + left)


def _largest(document: Document, step: Step, *, verbose: bool) -> Iterator[RenderableType]:
    moved = [part for part in step.parts if part.delta_ns]
    rows = moved if verbose else moved[:MOST_PARTS]
    if not rows:
        return
    chance = "" if document.method.profiled > 1 else " (one launch each: part of them is chance)"
    yield f"  largest differences of measured time{chance}"
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for part in rows:
        text = part_words(told(part), step.per) + (f"  {sanitize(part.place)}" if part.place else "")
        table.add_row(Text(signed_ns(part.delta_ns)), Text(text))
    yield Padding(table, (0, 0, 0, 4))
    others = len(moved) - len(rows) + step.other_parts.count
    if others:
        yield f"    {signed_ns(step.delta_ns - sum(part.delta_ns for part in rows))} in {others} other parts"


def _rank(step: Step) -> str:
    return sanitize(step.device) if step.rank is None else f"rank {step.rank}"


def _kernels(kernels: Sequence[Kernel], *, verbose: bool) -> Iterator[RenderableType]:
    changed = changed_kernels(kernels)
    rows = (kernels if verbose else changed)[:MOST_KERNELS]
    if not kernels:
        return
    yield f"  kernels: {len(changed):,} of {len(kernels):,} changed (Benjamini-Hochberg over all)"
    table = Table.grid(padding=(0, 2, 0, 0))
    for side in ("left", "left", "right", "right"):
        table.add_column(justify=side, overflow="fold")
    for row in rows:
        effect = "" if row.effect is None else percent(row.effect)
        table.add_row(*map(Text, (kernel_word(row), sanitize(row.name), signed_ns(row.change_ns), effect)))
    yield Padding(table, (0, 0, 0, 4))
    yield ""


def _findings(findings: Sequence[FindingChange], *, verbose: bool) -> Iterator[RenderableType]:
    yield _line("  findings: ", finding_counts(findings))
    changed = [change for change in findings if verbose or change.change != "unchanged"]
    rows = changed if verbose else changed[:MOST_FINDINGS]
    if rows:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            where = row.shown.where.label()
            shown_at = f"\n{sanitize(where)}" if where else ""
            text = f"{rule_name(row.rule)}: {sanitize(row.shown.title, 320)}{BY_TIME if row.by_time else ''}{shown_at}"
            table.add_row(Text(FINDING_WORDS[row.change], style="bold"), Text(row.shown.severity), Text(text))
        yield Padding(table, (0, 0, 0, 4))
    if len(rows) < len(changed):
        yield f"    and {len(changed) - len(rows)} more: -v shows all"


def _line(lead: str, text: str, style: str = "") -> RenderableType:
    """A paragraph that hangs below its lead word."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style="bold" if style else ""), Text(text, style=style))
    return table
