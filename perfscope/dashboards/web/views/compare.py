"""Data of the comparison page: cards of its report, changed places, and all parts and kernels as tables.

It is made from a comparison's document only; so it is not in ``VIEWS``, which are made from the traces of one item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from perfscope.dashboards.report.blocks import Column, Listing, Text
from perfscope.dashboards.report.compare.json import SETS_KIND as SETS
from perfscope.dashboards.report.compare.sections import (
    ACCOUNT_NOTE,
    account_sections,
    caution_sections,
    compare_sections,
    detail_sections,
    step_sections,
    verdict_section,
)
from perfscope.dashboards.report.compare.words import (
    KIND_WORDS,
    cause_lines,
    headline,
    kernel_word,
    short_titles,
)
from perfscope.dashboards.report.renderers.html import blocks_html, sections_html
from perfscope.dashboards.report.renderers.values import signed_ns
from perfscope.dashboards.web.views._flame_change import flame_of
from perfscope.dashboards.web.views._tables import table
from perfscope.model.documents.causes import LEAST_SHARE, cause_words
from perfscope.model.documents.comparison import Cause, Document, Kernel, Part, PartSide, Step
from perfscope.model.untrusted_text import sanitize

MOST_CAUSES = 40
MOST_NAMES = 4
"""Most names per place and side to search for in the timeline."""
NAME_CHARS = 400

PART_COLUMNS: tuple[Column[Part], ...] = (
    Column("change", lambda row: row.delta_ns, "ns", key="change_ns", width=96),
    Column("at", lambda row: row.place or (row.name if row.kind == "idle" else ""), "code", key="line", width=250),
    Column("verdict", lambda row: row.status, key="status", width=104),
    Column("base", lambda row: row.base.ns, "ns", key="base_ns", width=90),
    Column("head", lambda row: row.head.ns, "ns", key="head_ns", width=90),
    Column("in base", lambda row: next(_recorded(row.base), None), "code", key="in_base", width=200),
    Column("in head", lambda row: next(_recorded(row.head), None), "code", key="in_head", width=200),
    Column("calls, base", lambda row: row.base.calls, "count", key="base_calls", width=110),
    Column("calls, head", lambda row: row.head.calls, "count", key="head_calls", width=110),
    Column("by calls", lambda row: row.count_ns, "ns", key="count_ns", width=100),
    Column("by each call", lambda row: row.each_ns, "ns", key="each_ns", width=120),
    Column("kind", lambda row: KIND_WORDS.get(row.kind, row.kind), key="kind", width=110),
    Column("matched by", lambda row: row.matched or "", key="matched", width=280),
)
KERNEL_COLUMNS: tuple[Column[Kernel], ...] = (
    Column("kernel", lambda row: row.name, "code", key="name"),
    Column("change", lambda row: row.change_ns, "ns", key="change_ns", width=100),
    Column("base", lambda row: row.base_ns, "ns", key="base_ns", width=100),
    Column("head", lambda row: row.head_ns, "ns", key="head_ns", width=100),
    Column("relative", lambda row: row.effect, "share", key="effect", width=96),
    Column("p", lambda row: row.p, "chance", key="p", width=80),
    Column("q", lambda row: row.q, "chance", key="q", width=80),
    Column("verdict", lambda row: kernel_word(row), key="verdict", width=130),
)


def view_of(document: Document) -> dict[str, Any]:
    """Cards as HTML (escaped texts), ``causes`` with names to search for on each side, and ``tables``.

    ``verdict``: one card, with the warnings to read before it. Times in the tables are ns per step (``per``).
    ``account``: the step of both sides by cause, largest change first; ``flame``: see `_flame_change`; both ``None`` if
    unknown.
    """
    per = "step" if document.step is None else document.step.per
    exact = [cause for cause in document.causes if cause.exact]
    step = document.step
    parts = sorted(() if step is None else step.parts, key=lambda part: -abs(part.delta_ns))
    *before, _, findings = compare_sections(document)  # places are drawn with links into the timelines
    accounts = list(account_sections(document))  # drawn as a figure, with the numbers below it
    steps = list(step_sections(document))  # on another tab, with both timelines
    details = [section for section in detail_sections(document) if section not in (*accounts, *steps)]
    verdict = verdict_section(document)
    cautions = (block for section in caution_sections(document) for block in section.blocks)
    return {
        "headline": headline(document),
        "paths": {side: list(getattr(document, side).paths) for side in ("base", "head")},
        "sets": document.method.kind == SETS,
        "places": _places(step),
        "titles": list(short_titles(document)),
        "per": per,
        "verdict": "".join(sections_html((replace(verdict, blocks=(*cautions, *verdict.blocks)),))),
        "metrics": "".join(sections_html(before)),
        "causes": [_cause(cause, step, per) for cause in exact[:MOST_CAUSES]],
        "causes_left": max(0, len(exact) - MOST_CAUSES),
        "findings": "".join(sections_html((findings,))),
        "step": "".join(sections_html(steps)),
        "details": "".join(sections_html(details)),
        "account": _account(document),
        "flame": flame_of(document.tree),
        "tables": {
            "parts": table(PART_COLUMNS, parts),
            "kernels": table(KERNEL_COLUMNS, document.kernels),
        },
        "other_parts": 0 if step is None else step.other_parts.count,
    }


def _account(document: Document) -> dict[str, Any] | None:
    account = document.account
    if account is None:
        return None
    least = LEAST_SHARE * max(account.base_ns, account.head_ns)
    rows: list[dict[str, Any]] = [
        {
            "cause": cause,
            "words": cause_words(cause, on_host=account.on_host),
            "base_ns": amount.base_ns,
            "head_ns": amount.head_ns,
            "change_ns": amount.head_ns - amount.base_ns,
            "change": signed_ns(amount.head_ns - amount.base_ns),
        }
        for cause, amount in account.causes.items()
        if max(amount.base_ns, amount.head_ns) >= least
    ]
    rows.sort(key=lambda row: -abs(row["change_ns"]))
    return {"rows": rows, "note": f"{ACCOUNT_NOTE[:1].upper()}{ACCOUNT_NOTE[1:]}."}


def _places(step: Step | None) -> dict[str, dict[str, list[str]]]:
    """Names of each row of the waterfall by place on both sides; rows without a name in the timeline are left out."""
    held: dict[str, list[Part]] = {}
    for part in () if step is None else step.parts:
        held.setdefault(sanitize(part.place or part.name), []).append(part)
    result = {}
    for text, parts in sorted(held.items(), key=lambda pair: -abs(sum(part.delta_ns for part in pair[1])))[
        :MOST_CAUSES
    ]:
        sides = {"base": _names(part.base for part in parts), "head": _names(part.head for part in parts)}
        if any(sides.values()):
            result[text] = sides
    return result


def _cause(cause: Cause, step: Step | None, per: str) -> dict[str, Any]:
    parts = [] if step is None else [part for part in step.parts if (part.place or part.name) == cause.place]
    return {
        "html": _cause_html(cause, per),
        "base": _names(part.base for part in parts),
        "head": _names(part.head for part in parts),
    }


def _cause_html(cause: Cause, per: str) -> str:
    lines, left = cause_lines(cause, per)
    time = f", {signed_ns(cause.delta_ns)} per {per}" if cause.parts else ""
    more = Listing(items=tuple(lines), left=left, rest="changes")
    return "".join(blocks_html((Text(f"`{sanitize(cause.place)}`{time}"), more)))


def _names(sides: Iterable[PartSide]) -> list[str]:
    """Ops and kernels as the timeline names them."""
    result = (name for side in sides for name in _recorded(side))
    return list(dict.fromkeys(result))[:MOST_NAMES]


def _recorded(side: PartSide) -> Iterator[str]:
    """The op of a key, else its kernel; a cause of idle time is not an event."""
    for key in side.keys:
        name = key.op or ("" if key.kind == "idle" else key.work)
        if name:
            yield sanitize(name, NAME_CHARS)
