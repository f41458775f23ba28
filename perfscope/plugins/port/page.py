"""Port: two sides of one model next to each other, layer by layer, from a document of `perfscope compare --json`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from dash import html

from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._parts import message, tab
from perfscope.dashboards.web.server.shelf import Shelf, key_of
from perfscope.dashboards.web.server.works import documents
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.port.document import Ledger, load
from perfscope.plugins.port.sections import report_of

TITLE = "Port"
VIEW = None
KEY = "p"
FILE = "port.json"
NOTHING = (
    "No port ledger is open here. Write one with perfscope compare TORCH_RUN JAX_RUN --json port.json, and open it "
    "with perfscope serve port.json."
)


def layout(request: PageRequest, view: None) -> Any:
    """The page; ``port`` in the address selects one of several documents."""
    heading = html.H1(TITLE, className="ps-title")
    files = _files(request.shelf)
    if not files:
        return [heading, message(NOTHING)]
    file = next((path for path in files if key_of(path) == request.parameters.get("port")), files[0])
    links = [
        tab(
            sanitize(path.name), address(request.base_path, "port", request.whose, port=key_of(path)), here=path == file
        )
        for path in files
    ]
    tabs = [html.Div(links, className="ps-tabs")] if len(links) > 1 else []
    try:
        ledger = _load(file, file.stat().st_mtime_ns)
    except (DataError, OSError) as error:
        return [heading, *tabs, message(sanitize(str(error)))]
    report = report_of(ledger)
    head = [html.H2(f"{report.headline[:1].upper()}{report.headline[1:]}")]
    facts = [html.P(sanitize(fact), className="ps-soft ps-note") for fact in report.facts]
    return [
        heading,
        *tabs,
        html.Section([*head, *facts], className="ps-card"),
        *(
            html.Section(
                [
                    html.H2(section.title),
                    *_note(section.summary),
                    *(Fragment(html=text) for text in blocks_html(section.blocks)),
                ],
                className="ps-card",
            )
            for section in report.sections
        ),
    ]


def _note(summary: str) -> list[Any]:
    return [html.P(f"{summary[:1].upper()}{summary[1:]}.", className="ps-soft ps-note")] if summary else []


def mark(request: PageRequest) -> str:
    """Changes with the documents."""
    return " ".join(f"{key_of(path)}{_changed(path)}" for path in _files(request.shelf))


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _files(shelf: Shelf) -> tuple[Path, ...]:
    """Ledgers in the paths that the server was started with, newest first."""
    return documents(shelf, "port", FILE, "port-*")


@lru_cache(maxsize=16)
def _load(path: Path, _changed_ns: int) -> Ledger:
    return load(path)
