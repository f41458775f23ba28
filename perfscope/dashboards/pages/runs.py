"""Runs: everything that is open here, the newest first."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from perfscope.dashboards.pages import Asked, address
from perfscope.dashboards.shown import shown

TITLE = "Runs"
VIEW = None

_WORDS = {
    "waiting": "not read yet",
    "working": "being read",
    "ready": "ready",
    "failed": "cannot be read",
    "cancelled": "reading cancelled",
    "gone": "gone",
}


def layout(asked: Asked, view: None) -> Any:
    """The page."""
    items = asked.shelf.items()
    body = []
    for item in items:
        state = asked.workshop.state(item, start=False)
        told = f"{_WORDS[state.stage]}{', running' if item.running() else ''}"
        body.append(
            html.Tr(
                [
                    html.Td(dcc.Link(shown(item.title), href=address(asked.base_path, "overview", item.key))),
                    html.Td(item.kind),
                    html.Td(told),
                    html.Td(shown(str(item.path), 400), className="ps-soft"),
                ]
            )
        )
    heads = ("name", "what", "state", "path")
    table = html.Table([html.Thead(html.Tr([html.Th(name) for name in heads])), html.Tbody(body)], className="ps-table")
    nothing = html.P("Nothing is open: perfscope run train.py makes a run; perfscope serve FILE opens a trace.")
    return [html.H1("Runs", className="ps-title"), html.Div(table if items else nothing, className="ps-card ps-scroll")]
