"""Flame graph: time as a tree of the host's stacks, of device work by who asked for it, or of scopes."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import Asked
from perfscope.dashboards.web.pages._parts import chosen, nothing, tabs
from perfscope.dashboards.web.ui import Flame

TITLE = "Flame"
VIEW = "flame"

KINDS = {
    "device": ("Device time", "Kernels and copies below the ops (and Python, if recorded) that launched them."),
    "scopes": ("Scopes", "Instructions of compiled programs below the scopes of your program."),
    "host": ("Host time", "What the host's threads ran, one below the other; waiting is in it."),
}  # fmt: skip
NOTHING = (
    "No stacks were recorded. perfscope run records them; torch.profiler does with with_stack=True, and without it "
    "ops alone are shown."
)


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page: one tree at a time, the first that has any time unless the address names one."""
    there = [kind for kind in KINDS if view["trees"][kind] is not None]
    if not there:
        return [html.H1(TITLE, className="ps-title"), *nothing(asked, NOTHING)]
    names = {text: KINDS[text][0] for text in there}
    kind = chosen(asked, "kind", names)
    return [
        html.H1(TITLE, className="ps-title"),
        tabs(asked, "kind", names, kind, label="kinds"),
        html.P(KINDS[kind][1], className="ps-soft ps-note"),
        Flame(
            id="flame",
            tree=view["trees"][kind],
            timeline=asked.link("timeline"),
            find=asked.parameters.get("find", ""),
        ),
    ]
