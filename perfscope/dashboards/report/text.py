"""The report on a terminal: a first screen with the account of the step and the best findings, then the details."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.blocks import Text as TextBlock
from perfscope.dashboards.report.evidence import evidence_table
from perfscope.dashboards.report.renderers.text import (
    INDENT,
    WIDTH,
    block_text,
    flowing,
    printed,
    section_text,
    sections_text,
)
from perfscope.dashboards.report.sections.devices import device_sections
from perfscope.dashboards.report.summary import AGAIN, AGAIN_SHORT, NO_TIME, FindingRow, Summary, summarize
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Section

SUFFIXES = (".txt",)

FIRST_FINDINGS = 3
"""Findings on the first screen; ``-v`` and the other formats hold all."""

FIRST_REMARKS = 4
"""Remarks on the sources without ``-v``."""

LEAST_PATH = 24
"""Characters of the path in the headline that stay on a narrow terminal."""

LEAST_CODE = 30
"""Characters of code that stand beside its place; with less room it has a line of its own."""

MARGIN = 5
"""Columns before the text of a finding."""

LEAD = "perfscope: "

SCREEN = 24
"""Lines of a small terminal: the first screen gives up details until it fits."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What the first screen gives up on a small terminal."""

    notes: bool = False
    """Notes below the account, and all facts but the first ones."""
    wrapped: bool = False
    """All but the first line of each text, and the source lines."""
    blank: bool = False
    """Empty lines between the parts."""


IN_FULL = Brief()
BRIEFS = (
    IN_FULL,
    Brief(notes=True),
    Brief(notes=True, blank=True),
    Brief(notes=True, wrapped=True),
    Brief(notes=True, blank=True, wrapped=True),
)
"""The first that fits is shown; the last one where none does."""

FIRST_FACTS = 2
"""Facts that always stay: that the program failed, the step time, how busy the devices were."""

_STYLES = {"high": "bold red", "medium": "yellow", "low": ""}


def render(
    analysis: Analysis, *, width: int = WIDTH, color: bool = False, links: bool = False, verbose: bool = False
) -> str:
    """The report as text for ``width`` columns. ``verbose``: all findings, with evidence and advice.

    ``links``: places link to their files, where there is ``color``: terminals show that, logs do not.
    """
    summary = summarize(analysis)
    if not links:
        timed, untimed = (tuple(replace(row, link="") for row in rows) for rows in (summary.timed, summary.untimed))
        summary = replace(summary, timed=timed, untimed=untimed)
    return printed(lambda columns: _parts(summary, columns, verbose=verbose), width=width, color=color)


def _parts(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    leading, others = summary.leading
    yield from _first_screen(summary, leading, width, verbose=verbose)
    yield ""
    if leading and len(summary.devices) > 1:
        yield from sections_text(device_sections(summary.devices), width, verbose=verbose)
    yield from sections_text(summary.top, width, verbose=verbose)
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
    summary: Summary, leading: Sequence[Section], width: int, *, verbose: bool
) -> Iterable[RenderableType]:
    """What was analysed, where the time or the memory went, what to do, and how to see more."""
    if verbose:
        return _screen(summary, leading, width, IN_FULL, verbose=True)
    made = (list(_screen(summary, leading, width, brief, verbose=False)) for brief in BRIEFS)
    for parts in made:
        if _lines(parts, width) <= SCREEN:
            break
    return parts


def _lines(parts: Sequence[RenderableType], width: int) -> int:
    return printed(lambda _: parts, width=width).count("\n")


def _screen(
    summary: Summary, leading: Sequence[Section], width: int, brief: Brief, *, verbose: bool
) -> Iterator[RenderableType]:
    path = max(LEAST_PATH, width - len(LEAD) - len(summary.read))
    yield line_of(LEAD, _cut(summary.titled(path), width - len(LEAD), brief), style="bold")
    facts = summary.facts[: FIRST_FACTS if brief.notes else None]
    yield from flowing([Text(_cut(fact, width - INDENT, brief)) for fact in facts], width, gap=" · ")
    yield from _gap(brief)
    for section in leading or device_sections(summary.devices):
        yield from section_text(_briefly(section, width, brief), width, verbose=verbose)
        yield from _gap(brief)
    yield from findings_part(summary, width, verbose=verbose, brief=brief)
    yield from not_flagged(summary) if verbose else coverage(summary, width, brief)
    if summary.findings:
        line = f"next: perfscope explain {summary.findings[0].rule}   "
        again = next((text for text in (summary.again, AGAIN) if len(line) + len(text) <= width - INDENT), AGAIN_SHORT)
        yield Padding(Text(line + again), (0, 0, 0, INDENT))


def _gap(brief: Brief) -> Iterator[RenderableType]:
    if not brief.blank:
        yield ""


