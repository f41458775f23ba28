"""Overview: key figures, first findings, where the time goes, and what was not recorded."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from perfscope.analyzers.time import StepAccount
from perfscope.dashboards.figures import step_account
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.dashboards.web.pages import PAGES, PageRequest, address
from perfscope.dashboards.web.pages._alike import alike, tags
from perfscope.dashboards.web.pages._live import running
from perfscope.dashboards.web.pages._parts import chart
from perfscope.dashboards.web.server.shelf import Item
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.untrusted_text import sanitize

TITLE = "Overview"
VIEW = "overview"
CHART = "overview-steps"
FIGURE_PX = 280
ACCOUNT_KEYS = ("rank", "device", "ordinal", "name", "numbers", "causes_ns")

MOST_ALIKE = 20
"""Most runs offered for a comparison; the page Compare has all."""

PLACE_CHARS = 34
"""Characters of a place: the column's width. Its end with the line is kept."""


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: one screen, then rules that were not evaluated and the sources."""
    parts = view["parts"]
    of_plugins, *cells = [
        html.Div(Fragment(html=parts[name]), role="region", tabIndex=0, **{"aria-label": words})
        if parts.get(name)
        else None
        for name, words in (
            ("plugins", "results of plug-ins"),
            ("top", "what takes the time"),
            ("devices", "devices"),
            ("steps", "step times"),
        )
    ]
    return html.Div(
        [
            html.Div([html.H1("Overview", className="ps-title"), _compare(request)], className="ps-over-head"),
            Fragment(html=parts["headline"]),
            *running(request.item),
            Fragment(html=parts["tiles"]),
            *([html.P(view["interval"], className="ps-soft ps-note")] if view["interval"] else []),
            _first(request, view),
            *_account(request, view),
            *([Fragment(html=view["large"])] if view["large"] else []),
            of_plugins,
            html.Div([*filter(None, cells), *_missing(view)], className="ps-over-cells"),
            html.Details(
                [html.Summary("Rules not evaluated, clean rules, and sources"),
                 Fragment(html=parts["rest"])],
                className="ps-over-rest",
            ),
        ],
        className="ps-over",
    )  # fmt: skip


def _account(request: PageRequest, view: dict[str, Any]) -> list[Any]:
    """The account of every step, and next to it what bound the steps."""
    parts = view["parts"]
    accounts = [StepAccount(**{key: item[key] for key in ACCOUNT_KEYS}) for item in view["accounts"]]
    cells = []
    if accounts:
        links = [[request.link("timeline", mark=span) for span in item["spans"]] for item in view["accounts"]]
        figure = step_account(accounts, links)
        figure.update_layout(title=None, margin={"l": 10, "r": 10, "t": 10, "b": 30}, height=FIGURE_PX)
        picture = chart(CHART, figure, "each step by cause; the numbers are below", legend=True)
        cells.append(
            html.Section(
                [
                    html.H2("Where each step goes"),
                    html.P("A click on a step opens it in the timeline.", className="ps-soft ps-note"),
                    picture,
                    html.Details([html.Summary("the mean step in numbers"), Fragment(html=parts["account"])]),
                ],
                className="ps-card ps-over-steps",
            )
        )
    if view["path"] or parts.get("path"):
        path = _path(request, view["path"]) if view["path"] else Fragment(html=parts["path"])
        cells.append(
            html.Div(path, className="ps-over-side", role="region", tabIndex=0, **{"aria-label": "critical path"})
        )
    return [html.Div(cells, className="ps-over-main")] if cells else []


def _path(request: PageRequest, path: dict[str, Any]) -> Any:
    """The critical path of a single recording: its largest members, each linked to a search in the timeline."""
    heads = [html.Th("on the path"), html.Th("time", className="ps-n"), html.Th("share", className="ps-n")]
    rows = [
        html.Tr(
            [
                html.Td(_on_path(request, row), title=row["title"]),
                html.Td(row["time"], className="ps-n"),
                html.Td(row["share"], className="ps-n"),
            ]
        )
        for row in path["rows"]
    ]
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(rows)], className="ps-table")
    return html.Section(
        [
            html.H2("Critical path"),
            html.P(f"A step is limited by: {path['parts']}.", className="ps-soft ps-note"),
            table,
        ],
        className="ps-card ps-over-path",
    )


def _on_path(request: PageRequest, row: dict[str, Any]) -> Any:
    name = html.Code(row["name"])
    return dcc.Link(name, href=request.link("timeline", name=row["id"])) if row["id"] else name


def _compare(request: PageRequest) -> Any:
    """Ways to compare this item: a link to the first candidate, the others in a list."""
    if request.item is None or "compare" not in PAGES:
        return html.Span()
    first, *others = [
        _compared(request, request.item, other) for other in alike(request.shelf.items(), request.item)
    ] or [None]
    if first is None:
        return html.Span()
    more = html.Details(
        [html.Summary(f"{len(others):,} more"), html.Ul([html.Li(each) for each in others[:MOST_ALIKE]])]
    )
    return html.Div(["compare with ", first, *([more] if others else [])], className="ps-over-compare")


def _compared(request: PageRequest, item: Item, other: Item) -> Any:
    """A link to the comparison with another item, which is the base."""
    named = f" [{', '.join(tags(other))}]" if tags(other) else ""
    href = address(request.base_path, "compare", None, base=other.key, head=item.key)
    return dcc.Link(f"{sanitize(other.title, 60)}{sanitize(named, 60)}", href=href)


def _missing(view: dict[str, Any]) -> list[Any]:
    rows = view["missing"]
    if not rows:
        return []
    by_command: dict[str, list[str]] = {}
    for row in rows:
        by_command.setdefault(row["command"], []).append(row["what"])
    items = [
        html.Li([f"{'; '.join(what)}: ", html.Code(command)] if command else "; ".join(what))
        for command, what in by_command.items()
    ]
    listed = [html.H2("Not recorded"), html.Ul(items)]
    return [html.Section(listed, className="ps-card", tabIndex=0, **{"aria-label": "not recorded"})]


def _place(row: dict[str, Any]) -> list[Any]:
    """Shown next to the finding if there is room; below it on a narrow screen."""
    where = row["where"]
    return [html.Code(place_end(where, PLACE_CHARS), title=where)] if where not in ("", "-") else []


def _first(request: PageRequest, view: dict[str, Any]) -> Any:
    rows = view["first"]
    if not rows:
        return html.Section([html.H2("Findings"), html.P(view["nothing"])], className="ps-card")
    shares = any(row["share"] for row in rows)
    heads = ("saves up to", "share", "finding", "where", "basis")
    body = [
        html.Tr(
            [
                html.Td(row["gain"], className="ps-n", **{"data-name": heads[0]}),
                *([html.Td(row["share"], className="ps-n", **{"data-name": heads[1]})] if shares else []),
                html.Td(
                    [
                        html.Div(
                            [
                                dcc.Link(row["rule"], href=request.link("findings", at=str(index))),
                                html.Span(f": {row['title'].replace('`', '')}"),
                            ],
                            className="ps-over-two",
                            title=" ".join((row["title"], row["detail"])).replace("`", ""),
                        ),
                        *(
                            [html.Div(row["fix"], className="ps-soft ps-over-two", title=row["fix"])]
                            if row["fix"]
                            else []
                        ),
                        *(html.Div(item, className="ps-over-place") for item in _place(row)),
                    ]
                ),
                html.Td(_place(row), className="ps-over-where", **{"data-name": heads[3]}),
                html.Td(row["basis"], **{"data-name": heads[4]}),
            ],
            className=f"ps-{row['severity']}",
        )
        for index, row in enumerate(rows)
    ]
    more = view["findings"] - len(rows)
    named = [
        html.Th(name, className={heads[0]: "ps-n", heads[1]: "ps-n", heads[3]: "ps-over-where"}.get(name, ""))
        for name in heads
        if shares or name != heads[1]
    ]
    table = html.Table([html.Thead(html.Tr(named)), html.Tbody(body)], className="ps-table")
    left = [dcc.Link(f"and {more} more", href=request.link("findings"))] if more > 0 else []
    heading = html.Div([html.H2("Findings: what to change first"), *left], className="ps-over-head")
    return html.Section([heading, html.Div(table, className="ps-scroll")], className="ps-card ps-first")
