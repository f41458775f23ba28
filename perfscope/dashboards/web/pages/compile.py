"""Compile: compile time by frame and stage, graph breaks, recompilations, graphs, kernels, programs; the cards."""

from __future__ import annotations

from typing import Any

from dash import html

from perfscope.dashboards.web.pages import Asked
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import bars, chosen, tabs
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.units import format_ns

TITLE = "Compile"
VIEW = "compile"
GRIDS = ("compile",)

NOTHING = (
    "Nothing was compiled, or the log was not kept: perfscope run keeps it (perfscope run -- python train.py); of "
    "torch.compile alone TORCH_TRACE=DIR python train.py does, and of XLA's programs "
    'XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_proto".'
)
LINKS = {
    "compile_frames": {"function": ("flame", "find", "{}")},
    "compile_recompilations": {"function": ("flame", "find", "{}")},
    "compile_kernels": {"name": ("timeline", "find", "^{}$")},
}
"""Links of cells: a function to the flame graph, a kernel to the timeline."""
COLORS = ("#3f7fd6", "#e0892b", "#2a9d8f", "#9465c2", "#d4526e", "#c6b132", "#a7afb9")


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page: bars, one table at a time, and the cards of the report."""
    names = {name: f"{table['title']} ({_many(table)})" for name, table in view["tables"].items()}
    cards = [Fragment(html=view["html"])] if view["html"] else []
    heading = html.H1(TITLE, className="ps-title")
    if not names:
        return [heading, *(cards or [html.P(NOTHING, className="ps-card")])]
    kind = chosen(asked, "kind", names)
    return [
        heading,
        *_bars(view),
        tabs(asked, "kind", names, kind, label="tables"),
        html.P(view["tables"][kind]["doc"], className="ps-soft ps-note"),
        grid("compile", view["tables"][kind], asked, table=kind, links=LINKS.get(kind)),
        *cards,
    ]


def _many(table: dict[str, Any]) -> str:
    return f"{len(table['rows']) + table['left']:,}"


def _bars(view: dict[str, Any]) -> list[Any]:
    rows = view["bars"]
    if not rows:
        return []
    stages = dict(zip(rows[0]["stages"], COLORS, strict=False))
    drawn = [
        {
            "label": " ".join(filter(None, (row["function"], row["line"]))),
            "said": ", ".join([format_ns(row["ns"]), *_largest(row["stages"])]),
            "parts": row["stages"],
        }
        for row in rows
    ]
    used = {stage: color for stage, color in stages.items() if any(row["stages"][stage] for row in rows)}
    first = rows[0]
    whose = "" if first["rank"] is None else f" Shown is rank {first['rank']}, which compiled longest."
    left = f" {first['of'] - len(rows):,} more frames are in the table." if first["of"] > len(rows) else ""
    words = f"Measured self time: each moment counts once, for the innermost stage.{whose}{left}"
    return [bars(drawn, used, title="Compile time by frame and stage", words=words)]


def _largest(stages: dict[str, int]) -> list[str]:
    """The largest stage in words."""
    name = max(stages, key=lambda stage: stages[stage])
    return [f"{name} {format_ns(stages[name])}"]
