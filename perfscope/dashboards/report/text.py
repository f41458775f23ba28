"""The report on a terminal: a first screen with the account of the step and the main findings, then the details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from rich.padding import Padding
from rich.text import Text

from perfscope.dashboards.report.blocks import Listing, Table
from perfscope.dashboards.report.blocks import Text as TextBlock
from perfscope.dashboards.report.renderers.text import (
    INDENT,
    MARGIN,
    WIDTH,
    finding_detail,
    finding_text,
    flowing,
    indented,
    line_of,
    printed,
    section_text,
    sections_text,
    shorten_end,
)
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.sections.devices import device_sections
from perfscope.dashboards.report.summary import AGAIN, AGAIN_SHORT, Summary, summarize
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Section

FIRST_FINDINGS = 3
"""Most findings on the first screen; ``-v`` and the other formats have all."""

FIRST_REMARKS = 4
"""Remarks on the sources without ``-v``."""

LEAST_PATH = 24
"""Characters of the path in the headline that stay on a narrow terminal."""

LEAD = "perfscope: "

SCREEN = 24
"""Lines of a small terminal; details are left out until the first screen fits."""

FIRST_FACTS = 3
"""Facts that are always kept: failure of the program, missing cores, step time, busy devices."""


class Brief(Struct, frozen=True):
    """Parts of the first screen that are left out on a small terminal."""

    notes: bool = False
    """Notes below the account, and all facts but the first."""
    wrapped: bool = False
    """All but the first line of each text, and source lines."""
    blank: bool = False
    """Empty lines between the parts."""
    large: bool = False
    """Large parts without a finding and advice on the recording: they follow the first screen."""
    fewer: bool = False
    """Half of the source lines."""
    lines: bool = False
    """The table of source lines: it follows the first screen."""


IN_FULL = Brief()
BRIEFS = (
    IN_FULL,
    Brief(notes=True),
    Brief(notes=True, large=True),
    Brief(notes=True, large=True, fewer=True),
    Brief(notes=True, large=True, blank=True),
    Brief(notes=True, large=True, blank=True, fewer=True),
    Brief(notes=True, large=True, blank=True, lines=True),
    Brief(notes=True, large=True, wrapped=True),
    Brief(notes=True, large=True, blank=True, wrapped=True),
    Brief(notes=True, large=True, blank=True, wrapped=True, lines=True),
)
"""The first that fits is used, or the last if none fits."""


def render(
    analysis: Analysis, *, width: int = WIDTH, color: bool = False, links: bool = False, verbose: bool = False
) -> str:
    """Render the report as text of ``width`` columns. ``verbose``: all findings, with evidence and advice.

    ``links``: make places links to their files if ``color`` is set: terminals show links, logs do not.
    """
    summary = summarize(analysis)
    return printed(lambda columns: _parts(summary, columns, verbose=verbose, links=links), width=width, color=color)


def _parts(summary: Summary, width: int, *, verbose: bool, links: bool) -> Iterator[RenderableType]:
    leading, others = summary.leading
    yield from _first_screen(summary, leading, width, verbose=verbose, links=links)
    yield ""
    if leading and len(summary.devices) > 1:
        yield from sections_text(device_sections(summary.devices), width, verbose=verbose)
    yield from sections_text((*(summary.lines if verbose else ()), *summary.top), width, verbose=verbose)
    if verbose or not leading:
        yield from sections_text(others, width, verbose=verbose)
    else:
        yield from _outline(others, width)
    if verbose and summary.rank_sources:
        yield line_of("  ", f"ranks are known from: {summary.rank_sources}")
    remarks = summary.remarks if verbose else summary.remarks[:FIRST_REMARKS]
    yield from (line_of("  ", remark) for remark in remarks)
    if len(remarks) < len(summary.remarks):
        yield f"  and {len(summary.remarks) - len(remarks):,} more notes (-v)"


def _first_screen(
    summary: Summary, leading: Sequence[Section], width: int, *, verbose: bool, links: bool
) -> Iterable[RenderableType]:
    """The subject, where time or memory went, what to do, and how to see more."""
    if verbose:
        return _screen(summary, leading, width, IN_FULL, verbose=True, links=links)
    for brief in BRIEFS:
        parts = list(_screen(summary, leading, width, brief, verbose=False, links=links))
        if _lines(parts, width) <= SCREEN:
            break
    return [*parts, *_below(summary, width, brief)]


def _lines(parts: Sequence[RenderableType], width: int) -> int:
    return printed(lambda _: parts, width=width).count("\n")


def _screen(
    summary: Summary, leading: Sequence[Section], width: int, brief: Brief, *, verbose: bool, links: bool
) -> Iterator[RenderableType]:
    path = max(LEAST_PATH, width - len(LEAD) - len(summary.read))
    yield line_of(LEAD, _cut(summary.titled(path), width - len(LEAD), brief), style="bold")
    facts = summary.facts[: FIRST_FACTS if brief.notes else None]
    yield from flowing(
        [Text(_cut(sanitize(fact, TEXT_LIMIT), width - INDENT, brief)) for fact in facts], width, gap=" · "
    )
    yield from _gap(brief)
    for section in leading or device_sections(summary.devices):
        yield from section_text(_briefly(section, width, brief), width, verbose=verbose)
        yield from _gap(brief)
    yield from findings_part(summary, width, verbose=verbose, brief=brief, links=links)
    if not brief.lines and not verbose:
        yield from _lines_part(summary, width, brief)
    if not brief.large:
        yield from _large_part(summary, width, brief, verbose=verbose)
    yield from not_flagged(summary) if verbose else coverage(summary, width, brief)
    if summary.findings:
        line = f"next: perfscope explain {sanitize(summary.findings[0].rule)}   "
        again = next((text for text in (summary.again, AGAIN) if len(line) + len(text) <= width - INDENT), AGAIN_SHORT)
        yield Padding(Text(line + again), (0, 0, 0, INDENT))


def _below(summary: Summary, width: int, brief: Brief) -> Iterator[RenderableType]:
    """Parts of the first screen that follow it because they do not fit."""
    yield ""
    if brief.large:
        yield from _large_part(summary, width, brief, verbose=False)
    yield ""
    if brief.lines:
        yield from _lines_part(summary, width, IN_FULL)


def _large_part(summary: Summary, width: int, brief: Brief, *, verbose: bool) -> Iterator[RenderableType]:
    for section in (*summary.large, *summary.recording):
        yield from section_text(_briefly(section, width, brief), width, verbose=verbose)


def _lines_part(summary: Summary, width: int, brief: Brief) -> Iterator[RenderableType]:
    for section in summary.lines or summary.hot_lines:
        blocks = tuple(
            replace(block, few=block.few // 2) if brief.fewer and isinstance(block, Table) else block
            for block in section.blocks
        )
        yield from section_text(replace(section, blocks=blocks), width, verbose=False)
        yield from _gap(brief)


def _gap(brief: Brief) -> Iterator[RenderableType]:
    if not brief.blank:
        yield ""


def _cut(text: str, width: int, brief: Brief) -> str:
    """The first line of a text if the others are left out."""
    return shorten_end(text, width) if brief.wrapped else text


def _briefly(section: Section, width: int, brief: Brief) -> Section:
    """The section without the parts that are left out."""
    room = width - INDENT - len(section.title) - len(": ")
    summary = shorten_end(section.summary, room) if brief.wrapped else section.summary
    blocks = tuple(
        block for block in section.blocks if not (brief.notes and isinstance(block, TextBlock) and not block.warning)
    )
    if brief.wrapped:
        blocks = tuple(replace(block, few=1) if isinstance(block, Listing) else block for block in blocks)
    return replace(section, summary=summary, blocks=blocks)


def _outline(sections: Sequence[Section], width: int) -> Iterator[RenderableType]:
    """A line per section that ``-v`` shows, with its warnings."""
    if not sections:
        return
    yield Text("  more with -v", style="dim")
    for section in sections:
        line = f"{section.title}: {section.summary}" if section.summary else section.title
        yield Text(f"    {shorten_end(line, width - 4)}", style="dim", no_wrap=True)
        warnings = (block.text for block in section.blocks if isinstance(block, TextBlock) and block.warning)
        yield from (line_of("      ", sanitize(text, TEXT_LIMIT)) for text in warnings)
    yield ""


def findings_part(
    summary: Summary, width: int, *, verbose: bool, brief: Brief = IN_FULL, links: bool = False
) -> Iterator[RenderableType]:
    """The findings, costliest first, or a sentence that nothing was found; then an empty line."""
    worth = [block for block in summary.findings if not block.negligible] or summary.findings
    blocks = summary.findings if verbose else worth[:FIRST_FINDINGS]
    if not blocks:
        complete = summary.explained and not summary.recording  # a better recording would explain more of the time
        known = f"; causes are known for {summary.explained} of the time" if complete else ""
        nothing = f"{summary.none_found}{known}"
        yield line_of("  ", nothing if summary.clean else "no rule could be evaluated")
        return
    of = f" ({len(blocks)} of {len(summary.findings)})" if len(blocks) < len(summary.findings) else ""
    yield Padding(Text.assemble((f"Findings{of}", "bold"), ": what fixing each saves at most"), (0, 0, 0, INDENT))
    words = [finding_words(block) for block in blocks]
    widths = max(len(row.gain) for row in words), max(len(row.share) for row in words)
    for number, (row, block) in enumerate(zip(words, blocks, strict=True), 1):
        shown = replace(row, title=_cut(row.title, width - MARGIN, brief))
        code = not verbose and not brief.wrapped
        yield from finding_text(shown, width, widths=widths, number=number, code=code, links=links)
        if verbose:
            yield from finding_detail(row, block.evidence, width)
        elif row.fix:
            yield indented(_cut(f"{row.lead}: {row.fix}", width - MARGIN, brief), "dim")
    yield from _gap(brief)


def coverage(summary: Summary, width: int = WIDTH, brief: Brief = IN_FULL) -> Iterator[RenderableType]:
    """One line: number of clean rules, number not evaluated, and what would evaluate more."""
    clean, blind, lacking = len(summary.clean), summary.blind, summary.recordable
    need = f": `perfscope run` records what {lacking} of them need{'s' * (lacking == 1)}" if lacking else ""
    parts = [f"{clean} rule{'' if clean == 1 else 's'} clean"] if clean else []
    parts += [f"{len(summary.partly)} evaluated in part only"] if summary.partly else []
    line = ", ".join([*parts, *([f"{blind} not evaluated{need} (-v: reasons)"] if blind else [])])
    if brief.wrapped and len(line) > width - INDENT:
        line = ", ".join([*parts, *([f"{blind} not evaluated (-v: reasons)"] if blind else [])])
    if line:
        yield line_of("  ", line)


def not_flagged(summary: Summary) -> Iterator[RenderableType]:
    """Which rules are clean, and which were not evaluated and why."""
    if summary.clean:
        yield line_of("  clean: ", f"{', '.join(summary.clean)} ({len(summary.clean)})")
    if summary.abstained or summary.partly:
        yield "  not evaluated:"
    yield from (line_of("    ", f"{', '.join(rules)} ({reason})") for reason, rules in summary.abstained)
    yield from (line_of("    in part: ", f"{rule} ({reason})") for rule, reason in summary.partly)
