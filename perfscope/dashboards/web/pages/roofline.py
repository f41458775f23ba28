"""Roofline: achieved rate of compute, and the highest rate that the device allows."""

from __future__ import annotations

import re
from typing import Any

from dash import dcc, html

from perfscope.dashboards.figures import roofline
from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import chart, chosen, origins, tabs
from perfscope.model.units import format_count, format_ns, format_share

TITLE = "Roofline"
VIEW = "roofline"
GRIDS = ("roofline",)
CHART = "roofline-picture"

KINDS = {
    "instructions": ("Instructions", "Instructions of compiled XLA programs, all runs summed."),
    "ops": ("Ops", "Ops of one step of the program (PyTorch), grouped by name, size and line."),
    "calls": (
        "Ops by shape",
        "Ops whose input shapes the profiler recorded, grouped by name, size and line.",
    ),
}
BOUND_WORDS = {"compute": "arithmetic", "memory": "memory bandwidth", "link": "link bandwidth", "": "not known"}
MODELLED = (
    "No time was measured: each time is the shortest the device allows, so every point lies on its roof and has no "
    "headroom. Record a run to measure it."
)


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: one kind at a time, by default the first that has points."""
    title = html.H1(TITLE, className="ps-title")
    lacks = [html.P(sentence, className="ps-card") for sentence in view["lacks"]]
    there = [kind for kind in KINDS if view["tables"][kind]["rows"]]
    if not there:
        return [title, *lacks]
    names = {text: KINDS[text][0] for text in there}
    kind = chosen(request, "kind", names)
    value = view["tables"][kind]
    keys = [column["key"] for column in value["columns"]]
    points = [dict(zip(keys, row, strict=True)) for row in value["rows"]]
    name = request.parameters.get("at", "")
    drawable = value["plain_ns"] < value["ns"]
    nothing = "No FLOPs are known for anything in the table, so there is nothing to plot."
    return [
        title,
        tabs(
            request,
            "kind",
            {text: KINDS[text][0] for text in there},
            kind,
            label="kinds",
            without=("at",),
        ),
        *lacks,
        *_most_headroom(points),
        *([html.P(MODELLED, className="ps-soft ps-note")] if _modelled(value) else []),
        *(
            [chart(CHART, roofline(points, view["devices"], name), "roofline; the table below has all points")]
            if drawable
            else [html.P(nothing, className="ps-card")]
        ),
        *[_point(request, point) for point in points if point["name"] == name][:1],
        html.P(_caption(kind, value, view), className="ps-soft ps-note"),
        *(_roofs(device) for device in view["devices"]),
        html.H2(f"As a table, {_first(points)} first", className="ps-title ps-below"),
        grid(
            "roofline",
            value,
            request,
            table=kind,
            links={"name": ("timeline", "find", "^{}$")} if origins(request) else {},
        ),
    ]


def _first(points: list[dict[str, Any]]) -> str:
    """The order of the table, in words."""
    return "the largest headroom" if any(point["headroom_ns"] for point in points) else "most time"


def _most_headroom(points: list[dict[str, Any]]) -> list[Any]:
    """The point from which most can be gained, in words; points are sorted by headroom."""
    most = next((point for point in points if point["headroom_ns"]), None)
    if most is None:
        return []
    place = f" ({most['line']})" if most["line"] else ""
    roof = BOUND_WORDS.get(most["bound"], BOUND_WORDS[""])
    words = (
        f"{place}: a perfect kernel would save {format_ns(most['headroom_ns'])} of its {format_ns(most['time_ns'])}. "
        f"It reaches {format_share(most['of_roof'], 1)} of its roof, which is {roof}."
    )
    return [html.P([html.B("Largest headroom: "), html.Code(most["name"]), words], className="ps-lead")]


def _caption(kind: str, held: dict[str, Any], view: dict[str, Any]) -> str:
    ranks = f", {view['ranks']} ranks together" if view["ranks"] > 1 else ""
    plain = ""
    if held["plain_ns"]:
        plain = f" {format_share(held['plain_ns'], held['ns'])} of it has no FLOPs and is listed only in the table."
    labels = "; its label is the share of its roof that it reaches" if view["devices"] else ""
    costed, whole = view["costed"]
    if kind == "calls" and whole:
        plain += f" They account for {format_share(costed, whole)} of the time of compute kernels."
    return (
        f"{KINDS[kind][1]} {len(held['rows']):,} of them, {format_ns(held['ns'])} in all{ranks}.{plain} FLOPs and "
        f"bytes are modelled from shapes. The area of a disc is its time{labels}."
    )


def _modelled(held: dict[str, Any]) -> bool:
    index = next(index for index, column in enumerate(held["columns"]) if column["key"] == "basis")
    return all(row[index] == "modelled" for row in held["rows"])


def _roofs(device: dict[str, Any]) -> Any:
    peaks = "; ".join(f"{item['label']} {format_count(item['flops'])}FLOP/s" for item in device["peaks"])
    name = device["name"] + (" (assumed: the programs name no device)" if device["assumed"] else "")
    return html.P(
        f"Roofs of {name}: {peaks}; memory {format_count(device['bandwidth'])}B/s. Source: {device['source']}.",
        className="ps-soft ps-note",
    )


def _point(request: PageRequest, point: dict[str, Any]) -> Any:
    """The clicked point in words, with links to the timeline and the graph."""
    least = point["least_ns"]
    facts = [
        " ".join(filter(None, (point["what"], point["dtype"], point["line"], point["program"]))),
        f"{format_ns(point['time_ns'])} in {point['runs']:,} runs, {format_ns(point['run_ns'])} each "
        f"({point['basis']})",
        "" if least is None else f"at least {format_ns(least)} per run, bound by {point['bound']} (modelled)",
        ""
        if point["headroom_ns"] is None
        else f"{format_ns(point['headroom_ns'])} headroom: at most what a perfect kernel would save",
    ]
    find = f"^{re.escape(point['name'])}$"
    links = [
        part
        for page in ("timeline", "graph")
        for part in (" · ", dcc.Link(f"in the {page}", href=request.link(page, find=find)))
    ]
    words = "; ".join(filter(None, facts))
    return html.P(
        [html.Code(point["name"]), f" {words}", *links], className="ps-card", id="roofline-point", role="status"
    )
