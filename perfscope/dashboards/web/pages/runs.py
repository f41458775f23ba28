"""Runs: everything that is open here, newest first; two ticked runs are compared."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Any

from dash import Input, Output, dcc, html

from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.server.shelf import Item, Shelf, read_view
from perfscope.dashboards.web.server.works import stored
from perfscope.dashboards.web.server.workshop import State as Readiness
from perfscope.dashboards.web.views._tables import table
from perfscope.dashboards.web.views.listed import LISTED_VIEW
from perfscope.model.documents.run_list import commit_words, device_words, listed_run, row_of, state_words, worst_words
from perfscope.model.untrusted_text import sanitize

TITLE = "Runs"
VIEW = None
GRIDS = ("runs",)

MOST_ROWS = 500
"""Most runs listed, newest first, because each manifest must be read. The number left out is shown."""
MOST_KEPT = 20
MOST_READ_BYTES = 64 << 20
"""Largest trace that is read because it is listed: some seconds in a child process."""
COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    Column("name", itemgetter("title"), key="title", width=300),
    Column("step", itemgetter("step_ns"), "ns", key="step_ns", width=90),
    Column("state", itemgetter("state"), key="state", width=110),
    Column("findings", itemgetter("findings"), "count", key="findings", width=84),
    Column("worst finding", itemgetter("worst"), key="worst", width=190),
    Column("saves up to", itemgetter("worst_ns"), "ns", key="worst_ns", width=90),
    Column("tags", itemgetter("tags"), key="tags", width=90),
    Column("device", itemgetter("device"), key="device", width=130),
    Column("commit", itemgetter("commit"), "code", key="commit", width=100),
    Column("command", itemgetter("command"), "code", key="command"),
    Column("created (UTC)", itemgetter("created"), key="created", width=190),
    Column("steps", itemgetter("steps"), "count", key="steps", width=80),
    Column("ranks", itemgetter("ranks"), "count", key="ranks", width=80),
    Column("here", itemgetter("read"), key="read", width=140),
    Column("path", itemgetter("path"), "code", key="path", width=300),
    Column("", itemgetter("key"), key="key"),
    Column("", itemgetter("removable"), key="removable"),
    Column("", itemgetter("href"), key="href"),
)

_WORDS = {
    "waiting": "not read yet",
    "working": "being read",
    "ready": "ready",
    "failed": "cannot be read",
    "cancelled": "reading cancelled",
    "gone": "gone",
}


def layout(request: PageRequest, view: None) -> Any:
    """The page: open items, their tags and comparisons made before."""
    items = request.shelf.items()
    title = html.H1(TITLE, className="ps-title")
    if not items:
        nothing = "Nothing is open: perfscope run train.py records a run; perfscope serve FILE opens a trace."
        return [title, html.Div(html.P(nothing), className="ps-card"), *_kept(request)]
    held = table(COLUMNS, [_row(request, item) for item in items[:MOST_ROWS]])
    held["left"] = max(0, len(items) - MOST_ROWS)
    return [
        title,
        html.Div(id="runs-deleted", role="status", **{"aria-live": "polite"}),
        html.Div(_invited(0), id="runs-chosen", role="status", className="ps-note", **{"aria-live": "polite"}),
        grid("runs", held, request, table="runs", picks=True),
        *_kept(request),
    ]


def mark(request: PageRequest) -> str:
    """Changes with the open items and the manifests of running programs."""
    items = " ".join(f"{item.key}{_changing(request, item)}" for item in request.shelf.items()[:MOST_ROWS])
    return f"{items}|{' '.join(item.key for item in stored(request.shelf)[:MOST_KEPT])}"


def _changing(request: PageRequest, item: Item) -> str:
    """The part of a row that changes while the page is open: the manifest of a running program, a trace's reading."""
    if item.kind == "run":
        return item.growth() if item.running() else ""
    return request.workshop.state(item, start=_is_small(item)).stage


