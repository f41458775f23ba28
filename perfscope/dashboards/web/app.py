"""``create_app``: the frame of the dashboard. All is served locally; traces are not kept in memory."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import dash
import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import CallbackException, DependencyException
from msgspec.structs import replace

from perfscope.dashboards.web.pages import PageRequest, address, page_key, page_module, pages
from perfscope.dashboards.web.pages._grid import register_grid
from perfscope.dashboards.web.pages._live import running
from perfscope.dashboards.web.pages._parts import empty_pages, mark_of, message, progress, register_chart
from perfscope.dashboards.web.pages.runs import removable
from perfscope.dashboards.web.server.api import install_api
from perfscope.dashboards.web.server.exports import FORMS
from perfscope.dashboards.web.server.guard import Guard
from perfscope.dashboards.web.server.shelf import Shelf, read_view
from perfscope.dashboards.web.server.works import find_work
from perfscope.dashboards.web.server.workshop import State as Readiness
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.dashboards.web.ui import Exports
from perfscope.model.documents import run_folders
from perfscope.model.errors import PerfscopeError, log_failure
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

_log = logging.getLogger(__name__)
TICK_MS = 1_000
"""Milliseconds between two checks of what is being read."""
ASSETS = Path(__file__).parent / "assets"
START = "overview"
INDEX = """<!DOCTYPE html>
<html lang="en">
    <head>
        {%metas%}
        <title>{%title%}</title>
        {%favicon%}
        {%css%}
    </head>
    <body>
        {%app_entry%}
        <footer>
            {%config%}
            {%scripts%}
            {%renderer%}
        </footer>
    </body>
</html>"""
"""Dash's own page, with the language attribute that screen readers need."""


def create_app(
    shelf: Shelf,
    workshop: Workshop,
    *,
    token: str | None,
    hosts: Iterable[str],
    base_path: str = "/",
    title: str = "perfscope",
    perfetto: int | None = None,
    editor: str | None = None,
) -> Dash:
    """Return the dashboard as a Dash app; ``app.server`` is the application for a WSGI server.

    ``base_path`` begins and ends with ``/``: the prefix set by a proxy. ``perfetto``: port of Perfetto's page.
    ``editor``: address that opens a source line, with ``{file}`` and ``{line}``.
    """
    app = Dash(
        __name__,
        title=title,
        index_string=INDEX,
        assets_folder=str(ASSETS),
        requests_pathname_prefix=base_path,
        routes_pathname_prefix=base_path,
        serve_locally=True,
        suppress_callback_exceptions=True,
        update_title="",
        external_stylesheets=[f"{base_path}api/style.css"],
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.enable_dev_tools(debug=False)
    app.layout = lambda: _frame(shelf, base_path, perfetto, editor)
    _route(app, shelf, workshop, base_path)
    for name in pages():
        module = page_module(name)
        for grid in getattr(module, "GRIDS", ()):
            register_grid(app, grid)
        if hasattr(module, "CHART"):
            register_chart(app, module.CHART)
        if hasattr(module, "register"):
            module.register(app)
    install_api(app.server, shelf, workshop, base_path)
    Guard(
        token=token,
        hosts=frozenset(hosts),
        base_path=base_path,
        inline_hashes=tuple(f"{csp_hash}" for csp_hash in app.csp_hashes()),
    ).install(app.server)
    _answer_errors(app, base_path)
    return app


def _answer_errors(app: Dash, base_path: str) -> None:
    """Answer requests that none of our pages makes with one line, and log an internal error in one line.

    Dash would answer both with 500 and write a traceback.
    """
    from flask import request
    from werkzeug.exceptions import HTTPException

    def refuse_unknown_callback() -> ResponseReturnValue | None:
        if request.method != "POST" or request.path != f"{base_path}_dash-update-component":
            return None
        try:
            body = request.get_json(silent=True)
        except RecursionError:  # `silent` covers only invalid JSON
            body = None
        output = body.get("output") if isinstance(body, dict) else None
        known = isinstance(output, str) and output in app.callback_map
        return None if known else ("perfscope: no such callback\n", HTTPStatus.BAD_REQUEST)

    def answer(error: Exception) -> ResponseReturnValue:
        if isinstance(error, HTTPException):
            return error
        if isinstance(error, DependencyException):
            return "perfscope: no such file\n", HTTPStatus.NOT_FOUND
        if isinstance(error, CallbackException):
            return "perfscope: the callback has other inputs\n", HTTPStatus.BAD_REQUEST
        log_failure(_log, f"internal error in {request.path}", error)
        return "perfscope: internal error, see the server's log\n", HTTPStatus.INTERNAL_SERVER_ERROR

    app.server.before_request(refuse_unknown_callback)
    app.server.register_error_handler(Exception, answer)


def _frame(shelf: Shelf, base_path: str, perfetto: int | None, editor: str | None) -> Any:
    """The parts that stay when pages change: header, menu, and the place of the page."""
    listed = _listed(shelf)
    picker = dmc.Select(
        id="which",
        data=listed,
        placeholder="run or trace",
        searchable=True,
        allowDeselect=False,
        size="sm",
        w={"base": 150, "sm": 300, "lg": 420},
        **{"aria-label": "run or trace"},
    )
    dark = dmc.Switch(id="dark", label="dark", size="sm")
    header = dmc.Group(
        [
            html.A("skip to the page", href="#page", className="ps-skip"),
            dcc.Link("perfscope", href=base_path, className="ps-brand"),
            picker,
            html.Div(id="live", role="status", className="ps-live", **{"aria-live": "polite"}),
            html.Div(style={"flex": 1}),
            Exports(
                id="exports",
                url=f"{base_path}api/export/",
                forms=[{"form": name, "word": form.word} for name, form in FORMS.items()],
                perfetto=perfetto,
            ),
            dark,
        ],
        h="100%",
        px="md",
        gap="md",
        wrap="nowrap",
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="at", refresh="callback-nav"),
            dcc.Interval(id="tick", interval=TICK_MS),
            dcc.Store(id="drawn"),
            dcc.Store(id="listed", data=_mark_of_list(listed)),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(header),
                    dmc.AppShellNavbar(html.Div(id="menu"), p="sm", **{"aria-label": "pages"}),
                    dmc.AppShellMain(html.Div(id="page", tabIndex=-1, **({"data-editor": editor} if editor else {}))),
                ],
                header={"height": 54},
                navbar={"width": 168, "breakpoint": "sm", "collapsed": {"mobile": False}},
                padding="md",
            ),
        ],
        id="theme",
        forceColorScheme="light",
        theme={
            "fontFamily": "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif",
            "primaryColor": "indigo",
        },
    )


