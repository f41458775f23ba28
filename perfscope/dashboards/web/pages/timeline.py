"""Timeline: every rank, device, stream, thread and depth on one clock, drawn on a canvas."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._parts import nothing
from perfscope.dashboards.web.ui import Fragment, Timeline

TITLE = "Timeline"
VIEW = "timeline"
KEPT = ("t0", "t1", "sel", "trace", "find", "name", "mark", "finding", "pins")
"""Parameters of the address from which the picture starts."""
NOTHING = "There are no timed events: compiled programs, plans and snapshots have none."
MODELLED = "This was never run: there are no timed events. Below is one modelled run."


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page."""
    assert request.item is not None
    if not any(item["events"] for item in view["traces"]):
        note, *others = nothing(request, NOTHING)
        more = [Fragment(html=view["modelled"])] if view.get("modelled") else others
        shown = html.P(MODELLED, className="ps-card", role="status") if view.get("modelled") else note
        return [html.H1(TITLE, className="ps-title"), shown, *more]
    at = {key: request.parameters[key] for key in KEPT if key in request.parameters}
    url = f"{request.base_path}api/timeline/{request.item.key}/"
    return [
        html.H1(TITLE, className="ps-title ps-hidden"),
        Timeline(id="timeline", url=url, at=at, findings=request.link("findings")),
    ]