def register(app: Any) -> None:
    """Connect the link that compares the ticked runs."""
    base_path = app.config.requests_pathname_prefix

    @app.callback(Output("runs-chosen", "children"), Input("runs-grid", "selectedRows"), prevent_initial_call=True)
    def chosen(rows: list[dict[str, Any]] | None) -> Any:
        """The link for the ticked runs; the older run is the base."""
        if not rows:
            return _invited(0)
        runs = [str(row["title"]) for row in rows if row["removable"]]
        delete = dcc.ConfirmDialogProvider(
            html.Button(f"delete {len(runs)} from disk", className="ps-button"),
            id="runs-delete",
            message=f"Delete for good, from disk: {', '.join(runs)}?",
        )
        after = [" ", delete] if runs else []
        if len(rows) != 2:
            return [_invited(len(rows)), *after]
        base, head = sorted(rows, key=lambda row: str(row["created"]))
        href = address(base_path, "compare", None, base=str(base["key"]), head=str(head["key"]))
        return [dcc.Link(f"compare {head['title']} with {base['title']}", href=href), *after]


def _invited(count: int) -> str:
    if count == 1:
        return "Tick one more to compare the two."
    return (
        f"{count} are ticked; two can be compared."
        if count
        else "Tick two to compare them, or any number to delete them."
    )


def _row(request: PageRequest, item: Item) -> dict[str, Any]:
    running = item.running()
    read = request.workshop.state(item, start=_is_small(item))
    if item.kind == "run":
        held = _manifest(item, running, item.growth())
        state = state_words(held)
    else:
        held = _of_trace(read)
        state = f"trace {item.kind}" if held else _WORDS[read.stage]
    if running and not state.startswith("running"):
        state = f"running, {state}"
    worst = held.get("worst_finding") or {}
    return {
        "title": item.title,
        "state": state,
        "findings": held.get("findings"),
        "worst": worst_words(held),
        "worst_ns": worst.get("cost_ns"),
        "tags": ", ".join(held.get("tags", ())),
        "device": device_words(held),
        "commit": commit_words(held),
        "step_ns": held.get("step_ns"),
        "steps": held.get("steps"),
        "ranks": held.get("ranks"),
        "created": str(held.get("created_utc", ""))[:19].replace("T", " "),
        "command": " ".join(held.get("command", ())) or held.get("problem") or "",
        "read": _WORDS[read.stage],
        "path": str(item.path),
        "key": item.key,
        "removable": removable(request.shelf, item) and not running,
        "href": address(request.base_path, "overview", item.key),
    }


def _is_small(item: Item) -> bool:
    """Whether a trace is read for its row alone; larger ones are read when they are opened."""
    try:
        return item.kind == "file" and item.path.stat().st_size <= MOST_READ_BYTES
    except OSError:
        return False


def _of_trace(read: Readiness) -> dict[str, Any]:
    """The row of a trace as its child wrote it; empty until it is read."""
    held = None if read.folder is None else read_view(read.folder, LISTED_VIEW)
    return {} if held is None else dict(held.get("view", {}))


@lru_cache(maxsize=2048)
def _manifest(item: Item, running: bool, growth: str) -> dict[str, Any]:
    """The manifest as in `perfscope runs --json`; the other arguments are the cache key."""
    return row_of(listed_run(item.path))


def removable(shelf: Shelf, item: Item) -> bool:
    """Whether it is a run in an open folder of runs, and not an item opened by its own path."""
    return item.kind == "run" and item.path.parent in {place.resolve() for place in shelf.places}


def _kept(request: PageRequest) -> list[Any]:
    """Comparisons made before."""
    held = stored(request.shelf)
    if not held:
        return []
    links = [
        html.Li(dcc.Link(sanitize(item.title), href=address(request.base_path, "compare", None, stored=item.key)))
        for item in held[:MOST_KEPT]
    ]
    left = [html.P(f"and {len(held) - MOST_KEPT:,} older ones")] if len(held) > MOST_KEPT else []
    return [html.Section([html.H2("Comparisons"), html.Ul(links), *left], className="ps-card")]
