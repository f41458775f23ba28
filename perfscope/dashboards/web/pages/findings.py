"""Findings: evidence, advice and links for each; rules that were not evaluated."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

from dash import dcc, html

from perfscope.analyzers.registry import load_rule, rule_ids
from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._parts import pictures
from perfscope.dashboards.web.ui import Fragment

TITLE = "Findings"
VIEW = "findings"

LABEL_CHARS = 60
HOW = {"piece": "", "line": "events of its line: ", "name": "events of its op or kernel: "}
MOST_SHOWN = 3
"""Most sections of the timeline named in a card; one link leads to all."""


def layout(request: PageRequest, view: dict[str, Any]) -> Any:
    """The page; ``rule`` in the address selects the findings of a rule, ``at`` a finding by number."""
    rule, text = request.parameters.get("rule", ""), request.parameters.get("at", "")
    numbered = list(enumerate(view["findings"]))
    rows = [(index, row) for index, row in numbered if (not rule or row["rule"] == rule) and text in ("", str(index))]
    some = (rule or text) and len(rows) < len(numbered)
    what = f"Of {rule} alone. " if rule else "One of several. "
    everything = [html.P([what, dcc.Link("all findings", href=request.link("findings"))])] if some else []
    nothing = [html.P(view["nothing"] or "No findings.", className="ps-card")] if not rows else []
    drawn = pictures(request)
    left = [html.P(f"{view['left']:,} more are left out; the JSON report holds all.")] if view["left"] else []
    return [
        html.H1(TITLE, className="ps-title"),
        *everything,
        *([] if some else _by_rule(request, view["findings"])),
        *(_rule_page(rule) if rule in rule_ids() else []),
        *nothing,
        *(_finding(request, index, row, drawn.get(index), opened=bool(rule or text)) for index, row in rows),
        *left,
        Fragment(html=view["after"]),
    ]


def _by_rule(request: PageRequest, findings: list[dict[str, Any]]) -> list[Any]:
    """Links to the findings of each rule, if there are several, in the order of the page."""
    counts = Counter(row["rule"] for row in findings)
    if len(counts) < 2:
        return []
    links = [
        dcc.Link(
            [rule, html.Span(f" {count:,}", className="ps-soft")] if count > 1 else rule,
            href=request.link("findings", rule=rule),
            className="ps-tab",
        )
        for rule, count in counts.items()
    ]
    return [html.Nav(links, className="ps-tabs", **{"aria-label": "findings by rule"})]


def _rule_page(rule: str) -> list[Any]:
    """The description of a rule, as shown by `perfscope rules RULE`."""
    head = html.Summary(f"Description of {rule}")
    return [html.Details([head, html.Pre(inspect.cleandoc(load_rule(rule).doc))], className="ps-card ps-rule")]


def _finding(request: PageRequest, index: int, row: dict[str, Any], picture: str | None, *, opened: bool) -> Any:
    links: list[Any] = [HOW[row["how"]]] if row["at"] else []
    if len(row["at"]) > 1:
        links += [dcc.Link("all marks", href=request.link("timeline", finding=str(index))), ", longest: "]
    for piece in row["at"][:MOST_SHOWN]:
        href = request.link("timeline", mark=piece["mark"], finding=str(index))
        links += [html.A(piece["short"], href=href, title=piece["said"]), " · "]
    for name in row["find"]:
        label = name if len(name) <= LABEL_CHARS else f"{name[: LABEL_CHARS - 1]}…"
        href = request.link("timeline", find=f"^{re.escape(name)}$")
        links += [html.A(html.Code(label), href=href), " "]
    links = links[:-1] if row["at"] and not row["find"] else links
    shown = [html.Div(["In the timeline: ", *links], className="ps-look")] if links else []
    if row["none"]:
        shown.append(html.Div(f"Not in the timeline: {row['none']}", className="ps-look"))
    more = (
        [] if "rule" in request.parameters else [dcc.Link("the rule", href=request.link("findings", rule=row["rule"]))]
    )
    more += [dcc.Link("memory over time", href=request.link("memory"))] if row["memory"] else []
    more += [dcc.Link("the graph around it", href=request.link("graph", picture=picture))] if picture else []
    if more:
        between = [item for link in more for item in (link, " · ")][:-1]
        shown.append(html.Div(["See also: ", *between], className="ps-look"))
    below = [html.Div(shown, className="ps-finding-links")] if shown else []
    card = row["html"].replace("<details>", "<details open>", 1) if opened else row["html"]
    named = html.H2(f"Finding {index + 1}: {row['rule']}", className="ps-hidden")
    parts = [named, Fragment(html=card, source=row["source"]), *below]
    return html.Div(parts, className=f"ps-finding ps-finding-{row['severity']}")