def _listed(shelf: Shelf) -> list[dict[str, str]]:
    """The options of the picker: everything that is open."""
    return [{"value": item.key, "label": sanitize(item.title)} for item in shelf.items()]


def _mark_of_list(listed: list[dict[str, str]]) -> str:
    """A text that changes with the open items; the browser sends it back every second instead of the list."""
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:16]


def _route(app: Dash, shelf: Shelf, workshop: Workshop, base_path: str) -> None:
    @app.callback(
        Output("page", "children"),
        Output("menu", "children"),
        Output("live", "children"),
        Output("which", "value"),
        Output("exports", "item"),
        Output("drawn", "data"),
        Output("which", "data"),
        Output("listed", "data"),
        Input("at", "pathname"),
        Input("at", "search"),
        Input("tick", "n_intervals"),
        State("drawn", "data"),
        State("listed", "data"),
        running=[(Output("tick", "disabled"), True, False)],  # a later tick would make this answer obsolete
    )
    def draw(pathname: str | None, search: str | None, _: int, drawn: str | None, listed: str | None) -> Any:
        request = parse_address(pathname, search, shelf, workshop, base_path)
        state = None if request.item is None else workshop.state(request.item)
        children, mark = _page(request, state)
        mark = f"{pathname}{search}|{mark}"
        items = _listed(shelf)
        now = _mark_of_list(items)
        choice = (no_update, no_update) if now == listed else (items, now)
        if mark == drawn:
            return (*(no_update,) * 6, *choice)
        live = [] if state is None else _live(state, request)
        item = None if request.item is None else {"key": request.item.key, "title": sanitize(request.item.title)}
        return children(), _menu(request), live, request.whose, item, mark, *choice

    @app.callback(
        Output("at", "href"),
        Input("which", "value"),
        State("at", "pathname"),
        State("at", "search"),
        prevent_initial_call=True,
    )
    def pick(key: str | None, pathname: str | None, search: str | None) -> Any:
        request = parse_address(pathname, search, shelf, workshop, base_path)
        if key is None or request.whose == key:
            return no_update
        return address(base_path, request.page if page_module(request.page).VIEW else START, key)

    app.clientside_callback(
        ClientsideFunction(namespace="perfscope_page", function_name="scheme"),
        Output("theme", "forceColorScheme"),
        Output("dark", "checked"),
        Input("dark", "checked"),
    )

    app.clientside_callback(  # on a phone the menu is wider than the screen: scroll the open page's entry into view
        "function(){setTimeout(function(){"
        "var menu=document.getElementById('menu'),here=menu&&menu.querySelector('.ps-here');"
        "if(here){menu.scrollLeft=here.offsetLeft-menu.offsetLeft-(menu.clientWidth-here.offsetWidth)/2}},0)}",
        Input("menu", "children"),
    )

    @app.callback(
        Output("runs-deleted", "children"),
        Input("runs-delete", "submit_n_clicks"),
        State("runs-grid", "selectedRows"),
        prevent_initial_call=True,
    )
    def delete(clicks: int | None, rows: list[dict[str, Any]] | None) -> Any:
        """Delete the ticked runs, as ``perfscope runs --delete`` does."""
        items = [shelf.find(str(row.get("key"))) for row in rows or ()] if clicks else []
        lines = []
        for item in items:
            if item is not None and removable(shelf, item):
                try:
                    lines.append(f"removed {run_folders.delete(item.path.parent, item.path.name).name}")
                except PerfscopeError as error:
                    lines.append(str(error))
        return [html.P(sanitize(line), className="ps-note") for line in lines]

    @app.callback(
        Output("drawn", "data", allow_duplicate=True),
        Input({"act": dash.ALL, "key": dash.ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def act(clicks: list[int | None]) -> Any:
        """Handle the buttons that cancel or repeat the reading of an item."""
        pressed = dash.ctx.triggered_id
        item = None if not any(clicks) or not isinstance(pressed, dict) else find_work(shelf, str(pressed["key"]))
        if item is None or not isinstance(pressed, dict):
            return no_update
        if pressed["act"] == "cancel":
            workshop.cancel(item)
        else:
            workshop.again(item)
        return None


def parse_address(
    pathname: str | None, search: str | None, shelf: Shelf, workshop: Workshop, base_path: str
) -> PageRequest:
    """Parse an address; unknown pages and keys become the first ones."""
    page = (pathname or "").removeprefix(base_path).strip("/") or START
    parameters = dict(parse_qsl((search or "").removeprefix("?"), keep_blank_values=True, max_num_fields=40))
    known = page in pages()
    item = came_from = None
    if known:
        key = parameters.pop("run", None)
        if page_module(page).VIEW is not None:
            item = shelf.find(key) if key is not None else next(iter(shelf.items()), None)
        else:
            came_from = shelf.find(key or parameters.get("head", ""))
    return PageRequest(
        page=page if known else "",
        parameters=parameters,
        base_path=base_path,
        shelf=shelf,
        workshop=workshop,
        item=item,
        came_from=came_from,
    )


def _page(request: PageRequest, state: Readiness | None) -> tuple[Any, str]:
    """Return the function that makes the page and the state it depends on; the page is redrawn only if that changes."""
    if not request.page:
        return lambda: message("There is no such page."), "none"
    module = page_module(request.page)
    if module.VIEW is None:
        mark = getattr(module, "mark", None)
        return lambda: module.layout(request, None), "static" if mark is None else mark(request)
    if request.item is None or state is None:
        return lambda: message(
            "No such run or trace is open here, or not any more.", dcc.Link("what is", href=request.link("runs"))
        ), "no item"
    view = None if state.folder is None else read_view(state.folder, module.VIEW)
    if view is None:
        item = request.item
        grown = item.growth() if item.running() else ""
        return (
            lambda: [*running(item), progress(f"Reading {sanitize(item.title)}", item.key, state)],
            f"{mark_of(state)} {grown}",
        )
    if "problem" in view:
        return lambda: message(str(view["problem"])), "problem"
    complete = replace(request, folder=state.folder)
    named = state.folder.name if state.folder is not None else ""
    text = _planned(state)
    banner = [html.P(text, className="ps-card ps-modelled", role="note")] if text else []

    def drawn() -> Any:
        page = module.layout(complete, view["view"])
        return [*banner, *(page if isinstance(page, list) else [page])]

    # The overview shows the progress of a running program from its manifests, which are written more often than it is
    # read.
    growth = request.item.fingerprint() if request.page == START and request.item.running() else ""
    return drawn, f"{named} {state.stage if state.stale else ''} {text} {growth}"


def _planned(state: Readiness) -> str:
    """A sentence that nothing of this ran; ``''`` if it ran, or while this is unknown."""
    held = None if state.folder is None else read_view(state.folder, START)
    return "" if held is None else str(held.get("view", {}).get("planned", ""))


def _live(state: Readiness, request: PageRequest) -> Any:
    if state.stage == "gone":
        return html.Span("its files are gone; this is their last content", className="ps-warn")
    if state.stage == "failed" and state.folder is not None:
        return html.Span(f"its files have changed and cannot be read: {sanitize(state.words)}", className="ps-warn")
    if state.stale and state.stage in ("working", "waiting"):
        return "its files have changed: reading them again"
    if request.item is not None and request.item.running():
        return "in progress: this is the state so far"
    return ""


def _menu(request: PageRequest) -> list[Any]:
    empty = empty_pages(request)
    return [_entry(request, name, page_key(name), empty.get(name, "")) for name in pages()]


def _entry(request: PageRequest, name: str, key: str, empty: str) -> Any:
    """A page in the menu; ``empty``: the reason why the page has no data."""
    link = dcc.Link(
        page_module(name).TITLE,
        href=request.link(name),
        className="ps-nav" + (" ps-here" if name == request.page else "") + (" ps-nothing" if empty else ""),
        title=f"{empty} (g {key})" if empty else f"g {key}",
    )
    return html.Div(link, **{"data-key": key}, **({"aria-current": "page"} if name == request.page else {}))
