"""How a trace and an analysis draw themselves in a notebook: a small table and a picture, no script.

Styles are inline and colours are taken from the notebook, so that both work on light and dark.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report import svg
from perfscope.dashboards.report.device_rows import fold_devices
from perfscope.dashboards.report.summary import SHARE_OF, summarize
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.device_rows import DeviceRow
    from perfscope.dashboards.report.summary import FindingRow
    from perfscope.model.trace import Trace

MOST_FINDINGS = 20
"""Rows of a cell's output; ``analysis.findings()`` holds all."""

_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top;overflow-wrap:anywhere"
_NUMBER = "text-align:right;padding:2px 14px 2px 0;vertical-align:top;white-space:nowrap"
_SHORT = "text-align:left;padding:2px 14px 2px 0;vertical-align:top;white-space:nowrap"
_STYLES = {"l": _CELL, "r": _NUMBER, "s": _SHORT}
_SOFT = "opacity:.7;font-size:12px"


def trace_html(trace: Trace) -> str:
    """A trace: its source, where the time of its devices went, and the size of its tables."""
    from perfscope.analyzers.time import device_times
    from perfscope.model.trace import MEMORY_TABLES

    source = trace.source
    rank = "" if source.rank is None else f", rank {source.rank}"
    unplaced = f", {source.events_unplaced:,} unplaced" if source.events_unplaced else ""
    line = f"{sanitize(source.format)}{rank}, {source.events_read:,} events{unplaced}"
    start, end = trace.span_ns()
    elsewhere = MEMORY_TABLES if trace.memory_pass is not trace else ()
    tables = [
        (f"{name} (detail pass)" if name in elsewhere else name, f"{size:,}") for name, size in trace.sizes().items()
    ]
    return _frame(
        f"<b>{escape(sanitize(source.path))}</b> <span style='{_SOFT}'>{escape(line)}, {format_ns(end - start)}</span>",
        _devices(fold_devices(trace.fact(device_times))),
        _table(("table", "rows"), tables, "sr"),
        *(f"<div style='{_SOFT}'>{escape(sanitize(note))}</div>" for note in source.notes),
    )


def analysis_html(analysis: Analysis) -> str:
    """An analysis: step time, device time, findings with the largest saving first, and what was not seen."""
    summary = summarize(analysis)
    rows = summary.findings[:MOST_FINDINGS]
    share = SHARE_OF[any(row.per_step for row in rows)]
    table = _table(("saves up to", share, "finding", "where", "basis"), map(_cells, rows), "srlls")
    left = len(summary.findings) - len(rows)
    return _frame(
        f"<b>perfscope</b> {escape(summary.headline)}",
        *(f"<div style='{_SOFT}'>{escape(fact)}</div>" for fact in summary.facts),
        _devices(summary.devices),
        table if rows else "<div>no findings</div>",
        f"<div style='{_SOFT}'>and {left} more</div>" if left else "",
        f"<div>clean: {escape(', '.join(summary.clean))}</div>" if summary.clean else "",
        *(f"<div>not evaluated: {escape(', '.join(rules))} ({escape(reason)})</div>"
          for reason, rules in summary.abstained),
        *(f"<div>evaluated in part: {escape(rule)} ({escape(reason)})</div>" for rule, reason in summary.partly),
        *(f"<div style='{_SOFT}'>{escape(remark)}</div>" for remark in summary.remarks),
    )  # fmt: skip


def _cells(row: FindingRow) -> tuple[str, ...]:
    return (row.gain, row.share, f"{row.rule}: {row.title}{row.on_ranks}", row.where, row.basis)


def _devices(rows: Sequence[DeviceRow]) -> str:
    """The bars, each with its words; nothing where no device did work."""
    if not rows:
        return ""
    parts = [f"<div style='display:flex;flex-wrap:wrap;gap:2px 14px;{_SOFT}'>{svg.legend()}</div>"]
    for row in rows:
        rank = "" if row.ranks == "-" else f"rank {row.ranks}, "
        shares = ", ".join(f"{words} {share}" for (words, _, _), share in zip(svg.PARTS, row.shares(), strict=True))
        words = f"{rank}{row.device}: {format_ns(row.span_ns)}, {shares}"
        bar = svg.device_bar(row).replace("<svg ", "<svg width='100%' height='16' ", 1)
        parts.append(f"<div style='max-width:640px;margin:2px 0'>{bar}<div style='{_SOFT}'>{escape(words)}</div></div>")
    return "".join(parts)


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]], align: str) -> str:
    styles = [_STYLES[kind] for kind in align]

    def line(tag: str, cells: Iterable[str]) -> str:
        filled = (f"<{tag} style='{style}'>{escape(cell)}</{tag}>" for cell, style in zip(cells, styles, strict=True))
        return f"<tr>{''.join(filled)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table style='margin:6px 0;font-size:13px'><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"


def _frame(*parts: str) -> str:
    text = "".join(filter(None, parts))
    return f"<div style='font-family:system-ui,sans-serif;font-size:13px;line-height:1.45'>{text}</div>"
