"""A whole report: a headline, facts below it and sections, on a terminal or as one HTML file that loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text as RichText

from perfscope.dashboards.report.html_page import page
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.text import WIDTH, printed, sections_text
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.dashboards.report.blocks import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a page or a screen holds."""

    headline: str
    facts: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()


def report_text(report: Report, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The report as text for ``width`` columns; ``verbose``: every block and row."""

    def parts(columns: int) -> Iterator[RenderableType]:
        yield RichText(f"perfscope: {sanitize(report.headline, TEXT_LIMIT)}", style="bold", overflow="fold")
        yield from (Padding(RichText(sanitize(fact, TEXT_LIMIT)), (0, 0, 0, 2)) for fact in report.facts)
        yield ""
        yield from sections_text(report.sections, columns, verbose=verbose)

    return f"{printed(parts, width=width, color=color).rstrip()}\n"


def report_html(report: Report, *, data_id: str, data: str, style: str = "") -> str:
    """The page; ``data`` is JSON, embedded below ``data_id``. The policy forbids any request."""
    facts = " · ".join(escape(sanitize(fact, TEXT_LIMIT)) for fact in report.facts)
    headline = sanitize(report.headline, TEXT_LIMIT)
    head = f'<header><h1><b>perfscope</b> <span>{escape(headline)}</span></h1><p class="sub">{facts}</p></header>'
    body = (head, *sections_html(report.sections))
    return page(body, title=headline, data_id=data_id, data=data.replace("<", "\\u003c"), style=style)
