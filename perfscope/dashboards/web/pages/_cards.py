"""Pages that show the cards of the HTML report: one layout, so that they are alike."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.ui import Fragment


def cards(title: str, view: dict[str, Any], *, nothing: str) -> list[Any]:
    """A heading and the cards of ``view["html"]``; ``nothing``: said where there are none, and how to get them."""
    shown = Fragment(html=view["html"]) if view["html"] else html.P(nothing, className="ps-card")
    return [html.H1(title, className="ps-title"), shown]
