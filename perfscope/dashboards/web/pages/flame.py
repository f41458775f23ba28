"""Flame graph: time as a tree of host stacks, of device work by the stack that launched it, or of scopes."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._parts import chosen, nothing, tabs
from perfscope.dashboards.web.ui import Flame

TITLE = "Flame"
VIEW = "flame"

FORMS = {"merged": "steps and layers merged", "apart": "each separately"}
ORDERS = {"time": "largest first", "start": "time order"}
FRAMES = {"fold": "launchers folded", "show": "all frames"}
KINDS = {
    "device": ("Device time", "Kernels and copies under the ops (and Python frames, if recorded) that launched them."),
    "scopes": ("Scopes", "Instructions of compiled programs under the scopes of your program."),
    "host": ("Host time", "Call stacks of host threads; waiting is included."),
    "samples": (
        "Sampled stacks",
        "Stacks of the thread that runs the steps, sampled in all steps, also without the profiler; waiting is "
        "included.",
    ),
}  # fmt: skip
SAMPLED = " Time without a recorded op is divided among sampled stacks."
NOTHING = (
    "No stacks were recorded. perfscope run records them; torch.profiler does with with_stack=True, without it, "
    "only ops are shown."
)


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: one tree at a time, by default the first that has any time."""
    if not view["kinds"]:
        return [html.H1(TITLE, className="ps-title"), *nothing(request, NOTHING)]
    names = {kind: KINDS[kind][0] for kind in view["kinds"]}
    kind, form = chosen(request, "kind", names), chosen(request, "form", FORMS)
    order, frames = chosen(request, "order", ORDERS), chosen(request, "frames", FRAMES)
    tree = view["trees"][kind][form]
    merges = view["trees"][kind]["apart"]["name"] != view["trees"][kind]["merged"]["name"]
    ways = [("form", FORMS, form, merges), ("order", ORDERS, order, any(tree["first_ns"]))]
    ways.append(("frames", FRAMES, frames, any(tree["fold"])))
    return [
        html.H1(TITLE, className="ps-title"),
        html.Div(
            [tabs(request, "kind", names, kind, label="kinds")]
            + [tabs(request, key, words, here, label=key) for key, words, here, there in ways if there],
            className="ps-ways",
        ),
        html.P(KINDS[kind][1] + _sampled(kind, tree), className="ps-soft ps-note"),
        Flame(
            id="flame",
            tree=tree,
            timeline=request.link("timeline"),
            find=request.parameters.get("find", ""),
            order=order,
            fold=frames == "fold",
            look={key: view[key] for key in ("categories", "colors", "code")},
        ),
    ]


def _sampled(kind: str, tree: dict[str, Any]) -> str:
    """How much of a tree is known from samples."""
    if kind == "samples":
        tops = sum(count for count, parent in zip(tree["count"], tree["parent"], strict=True) if parent == 0)
        return f" {tops:,} samples."
    return SAMPLED if any(tree["sampled"]) else ""
