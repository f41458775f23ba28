"""``perfscope.compare``: the difference between two recordings, as an object that renders itself in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare import Comparison
from perfscope.analyzers.compare import compare as compared
from perfscope.analyzers.readers import load_all
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.documents.comparison import Document

Side = str | PathLike[str] | Trace | Sequence[Trace]
"""A path (a run, a trace, or a folder with the traces of one job), a trace, or the traces of one job's ranks."""


class DrawnComparison(Comparison, frozen=True, kw_only=True):
    """A comparison that renders itself."""

    def document(self) -> dict[str, Any]:
        """Return plain dicts and lists, ``perfscope.compare/1``, as written by `perfscope compare --json`."""
        from perfscope.dashboards.report.compare import json

        return json.document(self)

    def markdown(self) -> str:
        """Return the Markdown of a comment on a pull request."""
        from perfscope.dashboards.report.compare.render import render_markdown

        return render_markdown(self._read())

    def html(self) -> str:
        """Return an HTML page."""
        from perfscope.dashboards.report.compare.render import render_html

        return render_html(self._read())

    def _read(self) -> Document:
        from perfscope.model.documents.comparison import of

        return of(self.document())

    def _repr_html_(self) -> str:
        """The verdict, the metrics with a verdict or change, and the places that changed."""
        from perfscope.dashboards.report.compare.sections import caution_sections, compare_sections, verdict_section
        from perfscope.dashboards.report.renderers.html import notebook_html, sections_html

        document = self._read()
        return notebook_html(
            sections_html((*caution_sections(document), verdict_section(document), *compare_sections(document)))
        )


def compare(base: Side, head: Side) -> DrawnComparison:
    """Compare ``head`` with ``base``: two sides of the same kind (a path, a trace, or the traces of one job's ranks).

    >>> found = perfscope.compare("before.json.gz", "after.json.gz")
    >>> found.headline, found.causes[0].place

    Counts, bytes and findings are compared exactly. ``found.time`` splits the step into parts that sum to it (ns); it
    has no verdict, because one launch per side cannot separate a change of time from chance. ``found.markdown()`` and
    ``found.html()`` are what `perfscope compare` writes. ``DataError``: a path cannot be read; ``UsageError``: the
    sides are of different kinds, or empty.
    """
    comparison = compared(_traces(base), _traces(head))
    return DrawnComparison(**{name: getattr(comparison, name) for name in comparison.__struct_fields__})


def _traces(side: Side) -> Sequence[Trace]:
    if isinstance(side, str | PathLike):
        return load_all(Path(side))
    return (side,) if isinstance(side, Trace) else tuple(side)
