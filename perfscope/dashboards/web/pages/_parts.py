"""Parts shared by pages: tabs, bars with their numbers, origins of timelines, texts of empty pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.server.shelf import read_view
from perfscope.dashboards.web.server.workshop import State as Readiness
from perfscope.dashboards.web.ui import Fragment
from perfscope.dashboards.web.views.empty import EMPTY_VIEW
from perfscope.model.untrusted_text import sanitize

OTHERS = {"compile": "what was compiled or planned", "memory": "memory", "graph": "graph"}
"""Pages that can show programs and snapshots, which have no times."""
SHOWN = {"compile": ("html", "tables"), "memory": ("html", "memories", "planned"), "graph": ("subjects",)}
"""Fields of these pages' views that are drawn."""
NOTHING_RAN = "This was never run, so there is nothing to show here."

CLICKED = """function(click, figure) {
    const point = click && click.points[0];
    if (!point) return window.dash_clientside.no_update;
    const drawn = figure.data[point.curveNumber], request = new URLSearchParams(location.search);
    const cell = () => `${drawn.y.indexOf(point.y)}.${drawn.x.indexOf(point.x)}`;
    if (String(point.customdata).startsWith("/")) return point.customdata;
    request.set("at", point.customdata === undefined ? cell() : point.customdata);
    return `${location.pathname}?${request}`;
}"""


def tabs(
    request: PageRequest,
    parameter: str,
    words: Mapping[str, str],
    here: str,
    *,
    label: str,
    without: Sequence[str] = (),
) -> Any:
    """Links to the same page with another value of ``parameter``; ``words``: value -> text of its tab.

    ``without``: parameters of the address that have no meaning on another tab.
    """
    kept = {key: value for key, value in request.parameters.items() if key not in without}
    links = [
        tab(name, request.link(request.page, **{**kept, parameter: value}), here=value == here)
        for value, name in words.items()
    ]
    return html.Nav(links, className="ps-tabs", **{"aria-label": label})


def tab(word: str, href: str, *, here: bool) -> Any:
    """One of several links; the open one is marked."""
    link = dcc.Link(word, href=href, className="ps-tab" + (" ps-here" if here else ""))
    return html.Div(link, **({"aria-current": "true"} if here else {}))


def picker(name: Any, items: Iterable[Any], chosen: str | None, **options: Any) -> Any:
    """A list to choose an item of the shelf (or a work) by title; ``options``: of `dmc.Select`."""
    data = [{"value": item.key, "label": sanitize(item.title)} for item in items]
    return dmc.Select(
        **{"id": name, "data": data, "value": chosen, "placeholder": "run or trace", "searchable": True,
           "allowDeselect": False, "size": "sm", "w": 300} | options
    )  # fmt: skip


def chosen(request: PageRequest, parameter: str, known: Mapping[str, str]) -> str:
    """The value in the address if it is known, else the first known value."""
    wanted = request.parameters.get(parameter, "")
    return wanted if wanted in known else next(iter(known), "")


def origins(request: PageRequest) -> dict[str, str]:
    """The event at 0 of each trace's timeline, by trace number; empty while the timeline is being made."""
    held = None if request.folder is None else read_view(request.folder, "timeline")
    result = {} if held is None else held.get("view", {})
    return {str(item["trace"]): item["origin"] for item in result.get("traces", ()) if item["events"]}


def planned(request: PageRequest) -> bool:
    """Whether it was compiled or planned but never ran."""
    held = None if request.folder is None else read_view(request.folder, "overview")
    return bool(held and held.get("view", {}).get("planned"))


def nothing(request: PageRequest, words: str) -> list[Any]:
    """The content of a page without data: the reason, and the pages that have data on the same item."""
    links = [dcc.Link(name, href=request.link(page)) for page, name in OTHERS.items() if _has(request, page)]
    see = [html.P(["See: ", *(part for link in links for part in (link, " · "))][:-1], className="ps-note")]
    return [
        html.P(NOTHING_RAN if planned(request) else words, className="ps-card", role="status"),
        *(see if links else []),
    ]


def empty_pages(request: PageRequest) -> Mapping[str, str]:
    """Pages without data on the item -> the reason; empty while this is unknown."""
    item = request.item or request.came_from
    folder = request.folder
    if folder is None and item is not None:
        folder = request.workshop.state(item, start=False).folder
    held = None if folder is None else read_view(folder, EMPTY_VIEW)
    return {} if held is None else held.get("view", {})


def _has(request: PageRequest, page: str) -> bool:
    """Whether a page has more than text; true while this is unknown."""
    held = None if request.folder is None else read_view(request.folder, page)
    if held is None:
        return True
    view = held.get("view", {})
    return any(view.get(key) for key in SHOWN[page])


