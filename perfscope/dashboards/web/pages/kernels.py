"""Kernels: time by name, with the launching op and the source line."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import nothing, origins, tabs
from perfscope.model.units import format_ns

TITLE = "Kernels"
VIEW = "kernels"
GRIDS = ("kernels",)

KINDS = {
    "kernels": (
        "Device work",
        "Kernels and copies by name, summed over streams and ranks (concurrent work counts more than once).",
    ),
    "ops": ("Host ops", "Self time by name: time in an op without the ops it calls."),
    "instructions": (
        "Instructions",
        "Instructions of compiled XLA programs, without instructions that enclose others (loops).",
    ),
}
USUAL = ("kernels", "instructions", "ops")
"""Kinds in the order of preference: for a JAX program on the CPU, instructions mean more than ops."""
GROUPS = {
    "what": "category",
    "op": "op",
    "module": "module",
    "line": "line",
    "stream": "stream",
    "rank": "rank",
}
NOTHING = "No kernels, ops or instructions with a time were recorded."


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: one kind at a time, by default the first that has rows."""
    there = [kind for kind in KINDS if view["tables"][kind]["rows"]]
    if not there:
        return [html.H1(TITLE, className="ps-title"), *nothing(request, NOTHING)]
    kind = request.parameters.get("kind", "")
    kind = kind if kind in there else next(text for text in USUAL if text in there)
    value = view["tables"][kind]
    ranks = f", {view['ranks']} ranks together" if view["ranks"] > 1 else ""
    text = f"{KINDS[kind][1]} {len(value['rows']):,} names, {format_ns(value['ns'])} in all{ranks}."
    group = request.parameters.get("by", "")
    name = f"{kind}-{group}" if view["tables"].get(f"{kind}-{group}", {}).get("rows") else kind
    group, shown = (group, view["tables"][name]) if name != kind else ("", value)
    links: dict[str, Any] = {}
    if name == kind and origins(request):
        by_id = kind != "instructions"
        links = (
            {"by": {"name": ("timeline", "name", "id")}} if by_id else {"links": {"name": ("timeline", "find", "^{}$")}}
        )
    return [
        html.H1(TITLE, className="ps-title"),
        tabs(request, "kind", {text: KINDS[text][0] for text in there}, kind, label="kinds"),
        html.P(text, className="ps-soft ps-note"),
        *_groups(request, view, kind, group),
        grid("kernels", shown, request, table=name, **links),
    ]


def _groups(request: PageRequest, view: dict[str, Any], kind: str, group: str) -> list[Any]:
    """Ways to group rows, if any row has a value for them."""
    words = {"": "by name"} | {
        key: f"by {word}" for key, word in GROUPS.items() if view["tables"].get(f"{kind}-{key}", {}).get("rows")
    }
    return [tabs(request, "by", words, group, label="grouped by")] if len(words) > 1 else []
