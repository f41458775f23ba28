"""Graph: the neighbours of a finding with the bytes between them; current and possible kernels."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from dash import dcc, html

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._grid import grid
from perfscope.dashboards.web.pages._parts import origins
from perfscope.dashboards.web.ui import Graph
from perfscope.model.units import format_ns

TITLE = "Graph"
VIEW = "graph"
GRIDS = ("graph",)

NOTE = (
    "Solid box: one kernel; dashed box: ops that could be one kernel. The number on a line is the size of the value, "
    "from its shape; a kernel may read only a slice of it. Dashed lines stay inside a kernel, orange ones could."
)
NOTHING = "There is no instruction or op to draw a graph around."


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page: the picture selected by number (``picture``) or found by name (``find``)."""
    title = html.H1(TITLE, className="ps-title")
    lacks = [html.P(sentences, className="ps-card") for sentences in view["lacks"]]
    subjects = view["subjects"]
    if not subjects:
        return [title, *(lacks or [html.P(NOTHING, className="ps-card")])]
    word = _plain(request.parameters.get("find", ""))
    results = _found(subjects, word)
    number = _number(request.parameters.get("picture", ""), results, len(subjects))
    subject = subjects[number]
    sel = request.parameters.get("sel", "") or next(
        (item["name"] for item in subject["nodes"] if item["name"] == word), ""
    )
    value = view["tables"]["edges"]
    rows = [row for row in value["rows"] if row[0] == number + 1]
    findings = [
        html.P(
            [
                "On the line of finding " if item["line"] else "Finding ",
                dcc.Link(item["rule"], href=request.link("findings", at=str(item["at"]))),
                f": {item['title']}",
            ],
            className="ps-soft ps-note",
        )
        for item in subject["findings"]
    ]
    more = subject["alike"]
    alike = f" {more:,} more {'group has' if more == 1 else 'groups have'} the same ops and bytes." if more else ""
    sentences = [
        html.P(item + (alike if not index else "")) for index, item in enumerate(subject["said"] or [alike]) if item
    ]
    return [
        title,
        *lacks,
        html.Div(
            [
                _choice(request, view, results, number, word),
                html.Div(
                    [
                        html.H2(subject["title"]),
                        *sentences,
                        *findings,
                        Graph(
                            id="graph",
                            graph=subject,
                            named=subject["kind"],
                            timeline=request.link("timeline") if origins(request) else "",
                            sel=sel,
                        ),
                        html.P(NOTE, className="ps-soft ps-note"),
                    ],
                    className="ps-graph-main",
                ),
            ],
            className="ps-graph-page",
        ),
        html.H2("As a table: values between nodes (the CSV holds all pictures)", className="ps-title ps-below"),
        grid("graph", {**value, "rows": rows}, request, table="edges"),
    ]


def _choice(request: PageRequest, view: dict[str, Any], found: list[int], number: int, word: str) -> Any:
    """The list of pictures and a search in them; a form, so that the address holds the choice."""
    fields = [
        dcc.Input(type="search", id="graph-find", name="find", value=word, placeholder="instruction, op or line",
                  className="ps-tl-find"),
    ]  # fmt: skip
    if request.item is not None:
        fields.append(dcc.Input(type="hidden", name="run", value=request.item.key))
    rows = []
    counts = Counter(rule for item in view["subjects"] for rule in {finding["rule"] for finding in item["findings"]})
    few = {rule for rule, count in counts.items() if 2 * count <= len(view["subjects"])}
    for index in found:
        item = view["subjects"][index]
        tags = [finding["rule"] for finding in item["findings"] if finding["rule"] in few]  # of most: no distinction
        words = " · ".join(filter(None, (format_ns(item["ns"]) if item["ns"] else "", item["why"], *tags)))
        link = dcc.Link(
            item["title"], href=request.link("graph", picture=str(index + 1), **({"find": word} if word else {}))
        )
        here = {"aria-current": "true"} if index == number else {}
        rows.append(
            html.Li(
                [link, html.Div(words, className="ps-soft")], className="ps-here" if index == number else "", **here
            )
        )
    none = [html.P(f"No drawn node is called {word}.")] if not found else []
    left = f" {view['left']:,} smaller ones are left out." if view["left"] else ""
    return html.Div(
        [
            html.Form(
                [
                    html.Label("search in all pictures", htmlFor="graph-find", className="ps-hidden"),
                    *fields,
                    html.Button("find", type="submit", className="ps-button"),
                ],
                method="get",
                action=f"{request.base_path}graph",
                className="ps-graph-find",
            ),
            *none,
            html.Ul(rows, className="ps-subjects"),
            html.P(f"{len(found):,} of {len(view['subjects']):,} pictures, those of findings first.{left}",
                   className="ps-soft ps-note"),
        ],
        className="ps-card ps-graph-list",
    )  # fmt: skip


def _plain(find: str) -> str:
    """The name that the pattern of another page's link matches: untrusted patterns are not executed."""
    return re.sub(r"\\(.)", r"\1", find[:400].removeprefix("^").removesuffix("$")).removeprefix("aten::")


def _found(subjects: list[dict[str, Any]], word: str) -> list[int]:
    """Pictures that contain the word: those about it first, then those that show exactly it, then the others."""
    if not word:
        return list(range(len(subjects)))
    ranked = []
    for index, subject in enumerate(subjects):
        nodes = [item for item in subject["nodes"] if word.lower() in f"{item['name']}\n{item['line']}".lower()]
        kernels = [box for box in subject["boxes"] if word.lower() in box["title"].lower()]
        if nodes or kernels:
            exact = any(node["name"] == word for node in nodes) or any(box["title"] == word for box in kernels)
            centre = bool(kernels) or any(node["chosen"] for node in nodes)
            ranked.append((not (exact and centre), not exact, not centre, index))
    return [item[-1] for item in sorted(ranked)]


def _number(text: str, found: list[int], count: int) -> int:
    if text.isdecimal() and 1 <= int(text[:9]) <= count:
        return int(text[:9]) - 1
    return found[0] if found else 0
