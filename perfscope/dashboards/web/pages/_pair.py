"""Two timelines below a comparison: whose they are, what they begin with, and the rows of the waterfall as links."""

from __future__ import annotations

import re
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Input, Output, State, dcc, html, no_update

from perfscope.dashboards.web.pages import Asked, address
from perfscope.dashboards.web.server.kept import read_view
from perfscope.dashboards.web.server.launches import SIDES, launches_of
from perfscope.dashboards.web.server.shelf import Item
from perfscope.dashboards.web.server.works import Pair, Stored
from perfscope.dashboards.web.ui import Timeline
from perfscope.model.untrusted_text import sanitize

KEPT = ("t0", "t1", "base_step", "head_step")
"""Of the address, that both timelines begin with."""


def choices(asked: Asked, work: Pair | Stored, view: dict[str, Any]) -> dict[str, tuple[Item, ...]]:
    """Whose timelines can be shown, by side."""
    if isinstance(work, Pair):
        return {"base": (work.base,), "head": (work.head,)}
    return launches_of(work, view.get("paths", {}), asked.shelf, sets=bool(view.get("sets")))


def sides_of(asked: Asked, work: Pair | Stored, view: dict[str, Any]) -> dict[str, Item]:
    """Whose timelines are shown: those that the address names (``base_run``, ``head_run``), else the first pair."""
    held = choices(asked, work, view)
    if not all(held.get(side) for side in SIDES):
        return {}
    wanted = {side: asked.parameters.get(f"{side}_run") for side in SIDES}
    return {side: next((one for one in held[side] if one.key == wanted[side]), held[side][0]) for side in SIDES}


def falls(asked: Asked, view: dict[str, Any], sides: dict[str, Item]) -> dict[str, Any]:
    """Rows of the waterfall by place as links: to the timelines below, or where there are none to those of a side."""
    found = {}
    for place, names in view.get("places", {}).items() if sides else ():
        patterns = {side: f"^({'|'.join(map(re.escape, names[side]))})$" for side in SIDES if names[side]}
        side = "head" if "head" in patterns else "base"
        href = address(asked.base_path, "timeline", sides[side].key, find=patterns[side])
        found[place] = {"href": href, "find": patterns}
    return found


def pictures(asked: Asked, work: Pair | Stored, view: dict[str, Any], sides: dict[str, Item]) -> list[Any]:
    """Both timelines from the beginning of a step each; they move together."""
    if not sides:
        return []
    about = "On one scale, each from its first step, or from the one that is chosen; they move together."
    drawn: list[Any] = [
        html.H2("Timelines", className="ps-title", id="timelines"),
        html.P(about, className="ps-soft ps-note"),
        *_pickers(asked, choices(asked, work, view), sides),
    ]
    states = [asked.workshop.state(item) for item in sides.values()]
    if any(state.folder is None and state.stage in ("working", "waiting") for state in states):
        return [*drawn, html.P("They are being read.", className="ps-card")]
    at = {key: asked.parameters[key] for key in KEPT if key in asked.parameters} | {"link": "compare"}
    for (side, item), state in zip(sides.items(), states, strict=True):
        held = None if state.folder is None else read_view(state.folder, "timeline")
        head = html.H3(
            [f"{side}: ", dcc.Link(sanitize(item.title), href=address(asked.base_path, "timeline", item.key))]
        )
        if held is None or not any(one["events"] for one in held.get("view", {}).get("traces", ())):
            nothing = "There are no events with a time in it."
            drawn += [head, html.P(nothing if state.stage == "ready" else sanitize(state.told), className="ps-card")]
            continue
        url = f"{asked.base_path}api/timeline/{item.key}/"
        findings = address(asked.base_path, "findings", item.key)
        drawn += [head, Timeline(id=f"timeline-{side}", url=url, at=at | {"side": side}, findings=findings)]
    return drawn


def _pickers(asked: Asked, held: dict[str, tuple[Item, ...]], sides: dict[str, Item]) -> list[Any]:
    """Of several launches a side, which two are shown."""
    if all(len(found) < 2 for found in held.values()):
        return []
    selects = [
        dmc.Select(
            id={"launch": side},
            label=f"launch of {side}",
            data=[{"value": one.key, "label": sanitize(one.title)} for one in held[side]],
            value=sides[side].key,
            searchable=True,
            allowDeselect=False,
            size="sm",
            w=340,
        )
        for side in SIDES
    ]
    now = {"stored": asked.parameters.get("stored", ""), **{f"{side}_run": sides[side].key for side in SIDES}}
    store = dcc.Store(id={"launches": "shown"}, data=now)
    return [html.Div([store, dmc.Group(selects, gap="md")], className="ps-card")]


def register_pair(app: Any) -> None:
    """What is picked of several launches stands in the address."""
    base_path = app.config.requests_pathname_prefix

    @app.callback(
        Output("at", "href", allow_duplicate=True),
        Input({"launch": ALL}, "value"),
        State({"launches": ALL}, "data"),
        prevent_initial_call=True,
    )
    def picked(keys: list[str | None], held: list[dict[str, str]]) -> Any:
        """Other launches, from their first steps."""
        wanted = {f"{side}_run": key for side, key in zip(SIDES, keys, strict=False) if key}
        if len(wanted) < len(SIDES) or not held or wanted.items() <= held[0].items():
            return no_update
        return address(base_path, "compare", None, stored=held[0]["stored"], **wanted)
