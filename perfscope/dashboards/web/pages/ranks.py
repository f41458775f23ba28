"""Ranks: who waited for whom, how busy devices were, duration of collectives; each cell leads to the timeline."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from perfscope.dashboards.figures import heat_map
from perfscope.dashboards.report.sections.compile import counted
from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import bars, chart, chosen, origins, planned, tabs
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.units import format_bytes, format_ns, format_share

TITLE = "Ranks"
VIEW = "ranks"
GRIDS = ("ranks",)
CHART = "heat"

ONE_PROCESS = (
    "One process: there are no ranks to compare. Record all ranks (perfscope run -- torchrun --nproc-per-node 8 "
    "train.py) or open the folder that holds the traces of all ranks (perfscope serve traces/)."
)
ONE_JAX_PROCESS = (
    "One JAX process without collectives between its devices: there are no ranks to compare. With several hosts "
    "(jax.distributed.initialize) record each process, under one name: srun perfscope run train.py, or "
    "perfscope run --run-id NAME train.py on each; or open the folder that holds the .xplane.pb of all (perfscope "
    "serve traces/)."
)
NEVER_RAN = "This was never run: no rank waited for another. The cost of its collectives is modelled."
NO_LINKS = (
    "No link counters were recorded during communication. Nsight Systems records them: nsys profile "
    "--gpu-metrics-devices=all (NVLink) and --nic-metrics=true (network cards)."
)
IN_REPORT = "As in the report: process groups, how collectives were matched, limits"
CORE, WAIT = "var(--ps-core)", "var(--ps-wait)"


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: a heat map, bars and one table at a time, and the cards of the report below."""
    jobs = {str(index): item["label"] for index, item in enumerate(view["jobs"])}
    maps = {}
    if any(item["heat"] for item in view["jobs"]):
        maps["wait"] = "waiting by collective"
    if view["busy"] is not None:
        maps["busy"] = "device busy by step"
    if not maps:
        cards = [Fragment(html=view["html"])] if view["html"] else []
        return [html.H1(TITLE, className="ps-title"), _alone(request, view), *cards]
    kind = chosen(request, "map", maps)
    job = view["jobs"][int(chosen(request, "job", jobs))] if jobs else None
    alone = [] if jobs else [_alone(request, view)]
    several = [tabs(request, "job", jobs, chosen(request, "job", jobs), label="jobs")] if len(jobs) > 1 else []
    heat = view["busy"] if kind == "busy" or job is None else job["heat"]
    parts = [
        html.H1(TITLE, className="ps-title"),
        *alone,
        *several,
        *([html.P(job["lead"], className="ps-lead")] if job is not None and job["lead"] else []),
        tabs(request, "map", maps, kind, label="heat map", without=("at",)),
        chart(
            CHART, heat_map(heat, "busy" if kind == "busy" else "wait"), f"heat map: {maps[kind]}; the table has all"
        ),
        html.P(_cell(request, kind, heat), id="heat-cell", role="status"),
        html.P(_caption(kind, heat), className="ps-soft ps-note"),
    ]
    if job is not None:
        parts += [_bars(job), *_tables(request, view, job)]
    if view["html"]:
        parts.append(html.Details([html.Summary(IN_REPORT), Fragment(html=view["html"])], className="ps-fold"))
    return parts


def _cell(request: PageRequest, kind: str, heat: dict[str, Any]) -> list[Any]:
    """The cell in the address in words, with a link to the timeline."""
    row, _, column = request.parameters.get("at", "")[:20].partition(".")
    columns = heat["columns"]
    if not (row.isdecimal() and column.isdecimal() and int(row) < len(heat["rows"]) and int(column) < columns):
        return []
    member, index = heat["rows"][int(row)], int(row) * columns + int(column)
    value = heat["value"][index]
    if value is None:
        return [f"{member['label']}: nothing there"]
    if kind == "busy":
        start, lasts = int(heat["starts"][index]), heat["spans"][index]
        text = f"{heat['labels'][int(column)]}: device busy {format_share(value, 1)} of {format_ns(lasts)}"
    else:
        number, words, core, last = heat["collectives"][heat["of"][index]]
        start, lasts = int(heat["base"]) + heat["at"][index], value + core
        text = (
            f"waited {format_ns(value)} at collective {number + 1:,}: {words}; transfer {format_ns(core)}, last: {last}"
        )
        if heat["sum"] is not None:
            text += f"; {format_ns(heat['sum'][index])} in the whole cell, of which this is the worst"
    words = f"{member['label']}, {text} "
    origin = origins(request).get(str(member["trace"]))
    if origin is None:
        return [words]
    around = max(lasts // 4, 1_000)
    begin, end = start - int(origin) - around, start - int(origin) + lasts + around
    href = request.link("timeline", t0=str(begin), t1=str(end), trace=str(member["trace"]))
    return [words, dcc.Link("in the timeline", href=href)]


def _alone(request: PageRequest, view: dict[str, Any]) -> Any:
    """Why there are no ranks, and how to record them."""
    if planned(request):
        return html.P([f"{NEVER_RAN} See: ", dcc.Link("compile", href=request.link("compile"))], className="ps-card")
    return html.P(ONE_JAX_PROCESS if view.get("jax") else ONE_PROCESS, className="ps-card")


def _caption(kind: str, heat: dict[str, Any]) -> str:
    left = f" {heat['rows_left']:,} more ranks are not drawn." if heat["rows_left"] else ""
    if kind == "busy":
        windows = "the window of a step on the host's clock" if heat["of_steps"] else "equal parts of the recording"
        return (
            f"Share of {windows} in which the device worked (measured): kernels and copies; one that only waits for "
            f"other ranks is a kernel too. A click leads to the timeline there.{left}"
        )
    binned = ""
    if heat["sum"] is not None:
        binned = f" {heat['count']:,} collectives in {heat['columns']:,} columns: each shows the worst wait in it."
    return (
        "A column is a collective, in order; its colour is the time that a rank waited for the last rank (measured: "
        f"its duration less the shortest of all ranks). A click leads to the timeline of that rank.{binned}{left}"
    )


def _bars(job: dict[str, Any]) -> Any:
    rows = [
        {
            "label": row["label"] + ("" if row["bytes"] is None else f", {format_bytes(row['bytes'])}"),
            "said": f"{counted(row['count'], 'call')}; transfer {format_ns(row['core_ns'])}, "
            f"waiting {format_ns(row['wait_ns'])}",
            "parts": {"transfer": row["core_ns"], "waiting": row["wait_ns"]},
        }
        for row in job["bars"]
    ]
    colors = {"transfer": CORE, "waiting": WAIT}
    return bars(rows, colors, title="Waiting and transfer by collective", words=f"Mean per {job['member']}.")


def _tables(request: PageRequest, view: dict[str, Any], job: dict[str, Any]) -> list[Any]:
    names = {
        f"kinds{job['behind']}": "kinds of collectives",
        f"collectives{job['behind']}": "single collectives",
        f"members{job['behind']}": f"{job['member']}s",
        "links": "links",
    }
    wanted = request.parameters.get("table", "")
    name = wanted if wanted in names else next(iter(names))
    value = view["tables"].get(name)
    shown = html.P(NO_LINKS, className="ps-card") if value is None else grid("ranks", value, request, table=name)
    return [tabs(request, "table", names, name, label="tables"), shown]
