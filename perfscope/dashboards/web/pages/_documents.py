"""A page that shows one document of a plug-in as its report, with tabs if several are open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dash import html

from perfscope.dashboards.report.blocks import Report
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._parts import message, tab
from perfscope.dashboards.web.server.shelf import key_of
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize


def documents_page(
    request: PageRequest, files: Sequence[Path], report_of: Callable[[Path], Report], *, title: str, nothing: str
) -> list[Any]:
    """The page; a parameter named like the page selects one of several files. ``nothing``: shown without a file."""
    heading = html.H1(title, className="ps-title")
    if not files:
        return [heading, message(nothing)]
    file = next((path for path in files if key_of(path) == request.parameters.get(request.page)), files[0])
    links = [
        tab(
            sanitize(path.name),
            address(request.base_path, request.page, request.whose, **{request.page: key_of(path)}),
            here=path == file,
        )
        for path in files
    ]
    tabs = [html.Div(links, className="ps-tabs")] if len(links) > 1 else []
    try:
        report = report_of(file)
    except (DataError, OSError) as error:
        return [heading, *tabs, message(sanitize(str(error)))]
    head = html.H2(sanitize(f"{report.headline[:1].upper()}{report.headline[1:]}"))
    facts = [html.P(sanitize(fact), className="ps-soft ps-note") for fact in report.facts]
    return [
        heading,
        *tabs,
        html.Section([head, *facts], className="ps-card"),
        *(
            html.Section(
                [
                    html.H2(section.title),
                    *([html.P(sanitize(section.summary), className="ps-soft ps-note")] if section.summary else []),
                    *(Fragment(html=text) for text in blocks_html(section.blocks)),
                ],
                className="ps-card",
            )
            for section in report.sections
        ),
    ]


def documents_mark(files: Sequence[Path]) -> str:
    """Changes with the files."""
    return " ".join(f"{key_of(path)}{_changed_ns(path)}" for path in files)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
