"""The report on a terminal: the first screen has the account of the step and the best findings, ``-v`` the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.blocks import Text as TextBlock
from perfscope.dashboards.report.device_rows import device_sections
from perfscope.dashboards.report.evidence import evidence_table
from perfscope.dashboards.report.renderers.text import WIDTH, block_text, printed, section_text, sections_text
from perfscope.dashboards.report.summary import NO_TIME, SHARE_OF, FindingRow, Summary, summarize
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Section

SUFFIXES = (".txt",)

FIRST_FINDINGS = 3
"""Findings on the first screen; ``-v`` and the other formats hold all."""

FIRST_REMARKS = 4
"""Remarks on the sources on the first screen."""

_STYLES = {"high": "bold red", "medium": "yellow", "low": ""}


def render(analysis: Analysis, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The report as text for ``width`` columns. ``verbose``: all findings, with evidence and advice."""
    summary = summarize(analysis)
    return printed(lambda columns: _parts(summary, columns, verbose=verbose), width=width, color=color)


def _parts(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield line_of("perfscope: ", summary.headline, style="bold")
    yield from (line_of("  ", fact) for fact in summary.facts)
    for section in summary.account:
        yield ""
        yield from section_text(section, width, verbose=verbose)
    yield ""
    if summary.devices and (not summary.account or len(summary.devices) > 1):
        yield from sections_text(device_sections(summary.devices), width, verbose=verbose)
    yield from findings_part(summary, verbose=verbose)
    yield from sections_text(summary.top, width, verbose=verbose)
    if verbose or not summary.account:
        yield from sections_text(summary.sections, width, verbose=verbose)
    else:
        yield from _outline(summary.sections, width)
    yield from not_flagged(summary, width, verbose=verbose)
    remarks = summary.remarks if verbose else summary.remarks[:FIRST_REMARKS]
    yield from (line_of("  ", remark) for remark in remarks)
    if len(remarks) < len(summary.remarks):
        yield f"  and {len(summary.remarks) - len(remarks):,} more notes (-v)"
    if verbose:
        yield from (part for row in summary.findings for part in _detail(row, width))
    elif summary.findings:
        yield ""
        yield line_of("  next  ", f"perfscope explain {summary.findings[0].rule}     {summary.again}")


def _outline(sections: Sequence[Section], width: int) -> Iterator[RenderableType]:
    """A line for each section that ``-v`` shows, and its warnings."""
    if not sections:
        return
    yield Text("  more with -v", style="dim")
    for section in sections:
        line = f"{section.title}: {section.summary}" if section.summary else section.title
        yield Text(f"    {shorten_end(line, width - 4)}", style="dim", no_wrap=True)
        warnings = (block.text for block in section.blocks if isinstance(block, TextBlock) and block.warning)
        yield from (line_of("      ", sanitize(text, TEXT_LIMIT)) for text in warnings)
    yield ""


def shorten_end(text: str, limit: int) -> str:
    """The beginning of a line that is too long; control characters and secrets masked."""
    shown = sanitize(text, TEXT_LIMIT)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def findings_part(summary: Summary, *, verbose: bool) -> Iterator[RenderableType]:
    """The findings, costliest first, or that there are none. Ends with an empty line."""
    rows = summary.findings if verbose else summary.findings[:FIRST_FINDINGS]
    if rows:
        yield _finding_table(rows)
    else:
        yield line_of("  ", summary.nothing)
    if len(rows) < len(summary.findings):
        yield f"  and {len(summary.findings) - len(rows)} more with a smaller saving or without a known time (-v)"
    yield ""


def _finding_table(rows: Sequence[FindingRow]) -> RenderableType:
    """Two lines each: what it is and how it is known; where, and the fix."""
    with_share = any(row.share for row in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("saves up to", no_wrap=True)
    if with_share:
        table.add_column(SHARE_OF[any(row.per_step for row in rows)], no_wrap=True, justify="right")
    table.add_column("finding", overflow="fold", ratio=1)
    for row in rows:
        saves = Text(row.gain, style="dim" if row.gain == NO_TIME else _STYLES[row.severity])
        title = Text(f"{row.rule}: {row.title}{row.on_ranks}")
        title.stylize("bold", 0, len(row.rule))
        title.append(f" ({row.basis})", style="dim")
        where = dict(row.place).get("at") or row.where
        known = [text for text in (where if where != "-" else "", row.fix) if text]
        if known:
            title.append(f"\n{': '.join(known)}", style="dim")
        table.add_row(saves, *([Text(row.share)] if with_share else []), title)
    return Padding(table, (0, 0, 0, 2))


def not_flagged(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Which rules are clean and which were not evaluated: a line each, with reasons if ``verbose``."""
    names = f"{', '.join(summary.clean)} ({len(summary.clean)})"
    if summary.clean and (verbose or len(names) <= width - len("  clean: ")):
        yield line_of("  clean: ", names)
    elif summary.clean:
        yield f"  clean: {len(summary.clean)} rules (-v names them)"
    if not summary.abstained and not summary.partly:
        return
    if not verbose:
        partly = f", {len(summary.partly)} in part only" if summary.partly else ""
        yield f"  not evaluated: {summary.blind} rules{partly} (-v: why, and what to record for them)"
        return
    yield "  not evaluated:"
    yield from (line_of("    ", f"{', '.join(rules)} ({reason})") for reason, rules in summary.abstained)
    yield from (line_of("    in part: ", f"{rule} ({reason})") for rule, reason in summary.partly)


def _detail(row: FindingRow, width: int) -> Iterator[RenderableType]:
    yield ""
    title = Text(f"{row.rule}: {row.title}{row.on_ranks}", style="bold")
    yield Padding(title, (0, 0, 0, 2))
    known = [f"{what} {name}" for what, name in row.place]
    if row.bytes:
        known.append(f"moves {row.bytes}")
    if known:
        yield line_of("    ", ", ".join(known))
    if row.detail:
        yield line_of("    ", row.detail)
    if row.evidence:
        rows = evidence_table(row.evidence, row.evidence_left)
        yield from (Padding(part, (0, 0, 0, 2)) for part in block_text(rows, width - 2, verbose=True))
    for line in row.advice.splitlines():
        yield line_of("    ", line)


def line_of(lead: str, text: str, style: str = "") -> RenderableType:
    """A paragraph that hangs below its lead word."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style="bold" if style else ""), Text(text, style=style))
    return table
