"""``perfscope.compare``: what changed from one recording to another, which draws itself in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare.runs.comparison import Comparison
from perfscope.analyzers.compare.runs.comparison import compare as compared
from perfscope.analyzers.readers.load import load_all
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.dashboards.report.compare.document import Document

Side = str | PathLike[str] | Trace | Sequence[Trace]
"""A path (a run, a trace, a folder of the traces of one job), a trace, or the traces of one job's ranks."""

MOST_METRICS = 12
MOST_CAUSES = 8

_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top;overflow-wrap:anywhere"
_SOFT = "opacity:.7;font-size:12px"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnComparison(Comparison):
    """A comparison that draws itself."""

    def document(self) -> dict[str, Any]:
        """As plain dicts and lists, ``perfscope.compare/1``: what `perfscope compare --json` writes."""
        from perfscope.dashboards.report.compare import json

        return json.document(self)

    def markdown(self) -> str:
        """As a comment on a pull request."""
        from perfscope.dashboards.report.compare import markdown

        return markdown.render(self._read())

    def html(self) -> str:
        """As a page of its own."""
        from perfscope.dashboards.report.compare import html

        return html.render(self._read())

    def _read(self) -> Document:
        from perfscope.dashboards.report.compare import document

        return document.of(self.document())

    def _repr_html_(self) -> str:
        """The verdict, the metrics that say something, the places where something changed."""
        from perfscope.dashboards.report.compare.rows import cause_row, finding_counts, headline, metric_rows
        from perfscope.dashboards.report.compare.wording import change, value, verdict

        document = self._read()
        rows, same = metric_rows(document)
        per = "step" if document.step is None else document.step.per
        metrics = [
            (sanitize(row.name), value(row, row.base), value(row, row.head), change(row), verdict(row))
            for row in rows[:MOST_METRICS]
        ]
        exact = [cause for cause in document.causes if cause.exact]
        causes = [
            (row.place, "; ".join(row.lines), row.time)
            for row in (cause_row(cause, per) for cause in exact[:MOST_CAUSES])
        ]
        left = len(exact) - len(causes)
        return "".join(
            (
                f"<div><b>perfscope</b> {escape(headline(document))}",
                _table(("metric", "base", "head", "change", "verdict"), metrics),
                _table(("where", "what changed", f"time a {per}"), causes),
                f"<div style='{_SOFT}'>and {left:,} more places</div>" if left else "",
                f"<div style='{_SOFT}'>no change: {len(same):,} metrics</div>" if same else "",
                f"<div style='{_SOFT}'>findings: {escape(finding_counts(document.findings))}</div></div>",
            )
        )


def compare(base: Side, head: Side) -> DrawnComparison:
    """What changed from ``base`` to ``head``: two of one kind, each a path, a trace, or the traces of one job's ranks.

    >>> found = perfscope.compare("before.json.gz", "after.json.gz")
    >>> found.headline, found.causes[0].place

    Counts, bytes and findings are compared exactly; ``found.time`` splits the step into parts that sum to it (ns) and
    is judged by nothing, as one launch on each side cannot tell a change of time from chance. ``found.markdown()`` and
    ``found.html()`` are what `perfscope compare` writes. ``DataError``: a path cannot be read;
    ``UsageError``: the sides are of different kinds, or empty.
    """
    comparison = compared(_traces(base), _traces(head))
    return DrawnComparison(**{field.name: getattr(comparison, field.name) for field in fields(comparison)})


def _traces(side: Side) -> Sequence[Trace]:
    if isinstance(side, str | PathLike):
        return load_all(Path(side))
    return (side,) if isinstance(side, Trace) else tuple(side)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th style='{_CELL}'>{escape(name)}</th>" for name in heads)
    body = ("".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in row) for row in rows)
    drawn = "".join(f"<tr>{cells}</tr>" for cells in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{drawn}</tbody></table>"
