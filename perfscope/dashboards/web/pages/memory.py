"""Memory: each memory over time with the blocks alive at any moment, and who holds its peak."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import Asked
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import chosen, origins, tabs
from perfscope.dashboards.web.ui import Fragment, MemoryCurve
from perfscope.dashboards.web.views.memory import read_curve
from perfscope.model.units import format_bytes

TITLE = "Memory"
VIEW = "memory"
GRIDS = ("memory",)

NOTHING = (
    "No memory was recorded. perfscope run records it; torch.profiler does with profile_memory=True. Of a plan or an "
    "op graph, perfscope advise memory works out the peak."
)
ONE_MOMENT = "This is one moment (a snapshot without a history): there is no curve, the table says who holds what."
KINDS = {
    "blocks": "blocks",
    "modules": "by module",
    "lines": "by line",
    "ops": "by op",
    "categories": "by what it is for",
}


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page; the address says which memory, which moment and which table."""
    memories = view["memories"]
    if not memories:
        drawn = "".join((view["html"], view["planned"]))
        cards = [Fragment(html=drawn)] if drawn else [html.P(NOTHING, className="ps-card")]
        return [html.H1(TITLE, className="ps-title"), *cards]
    names = {str(index): _name(item) for index, item in enumerate(memories)}
    text = chosen(asked, "memory", names)
    memory = memories[int(text)]
    picks = [tabs(asked, "memory", names, text, label="memories", without=("at",))] if len(memories) > 1 else []
    left = (
        [html.P(f"{view['left']:,} more memories are left out.", className="ps-soft ps-note")] if view["left"] else []
    )
    return [
        html.H1(TITLE, className="ps-title"),
        *picks,
        *left,
        html.P(_said(memory), className="ps-soft ps-note"),
        _curve(asked, memory),
        *_holders(asked, view, text),
        Fragment(html=view["html"]),
    ]


def _name(memory: dict[str, Any]) -> str:
    words = " ".join(filter(None, (memory["whose"], memory["label"])))
    return f"{words}{' (driver)' if memory['of_driver'] else ''}, {format_bytes(memory['peak_bytes'])}"


def _said(memory: dict[str, Any]) -> str:
    capacity = "" if memory["capacity"] is None else f" The device has {format_bytes(memory['capacity'])}."
    axis = {
        "ns": "",
        "event": " The axis counts allocator events: no times were recorded.",
        "instruction": " The axis is the program's schedule, instruction by instruction.",
    }[memory["axis"]]
    if memory["detail"]:
        axis += " That pass is behind the steps that the timeline shows, so no moment of it leads there."
    notes = "".join(f" Note: {note}." for note in memory["notes"])
    return f"From {memory['known_from']} ({memory['basis']}).{capacity}{axis}{notes}"


def _curve(asked: Asked, memory: dict[str, Any]) -> Any:
    if not memory["moving"]:
        return html.P(ONE_MOMENT, className="ps-card")
    assert asked.folder is not None
    timed = memory["axis"] == "ns" and memory["space"] != "program" and not memory["detail"]
    return MemoryCurve(
        id="memory-curve",
        memory=read_curve(asked.folder / VIEW, memory)["curve"],
        timeline=asked.link("timeline"),
        origin=origins(asked).get(str(memory["trace"])) if timed else None,
        at=asked.parameters.get("at", ""),
    )


def _holders(asked: Asked, view: dict[str, Any], text: str) -> list[Any]:
    kinds = {kind: words for kind, words in KINDS.items() if f"{text}-{kind}" in view["tables"]}
    if not kinds:
        return []
    kind = chosen(asked, "by", kinds)
    name = f"{text}-{kind}"
    return [
        html.H2("Who holds the peak", className="ps-title"),
        tabs(asked, "by", kinds, kind, label="tables"),
        grid("memory", view["tables"][name], asked, table=name),
    ]