def pictures(request: PageRequest) -> dict[int, str]:
    """Number of a finding -> the first picture of the graph about it; empty while pictures are being made."""
    held = None if request.folder is None else read_view(request.folder, "graph")
    result: dict[int, str] = {}
    for number, subject in enumerate(({} if held is None else held.get("view", {})).get("subjects", ())):
        for item in subject["findings"]:
            result.setdefault(item["at"], str(number + 1))
    return result


def chart(name: str, figure: Any, label: str, *, legend: bool = False) -> Any:
    """A plotly figure in the colours of the page; a click is stored in the address (`register_chart`).

    ``label``: description for screen readers; the page must have the same as words or as a table. ``legend``: meaning
    of the colours as text above it, because plotly's legend of many names leaves no room on a narrow screen.
    """
    above = [_legend({trace.name: _color(trace) for trace in figure.data if trace.name})] if legend else []
    if legend:
        figure.update_layout(showlegend=False)
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hoverlabel={"align": "left"}, dragmode=False
    )
    height = {"height": f"{figure.layout.height}px"}
    graph = dcc.Graph(id=name, figure=figure, config={"displayModeBar": False}, responsive=True, style=height)
    return html.Div([*above, graph], className="ps-card ps-chart", role="group", **{"aria-label": label})


def _color(trace: Any) -> str:
    held = trace.to_plotly_json()
    return str(held.get("fillcolor") or held.get("marker", {}).get("color") or held.get("line", {}).get("color"))


def with_code(text: str) -> list[Any]:
    """A text with its parts in backticks as code."""
    return [html.Code(part) if number % 2 else part for number, part in enumerate(text.split("`")) if part]


def _legend(colors: Mapping[str, str]) -> Any:
    """Names with their colours."""
    entries = [
        html.Span([html.Span(className="ps-swatch", style={"background": color}), name])
        for name, color in colors.items()
    ]
    return html.Div(entries, className="ps-legend")


def register_chart(app: Any, name: str) -> None:
    """Store the data of a clicked point (in a heat map ``ROW.COLUMN``) as ``at`` in the address.

    The page is then redrawn for the new address and describes the point. Data that begins with ``/`` is the address of
    another page.
    """
    app.clientside_callback(
        CLICKED,
        Output("at", "href", allow_duplicate=True),
        Input(name, "clickData"),
        State(name, "figure"),
        prevent_initial_call=True,
    )


def bars(
    rows: Sequence[Mapping[str, Any]],
    colors: Mapping[str, str],
    *,
    title: str,
    words: str = "",
    legend: bool = True,
) -> Any:
    """Stacked bars on one scale: ``rows`` with ``label``, ``said`` (its numbers) and ``parts`` (name -> value)."""
    whole = max((sum(row["parts"].values()) for row in rows), default=0) or 1
    drawn = [
        html.Div(
            [
                html.Div(
                    [html.Span(row["label"]), html.Span(row["said"], className="ps-soft")], className="ps-bar-said"
                ),
                html.Div(
                    [
                        html.Div(
                            className="ps-bar-part",
                            title=name,
                            style={"width": f"{100 * value / whole:.3f}%", "background": colors[name]},
                        )
                        for name, value in row["parts"].items()
                        if value
                    ],
                    className="ps-bar-whole",
                    **{"aria-hidden": "true"},
                ),
            ],
            className="ps-bar-row",
        )
        for row in rows
    ]
    note = [html.P(words, className="ps-soft ps-note")] if words else []
    above = [_legend(colors)] if legend else []
    return html.Section([html.H2(title), *note, *above, *drawn], className="ps-card ps-bars")


# Pages that show cards of the HTML report share one layout.


def cards(title: str, view: dict[str, Any], *, nothing: str) -> list[Any]:
    """A heading and the cards of ``view["html"]``; ``nothing``: text shown without cards, with a way to get them."""
    shown = Fragment(html=view["html"]) if view["html"] else html.P(nothing, className="ps-card")
    return [html.H1(title, className="ps-title"), shown]


# Content of a page whose data is not ready: the progress, or the reason for the failure.


def message(line: str, *more: Any) -> Any:
    """A line in place of a page."""
    return html.Div([html.P(sanitize(line, 1_000)), *more], className="ps-card", role="alert")


def progress(title: str, key: str, state: Readiness) -> Any:
    """Progress of a child with a button to cancel it; for a failed child the reason with a button to retry."""
    if state.stage in ("working", "waiting"):
        return html.Div(
            [
                html.H1(title),
                dmc.Progress(value=100, animated=True, striped=True, **{"aria-label": "reading"}),
                html.P(f"{state.words}, {state.seconds:.0f} s"),
                html.Button("cancel", id={"act": "cancel", "key": key}, className="ps-button"),
            ],
            className="ps-card",
        )
    again = html.Button("read it again", id={"act": "again", "key": key}, className="ps-button")
    return message(state.words, *([] if state.stage == "gone" else [again]))


def mark_of(state: Readiness) -> str:
    """The state that `progress` depends on."""
    return f"{state.stage} {state.words} {int(state.seconds)}"
