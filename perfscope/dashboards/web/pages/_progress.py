"""What stands in the place of a page whose data is not there: how far it is, or the one line that says why not."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from perfscope.dashboards.web.server.workshop import State
from perfscope.model.untrusted_text import sanitize


def said(line: str, *more: Any) -> Any:
    """A line in place of a page."""
    return html.Div([html.P(sanitize(line, 1_000)), *more], className="ps-card", role="alert")


def progress(title: str, key: str, state: State) -> Any:
    """How far a child is, with a button that ends it; of one that failed why, with one that begins again."""
    if state.stage in ("working", "waiting"):
        return html.Div(
            [
                html.H1(title),
                dmc.Progress(value=100, animated=True, striped=True, **{"aria-label": "reading"}),
                html.P(f"{state.told}, {state.seconds:.0f} s"),
                html.Button("cancel", id={"act": "cancel", "key": key}, className="ps-button"),
            ],
            className="ps-card",
        )
    again = html.Button("read it again", id={"act": "again", "key": key}, className="ps-button")
    return said(state.told, *([] if state.stage == "gone" else [again]))


def mark_of(state: State) -> str:
    """What `progress` depends on."""
    return f"{state.stage} {state.told} {int(state.seconds)}"
