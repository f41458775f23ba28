"""The report on one screen of a terminal: best gain first, and what could not be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.evidence import evidence_cell, evidence_headers
from perfscope.dashboards.report.renderers.text import WIDTH, printed, sections_text
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.dashboards.report.sections.account import account_text
from perfscope.dashboards.report.sections.top_work import top_text
from perfscope.dashboards.report.summary import NO_TIME, SHARE_OF, FindingRow, Summary, summarize
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.device_rows import DeviceRow

SUFFIXES = (".txt",)

WHERE_SHARE = 30
"""Percent of the width for the place of a finding. It is cut, never folded: ``train.py:88`` must be one word."""

PLACE_BESIDE = 90
"""Columns from which the place has its own; in a narrower terminal it stands below the finding."""

MOST_FINDINGS = 12
"""Rows on the one screen; ``-v`` and the other formats hold all."""

_STYLES = {"high": "bold red", "medium": "yellow", "low": ""}


def render(analysis: Analysis, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The report as text for ``width`` columns. ``verbose``: all findings, with evidence and advice."""
    summary = summarize(analysis)
    return printed(lambda columns: _parts(summary, columns, verbose=verbose), width=width, color=color)


def _parts(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield line_of("perfscope: ", summary.headline, style="bold")
    yield from (line_of("  ", fact) for fact in summary.facts)
    if summary.account is not None:
        yield ""
        yield from account_text(summary.account)
    if summary.devices and (summary.account is None or len(summary.devices) > 1):
        yield ""
        yield _device_table(summary.devices)
    yield ""
    yield from findings_part(summary, width, verbose=verbose)
    if summary.top is not None:
        yield from top_text(summary.top, width, verbose=verbose)
    yield from sections_text(summary.sections, width, verbose=verbose)
    yield from not_flagged(summary)
    yield from (line_of("  ", remark) for remark in summary.remarks)
    if verbose:
        yield from (part for row in summary.findings for part in _detail(row))
    elif summary.findings:
        yield ""
        yield line_of("  next  ", f"perfscope rules {summary.findings[0].rule}     {summary.again}")


def findings_part(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The findings, costliest first, or that there are none. Ends with an empty line."""
    rows = summary.findings if verbose else summary.findings[:MOST_FINDINGS]
    if rows:
        yield _finding_table(rows, width)
    else:
        looked = bool(summary.clean)
        yield "  no findings" if looked else "  no rule could look at this: nothing is known to be clean"
    if len(rows) < len(summary.findings):
        yield f"  and {len(summary.findings) - len(rows)} more, which save less or have no time: -v shows all"
    yield ""


def _finding_table(rows: Sequence[FindingRow], width: int) -> RenderableType:
    with_share, beside = any(row.share for row in rows), width >= PLACE_BESIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("saves up to", no_wrap=True)
    if with_share:
        table.add_column(SHARE_OF[any(row.per_step for row in rows)], no_wrap=True, justify="right")
    table.add_column("finding", overflow="fold", ratio=1)
    if beside:
        table.add_column("where", no_wrap=True)
    table.add_column("known by", no_wrap=True)
    for row in rows:
        saves = Text(row.gain, style="dim" if row.gain == NO_TIME else _STYLES[row.severity])
        text = place_end(row.where, width * WHERE_SHARE // 100)
        title = Text(f"{row.rule}: {row.title}{row.on_ranks}" + ("" if beside else f"\n{text}"))
        title.stylize("bold", 0, len(row.rule))
        share = [Text(row.share)] if with_share else []
        table.add_row(saves, *share, title, *([Text(text)] if beside else []), Text(row.known_by))
    return Padding(table, (0, 0, 0, 2))


def _device_table(rows: Iterable[DeviceRow]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rank", overflow="fold")
    table.add_column("device", overflow="fold")
    for name in ("span", "compute", "comm exposed", "copy exposed", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = (row.ranks, row.device, format_ns(row.span_ns), *row.shares())
        table.add_row(*map(Text, cells))
    return Padding(table, (0, 0, 0, 2))


def not_flagged(summary: Summary) -> Iterator[RenderableType]:
    """Which rules found nothing, and which could not look."""
    if summary.clean:
        yield line_of("  clean: ", f"{', '.join(summary.clean)} ({len(summary.clean)})")
    blind = [f"{', '.join(rules)} ({reason})" for reason, rules in summary.abstained]
    if len(blind) == 1:
        yield line_of("  could not look: ", blind[0])
    elif blind:
        yield "  could not look:"
        yield from (line_of("    ", text) for text in blind)
    for rule, reason in summary.partly:
        yield line_of("  looked at a part: ", f"{rule} ({reason})")


def _detail(row: FindingRow) -> Iterator[RenderableType]:
    yield ""
    title = Text(f"{row.rule}: {row.title}{row.on_ranks}", style="bold")
    yield Padding(title, (0, 0, 0, 2))
    known = [f"{what} {name}" for what, name in row.place]
    if row.bytes:
        known.append(f"moves {row.bytes}")
    if known:
        yield line_of("    ", ", ".join(known))
    if row.evidence:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for head, value in zip(evidence_headers(row.evidence[0]).values(), row.evidence[0].values(), strict=True):
            is_text = isinstance(value, str)
            table.add_column(head, overflow="fold", justify="left" if is_text else "right")
        for cells in row.evidence:
            table.add_row(*(Text(evidence_cell(key, value)) for key, value in cells.items()))
        yield Padding(table, (0, 0, 0, 4))
        if row.evidence_left:
            yield f"    and {row.evidence_left} more rows in the JSON report"
    for line in row.advice.splitlines():
        yield line_of("    ", line)


def line_of(lead: str, text: str, style: str = "") -> RenderableType:
    """A paragraph that hangs below its lead word."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style="bold" if style else ""), Text(text, style=style))
    return table
