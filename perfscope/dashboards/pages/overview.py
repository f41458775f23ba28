"""Overview: the numbers at the top, the findings to begin with, where the device time goes."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.ui import Fragment

TITLE = "Overview"
VIEW = "overview"


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page."""
    return [
        html.H1("Overview", className="ps-title"),
        Fragment(html=view["before"]),
        _first(asked, view),
        Fragment(html=view["after"]),
    ]


def _first(asked: Asked, view: dict[str, Any]) -> Any:
    rows = view["first"]
    if not rows:
        return html.Section([html.H2("Findings"), html.P("No findings.")], className="ps-card")
    heads = ("saves up to", "of it", "finding", "where", "known by")
    body = [
        html.Tr(
            [
                html.Td(row["gain"], className="ps-n"),
                html.Td(row["share"], className="ps-n"),
                html.Td(
                    [
                        dcc.Link(row["rule"], href=asked.link("findings", rule=row["rule"])),
                        html.Span(f": {row['title'].replace('`', '')}"),
                    ]
                ),
                html.Td(html.Code(row["where"])),
                html.Td(row["known_by"]),
            ],
            className=f"ps-{row['severity']}",
        )
        for row in rows
    ]
    more = view["findings"] - len(rows)
    table = html.Table([html.Thead(html.Tr([html.Th(name) for name in heads])), html.Tbody(body)], className="ps-table")
    left = [dcc.Link(f"and {more} more", href=asked.link("findings"))] if more > 0 else []
    return html.Section([html.H2("First"), html.Div(table, className="ps-scroll"), *left], className="ps-card")
