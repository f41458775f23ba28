"""Results: the result tables of the analysis, one at a time."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import chosen, nothing, tabs

TITLE = "Results"
VIEW = "results"
GRIDS = ("results",)

NOTHING = "No result table has rows."


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: a tab per table, and the meaning of a row above its grid."""
    heading = html.H1(TITLE, className="ps-title")
    names = {name: f"{held['title']} ({len(held['rows']) + held['left']:,})" for name, held in view["tables"].items()}
    if not names:
        return [heading, *nothing(request, NOTHING)]
    kind = chosen(request, "kind", names)
    return [
        heading,
        tabs(request, "kind", names, kind, label="tables"),
        html.P(view["tables"][kind]["doc"], className="ps-soft ps-note"),
        grid("results", view["tables"][kind], request, table=kind),
    ]
