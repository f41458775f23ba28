"""Jobs: where the time of each went, over time, and nodes that are slow again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._parts import chart, mark_of, message, progress, register_chart
from perfscope.dashboards.web.server.shelf import read_view
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.job.dashboard.figure import job_figure
from perfscope.plugins.job.dashboard.view import CAUSE_COLORS
from perfscope.plugins.job.dashboard.works import VIEW as MADE
from perfscope.plugins.job.dashboard.works import JobWork, works

TITLE = "Jobs"
VIEW = None
KEY = "j"

CHART = "job-chart"
NO_JOBS = (
    "No run here has a ledger. `perfscope run --ledger` keeps an account of every second of a program, and this page "
    "shows it over time."
)
HOW = "Height: ranks by what they do, a mean of each interval. Marks above: events; times are UTC."
NODES = (
    "A node is slow in a job if its ranks take 5 % or more longer per step than the median of the other nodes, without "
    "waits for other ranks, in most of the job's time."
)
PAGE = "job"


def layout(request: PageRequest, view: None) -> Any:
    """The page: ``job`` in the address selects a job; without it, or with one job, the table."""
    head: list[Any] = [html.H1(TITLE, className="ps-title")]
    held = works(request.shelf)
    if not held:
        return [*head, message(NO_JOBS.replace("`", ""))]
    work = _chosen(request, held)
    state = request.workshop.state(work)
    made = None if state.folder is None else read_view(state.folder, MADE)
    if made is None:
        return [*head, progress(f"Reading {sanitize(work.path.name)}", work.key, state)]
    shown = made["view"]
    return _job(request, held, work, shown) if shown["kind"] == "job" else [*head, *_table(request, shown)]


def mark(request: PageRequest) -> str:
    """Changes with the ledgers and the progress of their reading."""
    held = works(request.shelf)
    if not held:
        return "no jobs"
    state = request.workshop.state(_chosen(request, held))
    made = state.folder is not None and read_view(state.folder, MADE) is not None
    return state.folder.name if made and state.folder is not None else mark_of(state)


def register(app: Any) -> None:
    """Clicks in the figure."""
    register_chart(app, CHART)


def _chosen(request: PageRequest, held: tuple[JobWork, ...]) -> JobWork:
    """The job in the address; else the only one, or the table."""
    wanted = request.parameters.get("job")
    jobs = [work for work in held if work.runs]
    first = jobs[0] if len(jobs) == 1 else held[0]
    return next((work for work in held if work.key == wanted), first)


def _link(request: PageRequest, words: Any, key: str) -> Any:
    return dcc.Link(words, href=address(request.base_path, PAGE, request.whose, job=key))


def _job(request: PageRequest, held: tuple[JobWork, ...], work: JobWork, view: Mapping[str, Any]) -> list[Any]:
    figure = job_figure(view)
    table = next(other for other in held if other.folder == work.folder)
    several = sum(bool(other.runs) for other in held) > 1
    back = [html.P(_link(request, "all jobs", table.key), className="ps-note")] if several else []
    return [
        html.H1(sanitize(work.path.name), className="ps-title"),
        *back,
        html.Div(
            [html.P(html.B(view["headline"])), *(html.P(fact, className="ps-soft") for fact in view["facts"])],
            className="ps-card",
        ),
        html.P(HOW, className="ps-soft ps-note"),
        chart(CHART, figure, "Ranks by cause over time; the tables below have the sums and the events", legend=True),
        _causes(view["causes"]),
        *_recordings(request, work),
        *(Fragment(html=text) for text in view["html"]),
        *(html.P(line, className="ps-soft ps-note") for line in view["left"]),
    ]


def _causes(rows: list[dict[str, Any]]) -> Any:
    """Causes with the colours of the picture."""
    heads = [
        html.Th("cause"),
        html.Th("time", className="ps-n"),
        html.Th("share", className="ps-n"),
        html.Th("most of it at"),
    ]
    body = []
    for row in rows:
        swatch = html.Span(className="ps-swatch", style={"background": CAUSE_COLORS[row["cause"]]})
        meaning = [html.Div(row["meaning"], className="ps-soft")] if row["meaning"] else []
        at = [html.Code(row["at"]), f" {row['at_share']}"] if row["at"] else ""
        body.append(
            html.Tr(
                [
                    html.Td([html.Span([swatch, row["cause"]]), *meaning]),
                    html.Td(row["time"], className="ps-n", **{"data-name": "time"}),
                    html.Td(html.B(row["said"]), className="ps-n", **{"data-name": "share"}),
                    html.Td(at, **{"data-name": "most of it at"}),
                ]
            )
        )
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="ps-table ps-history")
    return html.Section([html.H2("Where the time went"), table], className="ps-card")


def _recordings(request: PageRequest, work: JobWork) -> list[Any]:
    """Links to the recorded steps of the job's runs."""
    paths = {run.resolve() for run in work.runs}
    items = [item for item in request.shelf.items() if item.path.resolve() in paths]
    if not items:
        return []
    links = [
        html.Li(
            [
                sanitize(item.title), ": ",
                dcc.Link("findings", href=address(request.base_path, "findings", item.key)), ", ",
                dcc.Link("timeline", href=address(request.base_path, "timeline", item.key)),
            ]
        )
        for item in items
    ]  # fmt: skip
    return [html.Section([html.H2("Recorded steps"), html.Ul(links)], className="ps-card")]


