"""Memory: each memory over time with the blocks alive at any moment, and the owners at its peak."""

from __future__ import annotations

from html import escape
from typing import Any

from dash import dcc, html

from perfscope.dashboards.figures import memory_curve
from perfscope.dashboards.report.blocks import Column, table
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import chart, chosen, origins, tabs
from perfscope.dashboards.web.ui import Fragment
from perfscope.dashboards.web.views.memory import BLOCK_COLUMNS, read_curve
from perfscope.model.units import format_bytes, format_ns, format_share

TITLE = "Memory"
VIEW = "memory"
GRIDS = ("memory",)
CHART = "memory-curve"

NOTHING = (
    "No memory was recorded. perfscope run records it; torch.profiler does with profile_memory=True. For a plan or an "
    "op graph, perfscope advise memory computes the peak."
)
ONE_MOMENT = "This is a snapshot of one moment, without a history: there is no curve, only the holders below."
MOST_DIGITS = 20
"""Most digits of a position in an address."""
KINDS = {
    "blocks": "blocks",
    "modules": "by module",
    "lines": "by line",
    "ops": "by op",
    "categories": "by category",
}


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page; the address selects the memory, the moment and the table."""
    memories = view["memories"]
    if not memories:
        drawn = "".join((view["html"], view["planned"]))
        cards = [Fragment(html=drawn)] if drawn else [html.P(NOTHING, className="ps-card")]
        return [html.H1(TITLE, className="ps-title"), *cards]
    names = {str(index): _name(item) for index, item in enumerate(memories)}
    text = chosen(request, "memory", names)
    memory = memories[int(text)]
    picks = [tabs(request, "memory", names, text, label="memories", without=("at",))] if len(memories) > 1 else []
    left = (
        [html.P(f"{view['left']:,} more memories are not shown.", className="ps-soft ps-note")] if view["left"] else []
    )
    return [
        html.H1(TITLE, className="ps-title"),
        *picks,
        *left,
        html.P(_caption(memory), className="ps-soft ps-note"),
        *_curve(request, memory),
        *_holders(request, view, text),
        Fragment(html=view["html"]),
    ]


def _name(memory: dict[str, Any]) -> str:
    words = " ".join(filter(None, (memory["whose"], memory["label"])))
    return f"{words}{' (driver)' if memory['of_driver'] else ''}, {format_bytes(memory['peak_bytes'])}"


def _caption(memory: dict[str, Any]) -> str:
    capacity = "" if memory["capacity"] is None else f" The device has {format_bytes(memory['capacity'])}."
    axis = {
        "ns": "",
        "event": " The axis counts allocator events: no times were recorded.",
        "instruction": " The axis is the program's schedule, instruction by instruction.",
    }[memory["axis"]]
    if memory["detail"]:
        axis += " That pass ran after the steps shown in the timeline, which therefore lacks it."
    notes = "".join(f" Note: {note}." for note in memory["notes"])
    return f"From {memory['known_from']} ({memory['basis']}).{capacity}{axis}{notes}"


def _curve(request: PageRequest, memory: dict[str, Any]) -> list[Any]:
    """The picture, and the blocks alive at the moment in the address, by default at the peak."""
    if not memory["moving"]:
        return [html.P(ONE_MOMENT, className="ps-card")]
    assert request.folder is not None
    curve = read_curve(request.folder / VIEW, memory)["curve"]
    positions, moments, peak = curve["positions"], curve["moments"], curve["peak"]["place"]
    text = request.parameters.get("at", "")
    wanted = int(text) if text.isdecimal() and len(text) < MOST_DIGITS else positions[peak]
    index = min(range(len(moments)), key=lambda number: abs(positions[moments[number]] - wanted))
    near = {"earlier": index - 1, "the peak": moments.index(peak), "later": index + 1}
    links = [
        dcc.Link(word, href=request.link("memory", **{**request.parameters, "at": str(positions[moments[number]])}))
        for word, number in near.items()
        if 0 <= number < len(moments)
    ]
    position = positions[moments[index]]
    timed = memory["axis"] == "ns" and memory["space"] != "program" and not memory["detail"]
    origin = origins(request).get(str(memory["trace"])) if timed else None
    if origin is not None:
        links.append(dcc.Link("in the timeline", href=_in_timeline(request, curve, position, int(origin))))
    label = "memory over time by category; the blocks alive at a moment are listed below"
    return [
        chart(CHART, memory_curve(curve, position).update_layout(margin={"t": 40}), label, legend=True),
        html.Section(
            [
                html.P([part for link in links for part in (link, " · ")][:-1], className="ps-note"),
                Fragment(html=_alive_html(curve, index)),
            ],
            className="ps-card",
            id="memory-alive",
        ),
    ]


def _alive_html(curve: dict[str, Any], index: int) -> str:
    """Use at a moment by category, and its largest blocks."""
    place, (numbers, more, rest) = curve["moments"][index], curve["alive"][index]

    def words(position: int) -> str:
        return format_ns(position) if curve["axis"] == "ns" else f"{curve['axis']} {position + 1:,}"

    def lives(block: dict[str, Any]) -> str:
        made, freed = block["start"], block["end"]
        return f"{'before' if made is None else words(made)} to {'the end' if freed is None else words(freed)}"

    shares = sorted(((area["bytes"][place], area["name"]) for area in curve["areas"]), reverse=True)
    total = sum(size for size, _ in shares)
    parts = ", ".join(f"{name} {format_bytes(size)} ({format_share(size, total)})" for size, name in shares if size)
    title = f"Alive at {words(curve['positions'][place])}{', the peak' if place == curve['peak']['place'] else ''}"
    unseen = curve["unseen"]
    owner = f" {format_bytes(unseen)} was allocated before the recording: owner unknown." if unseen else ""
    left = f" {more:,} smaller blocks are left out, {format_bytes(rest)}." if more else ""
    alive: Column[dict[str, Any]] = Column("alive", lives)
    blocks = table((*BLOCK_COLUMNS, alive), [curve["blocks"][number] for number in numbers], few=10, rest="blocks")
    text = f"{format_bytes(total)}: {parts}.{owner}{left}"
    return f"<h2>{title}</h2><p>{escape(text)}</p>{''.join(blocks_html((blocks,)))}"


def _in_timeline(request: PageRequest, curve: dict[str, Any], position: int, origin: int) -> str:
    """The address of the timeline around a position, as wide as its step if it is in one."""
    step = next((band for band in curve["steps"] if band["start"] <= position < band["end"]), None)
    around = curve["span"] // 20 if step is None else (step["end"] - step["start"]) // 2
    center = int(curve["first"]) + position - origin
    return request.link("timeline", t0=str(center - around), t1=str(center + around))


def _holders(request: PageRequest, view: dict[str, Any], text: str) -> list[Any]:
    kinds = {kind: words for kind, words in KINDS.items() if f"{text}-{kind}" in view["tables"]}
    if not kinds:
        return []
    kind = chosen(request, "by", kinds)
    name = f"{text}-{kind}"
    return [
        html.H2("Who holds the peak", className="ps-title"),
        tabs(request, "by", kinds, kind, label="tables"),
        grid("memory", view["tables"][name], request, table=name),
    ]
