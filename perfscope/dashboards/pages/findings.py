"""Findings: each with its evidence, what to do about it, where to look at it, and what nobody looked at."""

from __future__ import annotations

import re
from typing import Any

from dash import dcc, html

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.ui import Fragment

TITLE = "Findings"
VIEW = "findings"

LABEL_CHARS = 60


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page; ``rule`` in the address shows those of one rule."""
    rule = asked.parameters.get("rule", "")
    rows = [row for row in view["findings"] if not rule or row["rule"] == rule]
    some = rule and len(rows) < len(view["findings"])
    everything = [html.P([f"Of {rule} alone. ", dcc.Link("all findings", href=asked.link("findings"))])] if some else []
    nothing = [html.P("No findings.", className="ps-card")] if not rows else []
    left = [html.P(f"{view['left']:,} more are left out; the JSON report holds all.")] if view["left"] else []
    return [
        html.H1(TITLE, className="ps-title"),
        *everything,
        *nothing,
        *(_finding(asked, row) for row in rows),
        *left,
        Fragment(html=view["after"]),
    ]


def _finding(asked: Asked, row: dict[str, Any]) -> Any:
    links: list[Any] = []
    for name in row["find"]:
        label = name if len(name) <= LABEL_CHARS else f"{name[: LABEL_CHARS - 1]}…"
        href = asked.link("timeline", find=f"^{re.escape(name)}$")
        links += [html.A(html.Code(label), href=href), " "]
    shown = [html.Div(["in the timeline: ", *links], className="ps-look")] if links else []
    return html.Div([Fragment(html=row["html"]), *shown], className="ps-finding")
