"""Timeline: every rank, device, stream, thread and depth on one clock, drawn on a canvas."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.ui import Fragment, Timeline

TITLE = "Timeline"
VIEW = "timeline"
KEPT = ("t0", "t1", "sel", "trace", "find", "mark", "finding")
"""Of the address, that the picture begins with."""


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page."""
    assert asked.item is not None
    if not any(one["events"] for one in view["traces"]):
        nothing = "There are no events with a time in it: compiled programs, plans and snapshots have none."
        links = [
            dcc.Link(words, href=asked.link(page))
            for page, words in (("compile", "what was compiled or planned"), ("memory", "memory"), ("graph", "graph"))
        ]
        others = html.P(["See: ", *(part for link in links for part in (link, " · "))][:-1], className="ps-note")
        more = [Fragment(html=view["modelled"])] if view.get("modelled") else [others]
        return [html.H1(TITLE, className="ps-title"), html.P(nothing, className="ps-card", role="status"), *more]
    at = {key: asked.parameters[key] for key in KEPT if key in asked.parameters}
    url = f"{asked.base_path}api/timeline/{asked.item.key}/"
    return [
        html.H1(TITLE, className="ps-title ps-hidden"),
        Timeline(id="timeline", url=url, at=at, findings=asked.link("findings")),
    ]