def _cut(text: str, width: int, brief: Brief) -> str:
    """The first line of a text, where the others are given up."""
    return shorten_end(text, width) if brief.wrapped else text


def _briefly(section: Section, width: int, brief: Brief) -> Section:
    """The section without what is given up."""
    room = width - INDENT - len(section.title) - len(": ")
    summary = shorten_end(section.summary, room) if brief.wrapped else section.summary
    blocks = tuple(
        block for block in section.blocks if not (brief.notes and isinstance(block, TextBlock) and not block.warning)
    )
    return replace(section, summary=summary, blocks=blocks)


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


def findings_part(summary: Summary, width: int, *, verbose: bool, brief: Brief = IN_FULL) -> Iterator[RenderableType]:
    """The findings, costliest first, or that there are none. An empty line ends them."""
    rows = summary.findings if verbose else summary.findings[:FIRST_FINDINGS]
    if rows:
        of = f" ({len(rows)} of {len(summary.findings)})" if len(rows) < len(summary.findings) else ""
        yield Padding(Text.assemble((f"Findings{of}", "bold"), ": what fixing each saves at most"), (0, 0, 0, INDENT))
        gain, share = (max(len(text) for text in texts) for texts in zip(*map(_saving, rows), strict=True))
        for number, row in enumerate(rows, 1):
            code = "" if verbose or brief.wrapped else row.code
            shown = replace(row, title=_cut(row.title, width - MARGIN, brief), code=code)
            yield from _finding(number, shown, (gain, share), width)
            if verbose:
                yield from _detail(row, width)
            elif row.fix:
                yield _indented(_cut(f"Fix: {row.fix}", width - MARGIN, brief), "dim")
        yield from _gap(brief)
    else:
        known = f"; causes are known for {summary.explained} of the time" if summary.explained else ""
        yield line_of("  ", f"no findings{known}" if summary.clean else "no rule could be evaluated")


def _saving(row: FindingRow) -> tuple[str, str]:
    return row.gain, row.share


def _finding(number: int, row: FindingRow, widths: tuple[int, int], width: int) -> Iterator[RenderableType]:
    """What it saves and where, and what it is: a line each; its code beside the place where both fit."""
    code = row.code
    (gain, share), (most_gain, most_share) = _saving(row), widths
    head = Text(f"  {number}. ")
    head.append(f"{gain:<{most_gain}}", "dim" if gain == NO_TIME else _STYLES[row.severity])
    head.append(f"  {share:>{most_share}}" if most_share else "")
    head.append("  ").append(row.rule, "bold")
    known = "; ".join(filter(None, (row.basis, row.on_ranks.strip(" ()"), row.traced)))
    fitting = (text for text in (f" ({known})", f" ({row.basis})") if len(head) + len(text) <= width)
    head.append(next(fitting, ""))
    where = "" if row.where == "-" else row.where
    beside = len(head) + INDENT + len(where) <= width
    place = Style(color="cyan", link=row.link or None)
    if where and beside:
        head.append("  ").append(where, place)
    yield head
    yield _indented(row.title)
    if where and not beside:
        line, room = Text(where, place, overflow="fold"), width - MARGIN - len(where) - 4
        if code and room >= LEAST_CODE:
            line.append(f"  > {shorten_end(code, room)}", "italic")
            code = ""
        yield Padding(line, (0, 0, 0, MARGIN))
    if code:
        yield _indented(f"> {shorten_end(code, width - MARGIN - 2)}", "italic")


def _indented(text: str, style: str | Style = "") -> RenderableType:
    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, MARGIN))


def coverage(summary: Summary, width: int = WIDTH, brief: Brief = IN_FULL) -> Iterator[RenderableType]:
    """One line: how many rules are clean, how many were not evaluated, and what would evaluate more."""
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


def _detail(row: FindingRow, width: int) -> Iterator[RenderableType]:
    """Evidence and advice, below a finding."""
    known = [f"{what} {name}" for what, name in row.place if name != row.where]
    if row.bytes:
        known.append(f"moves {row.bytes}")
    if known:
        yield _indented(", ".join(known))
    if row.detail:
        yield _indented(row.detail)
    yield from (_indented(line[: width - MARGIN]) for line in row.around)
    if row.evidence:
        rows = evidence_table(row.evidence, row.evidence_left)
        yield from (Padding(part, (0, 0, 0, MARGIN - INDENT)) for part in block_text(rows, width - 3, verbose=True))
    for line in row.advice.splitlines():
        yield _indented(line)
    yield ""


def line_of(lead: str, text: str, style: str = "") -> RenderableType:
    """A paragraph that hangs below its lead word."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(lead, style="bold" if style else ""), Text(text, style=style))
    return table
