"""History: how metrics went from commit to commit, and between which their level changed."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import Asked, address
from perfscope.dashboards.web.pages._parts import mark_of, progress, said, tab
from perfscope.dashboards.web.server.shelf import read_view
from perfscope.dashboards.web.server.works import Kept, stores
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.untrusted_text import sanitize

TITLE = "History"
VIEW = None

LEAST_RUNS = 2
NO_STORE = (
    "No run store lies beside what is open here. perfscope history, called where perfscope-runs is, takes its runs "
    "into perfscope-runs/store.sqlite; then they are shown here."
)


def layout(asked: Asked, view: None) -> Any:
    """The page; ``metric`` in the address shows that one alone, ``store`` is one of several."""
    page = [html.H1(TITLE, className="ps-title")]
    held = stores(asked.shelf)
    if not held:
        return [*page, said(NO_STORE)]
    kept = _asked_for(asked, held)
    state = asked.workshop.state(kept)
    made = None if state.folder is None else read_view(state.folder, "history")
    if made is None:
        return [*page, progress(f"Reading {sanitize(str(kept.path))}", kept.key, state)]
    others = [_stores(asked, held, kept)] if len(held) > 1 else []
    return [*page, *others, *_shown(asked, kept, made["view"])]


def mark(asked: Asked) -> str:
    """Changes with the stores and how far their reading is."""
    held = stores(asked.shelf)
    if not held:
        return "no store"
    state = asked.workshop.state(_asked_for(asked, held))
    made = state.folder is not None and read_view(state.folder, "history") is not None
    return state.folder.name if made and state.folder is not None else mark_of(state)


def _asked_for(asked: Asked, held: tuple[Kept, ...]) -> Kept:
    key = asked.parameters.get("store")
    return next((item for item in held if item.key == key), held[0])


def _stores(asked: Asked, held: tuple[Kept, ...], kept: Kept) -> Any:
    return html.Div(
        [
            tab(
                sanitize(str(item.path.parent)),
                address(asked.base_path, "history", asked.whose, store=item.key),
                here=item == kept,
            )
            for item in held
        ],
        className="ps-tabs",
    )


def _shown(asked: Asked, kept: Kept, view: dict[str, Any]) -> list[Any]:
    if view["runs"] < LEAST_RUNS:
        few = f"{view['runs']} run{'s' * (view['runs'] != 1)} that finished is in {kept.path}: a history needs two."
        return [said(few, html.P("perfscope run makes one, perfscope history takes it in."))]
    metric = asked.parameters.get("metric", "")
    metric = metric if metric in view["metrics"] else ""
    named = {} if "store" not in asked.parameters else {"store": kept.key}
    tabs = [
        tab("times and what changed", address(asked.base_path, "history", asked.whose, **named), here=not metric),
        *(
            tab(item, address(asked.base_path, "history", asked.whose, **named, metric=item), here=item == metric)
            for item in view["metrics"]
        ),
    ]
    about = (
        f"{view['runs']} runs that finished; {view['changed']} series with a change of level. A history reports; it "
        "proves nothing of one commit: perfscope compare commits does."
    )
    left = [f"{view['programs_left']:,} more programs are left out"] if view["programs_left"] else []
    return [
        html.P([about, " ", view.get("ordered", "")], className="ps-soft ps-note"),
        html.Div(tabs, className="ps-tabs"),
        *(card for item in view["programs"] for card in _program(item, metric)),
        *(html.P(line, className="ps-soft ps-note") for line in (*left, *view["notes"])),
    ]


def _program(item: dict[str, Any], metric: str) -> list[Any]:
    rows = [series for series in item["series"] if (series["metric"] == metric if metric else series["plain"])]
    if not rows and (metric or not item["moved"]):
        return []
    left = f"{item['left']:,} more metrics are left out: perfscope history shows them"
    return [
        html.Section(
            [
                html.H2(item["title"]),
                *([] if metric else [Fragment(html=item["moved"])]),
                *(Fragment(html=series["html"]) for series in rows),
                *([html.P(left, className="ps-soft")] if item["left"] else []),
            ],
            className="ps-card",
        )
    ]
