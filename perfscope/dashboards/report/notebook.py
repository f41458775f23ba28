"""How a trace and an analysis draw themselves in a notebook: the cards of the HTML report, without a script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.abstained import coverage_sections
from perfscope.dashboards.report.blocks import Block, Column, Section, notes, table
from perfscope.dashboards.report.device_rows import device_sections, fold_devices
from perfscope.dashboards.report.html_findings import findings
from perfscope.dashboards.report.renderers.html import notebook_html, sections_html
from perfscope.dashboards.report.summary import summarize
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.trace import Trace

MOST_FINDINGS = 20
"""Of a cell's output; ``analysis.findings()`` holds all."""

SIZE_COLUMNS: tuple[Column[tuple[str, int]], ...] = (
    Column("table", lambda row: row[0]),
    Column("rows", lambda row: row[1], "count"),
)


def trace_html(trace: Trace) -> str:
    """A trace: its source, where the time of its devices went, and the size of its tables."""
    from perfscope.analyzers.time import device_times
    from perfscope.model.trace import MEMORY_TABLES

    source = trace.source
    start, end = trace.span_ns()
    rank = "" if source.rank is None else f", rank {source.rank}"
    unplaced = f", {source.events_unplaced:,} unplaced" if source.events_unplaced else ""
    summary = f"{source.format}{rank}, {source.events_read:,} events{unplaced}, {format_ns(end - start)}"
    elsewhere = MEMORY_TABLES if trace.memory_pass is not trace else ()
    sizes = [(f"{name} (detail pass)" if name in elsewhere else name, size) for name, size in trace.sizes().items()]
    blocks: tuple[Block, ...] = (table(SIZE_COLUMNS, sizes, few=len(sizes)), *notes(*source.notes))
    devices = device_sections(fold_devices(trace.fact(device_times)))
    return notebook_html(sections_html((Section(title=source.path, summary=summary, blocks=blocks), *devices)))


def analysis_html(analysis: Analysis) -> str:
    """An analysis: where the step went, findings with the largest saving first, and what was not seen."""
    summary = summarize(analysis)
    facts = "".join(f'<p class="note">{escape(sanitize(fact, 400))}</p>' for fact in summary.facts)
    devices = () if summary.account else device_sections(summary.devices)
    remarks = (Section(title="Notes", blocks=notes(*summary.remarks)),) if summary.remarks else ()
    return notebook_html(
        (
            f"<p><b>perfscope</b> {escape(summary.headline)}</p>{facts}",
            *sections_html((*summary.account, *devices)),
            *findings(summary, most=MOST_FINDINGS, opened=0),
            *sections_html((*coverage_sections(summary), *remarks)),
        )
    )
