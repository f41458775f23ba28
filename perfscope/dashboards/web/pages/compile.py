"""Compile: why it compiled again, why graphs end, compile time by frame and stage, tables and programs."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import bars, chosen, tabs, with_code
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


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: reasons first, then times, one table at a time, and the cards of the report."""
    names = {name: f"{table['title']} ({_many(table)})" for name, table in view["tables"].items()}
    cards = [Fragment(html=view["html"])] if view["html"] else []
    if view["report"]:
        cards.append(html.Details([html.Summary("torch.compile as in the report"), Fragment(html=view["report"])]))
    heading = html.H1(TITLE, className="ps-title")
    if not names:
        return [heading, *(cards or [html.P(NOTHING, className="ps-card")])]
    kind = chosen(request, "kind", names)
    return [
        heading,
        *(html.P(f"{text}.", className="ps-note") for text in view["said"]),
        *_again(request, view),
        *_broken(request, view),
        *_bars(view),
        tabs(request, "kind", names, kind, label="tables"),
        html.P(view["tables"][kind]["doc"], className="ps-soft ps-note"),
        grid("compile", view["tables"][kind], request, table=kind, links=LINKS.get(kind)),
        *cards,
    ]


def _again(request: PageRequest, view: dict[str, Any]) -> list[Any]:
    """Why functions were compiled again, the longest first."""
    if not view["logged"]:
        return []
    whose = "" if view["explained"] is None else f"Recompilations of rank {view['explained']}, which took longest."
    rows = [
        _reason(
            [html.Code(row["function"]), f" {row['line']}"],
            f"{row['count']:,}x" + ("" if row["ns"] is None else f", {format_ns(row['ns'])}"),
            [
                row["why"],
                *_values(row["values"]),
                *([f" Needed at {row['needed']}."] if row["needed"] and row["needed"] != row["line"] else []),
            ],
            row["fix"],
            row["guard"],
        )
        for row in view["again"]
    ]
    nothing = [] if rows else [html.P("Nothing was compiled again.")]
    return [_reasons(request, "Why it compiled again", whose, rows or nothing, view, "compile_recompilations")]


def _values(values: list[str]) -> list[Any]:
    """The values that a program was compiled for; torch logs one value of an object's attribute."""
    if not values:
        return []
    return [" It was compiled for " if len(values) == 1 else " Values: ", html.Code(", ".join(values)), "."]


def _broken(request: PageRequest, view: dict[str, Any]) -> list[Any]:
    """Reasons of graph breaks by line."""
    rows = [
        _reason(
            [html.Code(row["line"]), f" {row['code']}"],
            f"{row['count']:,}x" + (", whole frame left to eager mode" if row["whole"] else ""),
            [row["why"]],
            row["fix"],
            "",
        )
        for row in view["broken"]
    ]
    return [_reasons(request, "Graph breaks: why the graphs end", "", rows, view, "compile_breaks")] if rows else []


def _reasons(request: PageRequest, title: str, words: str, rows: list[Any], view: dict[str, Any], table: str) -> Any:
    """A card of reasons; those that only the table has are counted, with a link to it."""
    held = view["tables"].get(table)
    more = 0 if held is None else len(held["rows"]) + held["left"] - len(rows)
    left = [dcc.Link(f"and {more:,} more", href=request.link("compile", kind=table))] if more > 0 else []
    note = [html.P(words, className="ps-soft ps-note")] if words else []
    return html.Section(
        [html.Div([html.H2(title), *left], className="ps-over-head"), *note, *rows], className="ps-card ps-reasons"
    )


def _reason(name: list[Any], often: str, why: list[Any], fix: str, guard: str) -> Any:
    return html.Div(
        [
            html.Div([html.Span(name), html.Span(often, className="ps-soft")], className="ps-bar-said"),
            html.P(why),
            *([html.P([html.B("Fix: "), *with_code(fix)])] if fix else []),
            *([html.Details([html.Summary("in the compiler's words"), html.Code(guard)])] if guard else []),
        ],
        className="ps-reason",
    )


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
