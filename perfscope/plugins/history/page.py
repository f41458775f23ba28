"""History: metrics from commit to commit, and the commits between which their level changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from typing import Any

from dash import Input, Output, State, dcc, html, no_update

from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._parts import chart, mark_of, message, picker, progress, register_chart, tab
from perfscope.dashboards.web.server.shelf import read_view
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.history.figure import metric_history
from perfscope.plugins.history.works import Kept, works

TITLE = "History"
VIEW = None
KEY = "h"

LEAST_RUNS = 2
ALL = "all metrics"
FEW_CHANGES = 2
"""Newest changes of level named in a row; the sparkline marks all."""
CHART, MOST_CHARTS = "history-chart", 24
FIGURE_PX = 260
CLICK = "A click on a point compares its run with the one before it."
NOT_OPEN = "These runs are not open here, only their recorded metrics."
NO_STORE = (
    "There is no run store here. Run perfscope history in the folder that contains perfscope-runs: it records the "
    "runs in perfscope-runs/store.sqlite, and they are shown here."
)


def layout(request: PageRequest, view: None) -> Any:
    """The page: a table per program.

    ``metric`` in the address selects one metric, which is drawn; ``store`` one of several stores.
    """
    page = [html.H1(TITLE, className="ps-title")]
    held = works(request.shelf)
    if not held:
        return [*page, message(NO_STORE)]
    kept = _chosen_store(request, held)
    state = request.workshop.state(kept)
    made = None if state.folder is None else read_view(state.folder, "history")
    if made is None:
        return [*page, progress(f"Reading {sanitize(str(kept.path))}", kept.key, state)]
    others = [_stores(request, held, kept)] if len(held) > 1 else []
    return [*page, *others, *_shown(request, kept, made["view"])]


def mark(request: PageRequest) -> str:
    """Changes with the stores and the progress of their reading."""
    held = works(request.shelf)
    if not held:
        return "no store"
    state = request.workshop.state(_chosen_store(request, held))
    made = state.folder is not None and read_view(state.folder, "history") is not None
    return state.folder.name if made and state.folder is not None else mark_of(state)


def _chosen_store(request: PageRequest, held: tuple[Kept, ...]) -> Kept:
    key = request.parameters.get("store")
    return next((item for item in held if item.key == key), held[0])


def _stores(request: PageRequest, held: tuple[Kept, ...], kept: Kept) -> Any:
    return html.Div(
        [
            tab(
                sanitize(str(item.path.parent)),
                address(request.base_path, "history", request.whose, store=item.key),
                here=item == kept,
            )
            for item in held
        ],
        className="ps-tabs",
    )


def _shown(request: PageRequest, kept: Kept, view: dict[str, Any]) -> list[Any]:
    if view["runs"] < LEAST_RUNS:
        few = f"{view['runs']} run{'s' * (view['runs'] != 1)} that finished is in {kept.path}: a history needs two."
        return [message(few, html.P("perfscope run records a run, perfscope history adds it."))]
    metric = request.parameters.get("metric", "")
    metric = metric if metric in view["metrics"] else ""
    named = {} if "store" not in request.parameters else {"store": kept.key}
    choices = [{"value": "", "label": ALL}, *({"value": item, "label": item} for item in view["metrics"])]
    links = {
        item["value"]: address(
            request.base_path, "history", request.whose, **named, **({"metric": item["value"]} if item["value"] else {})
        )
        for item in choices
    }
    choice = picker("history-metric", (), metric, data=choices, label="metric", placeholder=ALL)
    runs = {item.path.name: item.key for item in request.shelf.items()}
    numbers = count()
    about = (
        f"{view['runs']} runs that finished; {view['changed']} metric{'' if view['changed'] == 1 else 's'} with a "
        "change of level. A change of level does not prove that a commit caused it: perfscope compare commits tests "
        "that."
    )
    left = [f"{view['programs_left']:,} more programs are left out"] if view["programs_left"] else []
    return [
        html.Div([dcc.Store(id="history-links", data={"now": metric, "links": links}), choice], className="ps-card"),
        *(card for item in view["programs"] for card in _program(request, item, metric, runs, numbers)),
        html.P([about, " ", view.get("ordered", "")], className="ps-soft ps-note"),
        *(html.P(line, className="ps-soft ps-note") for line in (*left, *view["notes"])),
    ]


def _program(
    request: PageRequest, item: dict[str, Any], metric: str, runs: Mapping[str, str], numbers: Iterator[int]
) -> list[Any]:
    rows = [series for series in item["series"] if series["metric"] == metric] if metric else item["series"]
    if not rows:
        return []
    left = f"{item['left']:,} more metrics are left out: perfscope history shows them"
    drawn = metric and any(len(series["points"]) >= LEAST_RUNS for series in rows)
    opened = any(point["run"] in runs for series in rows for point in series["points"])
    parts = (
        [part for series in rows for part in _drawn(request, series, runs, numbers)]
        if metric
        else [_table(request, rows)]
    )
    return [
        html.Section(
            [
                html.H2(item["title"]),
                *([html.P(CLICK if opened else NOT_OPEN, className="ps-soft ps-note")] if drawn else []),
                *parts,
                *([] if metric or not item["moved"] else [_moved(item["moved"])]),
                *([html.P(left, className="ps-soft")] if item["left"] else []),
            ],
            className="ps-card",
        )
    ]


def _table(request: PageRequest, rows: list[dict[str, Any]]) -> Any:
    """A row per metric with its course; metrics that never changed are folded."""
    moving = [series for series in rows if series["change"] or series["changes"]]
    still = [series for series in rows if series not in moving]
    folded = html.Details([html.Summary(_still(still)), _rows(request, still)])
    return html.Div([*([_rows(request, moving)] if moving else []), *([folded] if still else [])])


def _still(rows: list[dict[str, Any]]) -> str:
    """Number of metrics without a course."""
    count = f"{len(rows):,} metric{'s' * (len(rows) != 1)}"
    return f"{count} of a single run" if all(row["runs"] == 1 for row in rows) else f"{count} without a change"


def _moved(text: str) -> Any:
    """Changes of level by commit."""
    return html.Details([html.Summary("changes of level by commit"), Fragment(html=text)])


def _rows(request: PageRequest, rows: list[dict[str, Any]]) -> Any:
    heads = [
        html.Th("metric"),
        *(html.Th(name, className="ps-n") for name in ("runs", "first", "newest", "change")),
        html.Th("course"),
        html.Th("level changed at"),
    ]
    store = {"store": request.parameters["store"]} if "store" in request.parameters else {}
    body = [
        html.Tr(
            [
                html.Td(
                    dcc.Link(
                        series["metric"],
                        href=address(request.base_path, "history", request.whose, **store, metric=series["metric"]),
                    )
                ),
                html.Td(f"{series['runs']:,}", className="ps-n", **{"data-name": "runs"}),
                html.Td(series["first"], className="ps-n", **{"data-name": "first"}),
                html.Td(series["newest"], className="ps-n", **{"data-name": "newest"}),
                html.Td(html.B(series["change"]), className="ps-n", **{"data-name": "change"}),
                html.Td(Fragment(html=series["spark"]) if series["spark"] else ""),
                html.Td(_changes(series["changes"]), **{"data-name": "level changed at"}),
            ]
        )
        for series in rows
    ]
    return html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="ps-table ps-history")


def _changes(changes: list[dict[str, Any]]) -> list[Any]:
    """The newest changes: commit and size."""
    newest = changes[::-1][:FEW_CHANGES]
    more = [f" and {len(changes) - FEW_CHANGES} earlier"] if len(changes) > FEW_CHANGES else []
    return [*(part for change in newest for part in (html.Code(change["said"]), " ")), *more]


def _drawn(request: PageRequest, series: dict[str, Any], runs: Mapping[str, str], numbers: Iterator[int]) -> list[Any]:
    """The figure of a metric with its runs below; a click on a point compares its run with the one before it."""
    points, table = series["points"], Fragment(html=series["html"])
    title = html.H3(f"{series['metric']}: {points[-1]['said']}", style={"fontSize": "14.5px", "margin": "14px 0 2px"})
    if len(points) < LEAST_RUNS or (number := next(numbers)) >= MOST_CHARTS:
        return [title, table]
    keys = [runs.get(point["run"], "") for point in points]
    links = [
        address(request.base_path, "compare", None, base=base, head=head) if base and head else ""
        for base, head in pairwise(["", *keys])
    ]
    figure = metric_history(series, links)
    figure.update_layout(margin={"l": 10, "r": 10, "t": 38, "b": 30}, height=FIGURE_PX)
    picture = chart(f"{CHART}-{number}", figure, f"{series['metric']} over runs; the table below has them")
    return [title, picture, table]


def register(app: Any) -> None:
    """Store the picked metric in the address; points lead to comparisons."""
    for number in range(MOST_CHARTS):
        register_chart(app, f"{CHART}-{number}")

    @app.callback(
        Output("at", "href", allow_duplicate=True),
        Input("history-metric", "value"),
        State("history-links", "data"),
        prevent_initial_call=True,
    )
    def picked(metric: str | None, held: dict[str, Any]) -> Any:
        metric = metric or ""
        return no_update if metric == held["now"] else held["links"].get(metric, no_update)
