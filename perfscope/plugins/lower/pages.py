"""The lowering as text, Markdown and HTML."""

from __future__ import annotations

from perfscope.dashboards.report.renderers.html import report_html
from perfscope.dashboards.report.renderers.markdown import inline, sections_markdown
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.lower.document import Lowering, dump
from perfscope.plugins.lower.sections import report_of


def text(
    lowering: Lowering, *, width: int = WIDTH, color: bool = False, verbose: bool = False, all_stages: bool = False
) -> str:
    """The lowering for a terminal."""
    return report_text(report_of(lowering, all_stages=all_stages), width=width, color=color, verbose=verbose)


def page(lowering: Lowering, name: str, *, all_stages: bool = False) -> str:
    """The lowering as HTML or Markdown, by the end of the file's name."""
    report = report_of(lowering, all_stages=all_stages)
    if name.endswith(".html"):
        return report_html(report, data_id="perfscope-lower", data=dump(lowering).decode())
    head = [f"# {inline(sanitize(report.headline))}", *(inline(sanitize(fact)) for fact in report.facts)]
    return "\n\n".join([*head, sections_markdown(report.sections)]) + "\n"
