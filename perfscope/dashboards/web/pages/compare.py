"""Compare: the difference between two runs, its certainty, causes and places; details and timelines on tabs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Input, Output, State, dcc, html, no_update

from perfscope.dashboards.figures.drawing import MARK
from perfscope.dashboards.report.charts import CAUSE_COLORS
from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._alike import alike
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import bars, chosen, mark_of, message, picker, progress, tabs
from perfscope.dashboards.web.server.shelf import Item, read_view
from perfscope.dashboards.web.server.works import SIDES, Pair, Stored, find_work, launches_of, stored
from perfscope.dashboards.web.server.workshop import State as Readiness
from perfscope.dashboards.web.ui import Flame, Fragment, Timeline
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

# Two timelines below a comparison: their sources, their start, and links from the rows of the waterfall.


KEPT = ("t0", "t1", "base_step", "head_step")
"""Parameters of the address from which both timelines start."""

TITLE = "Compare"
VIEW = None

LABEL_CHARS = 60
FIRST_CAUSES = 4
PICKER = {"base": "100%", "sm": 440}
"""Width of a list to choose a side from: names of runs have long common beginnings."""
WIDTHS = {"head": "width: head", "base": "width: base"}
TREE_WORDS = {
    "device": "the device work launched by a call",
    "host": "the call",
    "instructions": "the instructions of a scope",
}
SUMMARY, STEP, TREES, DETAILS = "summary", "step", "trees", "details"
TABS = {
    SUMMARY: "summary",
    STEP: "step in parts, timelines",
    TREES: "call trees",
    DETAILS: "kernels, ranks, method",
}
"""Parts of the page: the value of ``show`` in the address and its text."""
GRIDS = ("compare-parts", "compare-kernels")


def choices(request: PageRequest, work: Pair | Stored, view: dict[str, Any]) -> dict[str, tuple[Item, ...]]:
    """Items whose timelines can be shown, by side."""
    if isinstance(work, Pair):
        return {"base": (work.base,), "head": (work.head,)}
    return launches_of(work, view.get("paths", {}), request.shelf, sets=bool(view.get("sets")))


def sides_of(request: PageRequest, work: Pair | Stored, view: dict[str, Any]) -> dict[str, Item]:
    """The items whose timelines are shown: ``base_run`` and ``head_run`` of the address, else the first pair."""
    held = choices(request, work, view)
    if not all(held.get(side) for side in SIDES):
        return {}
    wanted = {side: request.parameters.get(f"{side}_run") for side in SIDES}
    return {side: next((item for item in held[side] if item.key == wanted[side]), held[side][0]) for side in SIDES}


def falls(request: PageRequest, view: dict[str, Any], sides: dict[str, Item]) -> dict[str, Any]:
    """Rows of the waterfall by place, linked to the timelines below, or else to the timelines of one side."""
    result = {}
    for place, names in view.get("places", {}).items() if sides else ():
        patterns = {side: f"^({'|'.join(map(re.escape, names[side]))})$" for side in SIDES if names[side]}
        side = "head" if "head" in patterns else "base"
        href = address(request.base_path, "timeline", sides[side].key, find=patterns[side])
        result[place] = {"href": href, "find": patterns}
    return result


def pictures(request: PageRequest, work: Pair | Stored, view: dict[str, Any], sides: dict[str, Item]) -> list[Any]:
    """Both timelines, each starting at a step; they move together."""
    if not sides:
        return []
    about = "On one scale, each from its first step or the chosen one; they scroll and zoom together."
    drawn: list[Any] = [
        html.H2("Timelines", className="ps-title", id="timelines"),
        html.P(about, className="ps-soft ps-note"),
        *_pickers(request, choices(request, work, view), sides),
    ]
    states = [request.workshop.state(item) for item in sides.values()]
    if any(state.folder is None and state.stage in ("working", "waiting") for state in states):
        return [*drawn, html.P("The timelines are being read.", className="ps-card")]
    at = {key: request.parameters[key] for key in KEPT if key in request.parameters} | {"link": "compare"}
    for (side, item), state in zip(sides.items(), states, strict=True):
        held = None if state.folder is None else read_view(state.folder, "timeline")
        head = html.H3(
            [f"{side}: ", dcc.Link(sanitize(item.title), href=address(request.base_path, "timeline", item.key))]
        )
        if held is None or not any(item["events"] for item in held.get("view", {}).get("traces", ())):
            nothing = "It has no timed events."
            drawn += [head, html.P(nothing if state.stage == "ready" else sanitize(state.words), className="ps-card")]
            continue
        url = f"{request.base_path}api/timeline/{item.key}/"
        findings = address(request.base_path, "findings", item.key)
        drawn += [head, Timeline(id=f"timeline-{side}", url=url, at=at | {"side": side}, findings=findings)]
    return drawn


def _pickers(request: PageRequest, held: dict[str, tuple[Item, ...]], sides: dict[str, Item]) -> list[Any]:
    """Pickers for the two launches shown, if a side has several."""
    if all(len(items) < 2 for items in held.values()):
        return []
    selects = [
        picker({"launch": side}, held[side], sides[side].key, label=f"launch of {side}", w=340) for side in SIDES
    ]
    now = {"stored": request.parameters.get("stored", ""), **{f"{side}_run": sides[side].key for side in SIDES}}
    store = dcc.Store(id={"launches": "shown"}, data=now)
    return [html.Div([store, dmc.Group(selects, gap="md")], className="ps-card")]


def register_pair(app: Any) -> None:
    """Store the picked launches in the address."""
    base_path = app.config.requests_pathname_prefix

    @app.callback(
        Output("at", "href", allow_duplicate=True),
        Input({"launch": ALL}, "value"),
        State({"launches": ALL}, "data"),
        prevent_initial_call=True,
    )
    def picked(keys: list[str | None], held: list[dict[str, str]]) -> Any:
        """Other launches, starting at their first steps."""
        wanted = {f"{side}_run": key for side, key in zip(SIDES, keys, strict=False) if key}
        if len(wanted) < len(SIDES) or not held or wanted.items() <= held[0].items():
            return no_update
        return address(base_path, "compare", None, stored=held[0]["stored"], show=STEP, **wanted)


def layout(request: PageRequest, view: None) -> Any:
    """The page: pickers, and the result of the child for the two items in the address."""
    page = [html.H1(TITLE, className="ps-title"), _pickers_compare(request)]
    work = _work(request)
    if isinstance(work, str):
        return [*page, message(work)]
    state = request.workshop.state(work)
    made = None if state.folder is None else read_view(state.folder, "compare")
    if made is None:
        return [*page, progress(f"Comparing {_titles(work)}", work.key, state)]
    stale = [html.P(_stale(state), className="ps-warn", role="status")] if state.stale else []
    return [*page, *stale, *_shown(request, work, made["view"])]


def mark(request: PageRequest) -> str:
    """Changes with the open items, the progress of the comparison, and the readiness of both timelines."""
    items = " ".join([*(item.key for item in request.shelf.items()), *(item.key for item in stored(request.shelf))])
    work = _work(request)
    if isinstance(work, str):
        return f"{items}|{work}"
    state = request.workshop.state(work)
    if state.folder is None or read_view(state.folder, "compare") is None:
        return f"{items}|{mark_of(state)}"
    shown_now = read_view(state.folder, "compare")
    drawn = _tab(request) == STEP and shown_now is not None
    sides = sides_of(request, work, shown_now["view"]) if drawn and shown_now is not None else {}
    lanes = [request.workshop.state(item).stage for item in sides.values()]
    ready = " ".join("read" if stage in ("ready", "failed", "gone", "cancelled") else "not read" for stage in lanes)
    pair = " ".join(item.key for item in sides.values())
    return f"{items}|{state.folder.name} {state.stage if state.stale else ''} {pair} {ready.count('not') == 0}"


def register(app: Any) -> None:
    """The pickers."""
    base_path = app.config.requests_pathname_prefix

    @app.callback(
        Output("at", "href", allow_duplicate=True),
        *(Input(f"compare-{side}", "value") for side in SIDES),
        State("compare-now", "data"),
        prevent_initial_call=True,
    )
    def picked(base: str | None, head: str | None, now: dict[str, str]) -> Any:
        keys = {side: key for side, key in zip(SIDES, (base, head), strict=True) if key}
        same = all(now.get(side) == key for side, key in keys.items())
        return no_update if same else address(base_path, "compare", None, **keys)

    @app.callback(
        Output("at", "href", allow_duplicate=True),
        Input("compare-stored", "value"),
        State("compare-now", "data"),
        prevent_initial_call=True,
    )
    def picked_stored(key: str | None, now: dict[str, str]) -> Any:
        return no_update if not key or key == now.get("stored") else address(base_path, "compare", None, stored=key)

    register_pair(app)


def _work(request: PageRequest) -> Pair | Stored | str:
    """The comparison to show, or the reason for its absence."""
    kept = request.parameters.get("stored")
    if kept is not None:
        work = find_work(request.shelf, kept)
        return work if isinstance(work, Stored) else "No such comparison is open here, or not any more."
    keys = [request.parameters.get(side, "") for side in SIDES]
    if not any(keys) and len(request.shelf.items()) < 2 and not stored(request.shelf):
        return "Only one run is open here. To compare two: perfscope serve BASE HEAD."
    if not all(keys):
        return "Choose two runs: base from before the change, head from after it."
    if keys[0] == keys[1]:
        return "Both sides are the same run: choose another."
    sides = [request.shelf.find(key) for key in keys]
    if sides[0] is None or sides[1] is None:
        return "No such run or trace is open here, or not any more."
    return Pair(base=sides[0], head=sides[1])


def _pickers_compare(request: PageRequest) -> Any:
    items = request.shelf.items()
    often = Counter(item.title for item in items)
    choice = {
        item.key: {
            "value": item.key,
            "label": sanitize(item.title if often[item.title] == 1 else f"{item.path.parent.name}/{item.title}"),
        }
        for item in items
    }
    now = {name: request.parameters[name] for name in (*SIDES, "stored") if request.parameters.get(name)}
    if not now and request.came_from is not None:
        now["head"] = request.came_from.key  # the item shown before is usually the head
    selects = [
        picker(f"compare-{side}", (), now.get(side), label=side, data=_offered(items, choice, now.get(other)), w=PICKER)
        for side, other in (SIDES, SIDES[::-1])
    ]
    kept = stored(request.shelf)
    named = request.parameters.get("stored")
    value = picker(
        "compare-stored",
        kept,
        named if named in {item.key for item in kept} else None,
        label="or a stored comparison",
        placeholder="compare commits, --json",
        style={} if kept else {"display": "none"},
    )
    return html.Div(
        [dcc.Store(id="compare-now", data=now), dmc.Group([*selects, value], gap="md")], className="ps-card"
    )


def _offered(items: Sequence[Item], choice: dict[str, dict[str, str]], other: str | None) -> list[dict[str, Any]]:
    """Options for one side: first what can be compared with the ``other`` side, if that is chosen."""
    item = next((item for item in items if item.key == other), None)
    same = [] if item is None else [each.key for each in alike(items, item)]
    rest = [choice[key] for key in choice if key not in same]
    if not same:
        return rest
    words = "runs of the same program" if item is not None and item.kind == "run" else "of the same kind"
    grouped = [{"group": words, "items": [choice[key] for key in same]}, {"group": "others", "items": rest}]
    return [group for group in grouped if group["items"]]


def _titles(work: Pair | Stored) -> str:
    if isinstance(work, Pair):
        return f"{sanitize(work.base.title)} with {sanitize(work.head.title)}"
    return sanitize(work.title)


def _stale(state: Readiness) -> str:
    if state.stage in ("working", "waiting"):
        return "The files have changed: comparing them again. Below is the previous result."
    return f"This is the previous result: {sanitize(state.words)}"


def _shown(request: PageRequest, work: Pair | Stored, view: dict[str, Any]) -> list[Any]:
    sides = sides_of(request, work, view)
    names = {name: text for name, text in TABS.items() if name != TREES or view["flame"] is not None}
    show = _tab(request)
    shown = show if show in names else SUMMARY
    page = [
        Fragment(html=view["verdict"]),
        tabs(request, "show", names, shown, label="parts of the comparison", without=("width", *KEPT)),
    ]
    if shown == STEP:
        return [
            *page,
            Fragment(html=view["step"], links=falls(request, view, sides)),
            *pictures(request, work, view, sides),
            *_table(request, work, view, sides, "parts"),
        ]
    if shown == TREES:
        return [*page, *_flame(request, view, sides)]
    if shown == DETAILS:
        return [*page, *_table(request, work, view, sides, "kernels"), Fragment(html=view["details"])]
    return [
        *page,
        *_account(view),
        _causes(request, view, sides),
        Fragment(html=view["findings"]),
        Fragment(html=view["metrics"]),
    ]


def _tab(request: PageRequest) -> str:
    return chosen(request, "show", TABS)


def _account(view: dict[str, Any]) -> list[Any]:
    """The step of both sides by cause: two bars on one scale, and a row per cause, largest change first."""
    account = view["account"]
    if account is None:
        return []
    causes = {row["words"]: row for row in account["rows"]}
    colors = {words: CAUSE_COLORS.get(row["cause"], MARK) for words, row in causes.items()}
    sides = [
        {"label": side, "said": "", "parts": {words: row[f"{side}_ns"] for words, row in causes.items()}}
        for side in SIDES
    ]
    most = max((abs(row["change_ns"]) for row in account["rows"]), default=0) or 1
    heads = [html.Th("cause"), *(html.Th(name, className="ps-n") for name in (*SIDES, "change")), html.Th("")]
    rows = [
        html.Tr(
            [
                html.Td([html.Span(className="ps-swatch", style={"background": colors[words]}), words]),
                *(html.Td(format_ns(row[f"{side}_ns"]), className="ps-n") for side in SIDES),
                html.Td(html.B(row["change"]), className="ps-n"),
                html.Td(_diverging(row["change_ns"] / most), className="ps-change"),
            ]
        )
        for words, row in causes.items()
    ]
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(rows)], className="ps-table")
    heading = f"Changes of the {view['per']} by cause"
    drawn = bars(sides, colors, title=heading, words=account["note"], legend=False)
    drawn.children.append(table)
    drawn.id = "account"
    return [drawn]


def _diverging(share: float) -> Any:
    """A bar from the middle: to the right for more time, to the left for less; ``share``: of half of the width."""
    width = f"{50 * abs(share):.1f}%"
    side = {"left": "50%"} if share > 0 else {"right": "50%"}
    tone = "ps-more" if share > 0 else "ps-less"
    return html.Div(html.Div(className=tone, style={"width": width, **side}), className="ps-diverging")


def _flame(request: PageRequest, view: dict[str, Any], sides: dict[str, Item]) -> list[Any]:
    """Both call trees as one flame graph; the address selects the side that gives the widths."""
    flame = view["flame"]
    if flame is None:
        return []
    side = chosen(request, "width", WIDTHS)
    what = TREE_WORDS[flame["time"]]
    alone = [
        f"{flame['alone'][change]['count']:,} nodes are only in {whose} ({flame['alone'][change]['time']})"
        for change, whose in (("added", "head"), ("removed", "base"))
        if flame["alone"][change]["count"]
    ]
    words = f"Width: time of {what} in {side}; colour: its change. {'; '.join(alone)}{'.' if alone else ''}"
    timeline = address(request.base_path, "timeline", sides[side].key) if sides else ""
    look = {"categories": flame["categories"], "colors": flame["colors"], "code": {}, "flat": True}
    return [
        html.Div(tabs(request, "width", WIDTHS, side, label="width"), className="ps-ways"),
        html.P(words, className="ps-soft ps-note"),
        Flame(
            id="compare-flame",
            tree=flame["sides"][side],
            timeline=timeline,
            find="",
            order="time",
            fold=False,
            look=look,
        ),
    ]


def _causes(request: PageRequest, view: dict[str, Any], sides: dict[str, Item]) -> Any:
    rows = [
        html.Div([Fragment(html=item["html"]), *_looks(request, item, sides)], className="ps-cause")
        for item in view["causes"]
    ]
    more = rows[FIRST_CAUSES:]
    left = [html.P(f"and {view['causes_left']:,} more")] if view["causes_left"] else []
    hidden = [html.Details([html.Summary(f"{len(more)} more places"), *more, *left])] if more else []
    nothing = [] if rows else [html.P("No exact metric changed.")]
    return html.Section([html.H2("Changes by place"), *rows[:FIRST_CAUSES], *hidden, *nothing], className="ps-card")


def _looks(request: PageRequest, entry: dict[str, Any], sides: dict[str, Item]) -> list[Any]:
    """Links into the timeline of each side that has events of the place."""
    links: list[Any] = []
    for side, item in sides.items():
        for index, name in enumerate(entry[side]):
            label = name if len(name) <= LABEL_CHARS else f"{name[: LABEL_CHARS - 1]}…"
            href = address(request.base_path, "timeline", item.key, find=f"^{re.escape(name)}$")
            links += [f"in the timeline of {side}: " if index == 0 else " ", html.A(html.Code(label), href=href), " "]
    return [html.Div(links, className="ps-look")] if links else []


TABLES = {
    "parts": "They sum to the whole. By calls: change in call count at the old time per call; by each call: the rest.",
    "kernels": "Over several launches; q is p corrected for the number of kernels.",
}
"""Table -> note."""


def _table(
    request: PageRequest, work: Pair | Stored, view: dict[str, Any], sides: dict[str, Item], name: str
) -> list[Any]:
    """A table with its title; nothing if it has no rows."""
    value = view["tables"][name]
    if not value["rows"]:
        return []
    links = {
        f"in_{side}": (address(request.base_path, "timeline", item.key), "find", "^{}$") for side, item in sides.items()
    }
    others = view["other_parts"] if name == "parts" else 0
    left = f" {others:,} more are one row of the document." if others else ""
    return [
        html.H2(f"The {view['per']} in parts" if name == "parts" else "Kernels", className="ps-title"),
        html.P(f"{TABLES[name]}{left}", className="ps-soft ps-note"),
        grid(f"compare-{name}", value, request, table=name, links=links, key=work.key, view="compare"),
    ]