def _table(request: PageRequest, view: Mapping[str, Any]) -> list[Any]:
    if not view["jobs"]:
        return [message("None of the ledgers here can be read; perfscope job RUN shows the reason.")]
    nodes = [row for row in view["nodes"] if row["compared"] or row["killed"] or row["stalled"]]
    return [_jobs(request, view["jobs"]), *([_fleet(nodes)] if nodes else [])]


def _jobs(request: PageRequest, rows: list[dict[str, Any]]) -> Any:
    names = ("began", "ran for", "ranks", "kept", "by cause", "most of the rest", "steps", "a step", "kills", "changes")
    numbers = {"ran for", "ranks", "kept", "steps", "a step", "kills", "changes"}
    heads = [html.Th("job"), *(html.Th(name, className="ps-n" if name in numbers else "") for name in names)]
    body = []
    for row in rows:
        cells = {
            "began": row["began"], "ran for": row["wall"], "ranks": f"{row['ranks']:,}", "kept": html.B(row["kept"]),
            "by cause": _bar(row["parts"]), "most of the rest": [row["rest"], *_at(row["at"])], "steps": row["steps"],
            "a step": row["step"], "kills": row["restarts"] or "", "changes": row["changes"] or "",
        }  # fmt: skip
        body.append(
            html.Tr(
                [
                    html.Td(_link(request, row["name"], row["key"])),
                    *(
                        html.Td(cell, className="ps-n" if name in numbers else "", **{"data-name": name})
                        for name, cell in cells.items()
                    ),
                ]
            )
        )
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="ps-table ps-history")
    note = html.P("kept: share of the time of all ranks that trained what the job kept", className="ps-soft ps-note")
    return html.Section([note, table], className="ps-card")


def _at(line: str) -> list[Any]:
    return [" ", html.Code(line)] if line else []


def _bar(parts: Mapping[str, float]) -> Any:
    shown = [
        html.Div(
            className="ps-bar-part",
            title=f"{cause} {share:.1%}",
            style={"width": f"{100 * share:.2f}%", "background": CAUSE_COLORS[cause]},
        )
        for cause, share in parts.items()
    ]
    return html.Div(shown, className="ps-bar-whole", style={"minWidth": "120px"}, **{"aria-hidden": "true"})


def _fleet(rows: list[dict[str, Any]]) -> Any:
    names = ("slow in jobs", "of the time", "largest excess", "killed", "stalled", "jobs")
    heads = [html.Th("node"), *(html.Th(name, className="ps-n") for name in names)]
    body = []
    for row in rows:
        slow = f"{row['slow_jobs']} of {row['compared']}" if row["compared"] else ""
        cells = (slow, f"{row['slow_share']:.0%}" if row["compared"] else "", row["worst"])
        named = [html.B(row["host"]) if row["slow_jobs"] else row["host"]]
        where = [html.Div(", ".join(row["slow_in"]), className="ps-soft")] if row["slow_in"] else []
        counts = (row["killed"] or "", row["stalled"] or "", row["jobs"])
        body.append(
            html.Tr(
                [
                    html.Td([*named, *where]),
                    *(
                        html.Td(cell, className="ps-n", **{"data-name": name})
                        for name, cell in zip(names, (*cells, *counts), strict=True)
                    ),
                ]
            )
        )
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="ps-table ps-history")
    return html.Section([html.H2("Nodes"), html.P(NODES, className="ps-soft ps-note"), table], className="ps-card")
