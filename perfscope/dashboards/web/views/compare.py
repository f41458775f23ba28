"""What the page of a comparison shows: cards of its report, places that changed, all parts and kernels as tables.

It is made of the document of a comparison alone, so it is none of ``VIEWS``, which are made of the traces of one item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from perfscope.dashboards.report.blocks import Listing, Text
from perfscope.dashboards.report.compare.document import Document
from perfscope.dashboards.report.compare.json import SETS_KIND as SETS
from perfscope.dashboards.report.compare.sections import compare_sections, detail_sections, verdict_section
from perfscope.dashboards.report.compare.types import Cause, Kernel, Part, PartSide, Step
from perfscope.dashboards.report.compare.words import (
    KIND_WORDS,
    cause_lines,
    headline,
    kernel_word,
    short_titles,
)
from perfscope.dashboards.report.renderers.html import blocks_html, sections_html
from perfscope.dashboards.report.renderers.values import signed_ns
from perfscope.dashboards.web.views._tables import Head, table
from perfscope.model.untrusted_text import sanitize

MOST_CAUSES = 40
MOST_NAMES = 4
"""Of a place and side, that the timeline is asked for."""
NAME_CHARS = 400

PART_HEADS = (
    Head(key="change_ns", title="change", unit="ns", width=96),
    Head(key="line", title="at", unit="code", width=250),
    Head(key="status", title="it is", width=104),
    Head(key="base_ns", title="base", unit="ns", width=90),
    Head(key="head_ns", title="head", unit="ns", width=90),
    Head(key="in_base", title="in base", unit="code", width=200),
    Head(key="in_head", title="in head", unit="code", width=200),
    Head(key="base_calls", title="calls, base", unit="count", width=110),
    Head(key="head_calls", title="calls, head", unit="count", width=110),
    Head(key="count_ns", title="by calls", unit="ns", width=100),
    Head(key="each_ns", title="by each call", unit="ns", width=120),
    Head(key="kind", title="kind", width=110),
    Head(key="matched", title="known again by", width=280),
)
KERNEL_HEADS = (
    Head(key="name", title="kernel", unit="code"),
    Head(key="change_ns", title="change", unit="ns", width=100),
    Head(key="base_ns", title="base", unit="ns", width=100),
    Head(key="head_ns", title="head", unit="ns", width=100),
    Head(key="effect", title="relative", unit="share", width=96),
    Head(key="p", title="p", unit="chance", width=80),
    Head(key="q", title="q", unit="chance", width=80),
    Head(key="verdict", title="it is", width=130),
)


def view_of(document: Document) -> dict[str, Any]:
    """Cards as HTML (their texts escaped), ``causes`` with names to look for on each side, and ``tables``.

    Times in the tables are ns per step (``per``).
    """
    per = "step" if document.step is None else document.step.per
    exact = [cause for cause in document.causes if cause.exact]
    step = document.step
    *before, _, findings = compare_sections(document)  # places are drawn with links into the timelines
    *details, method = detail_sections(document)
    return {
        "headline": headline(document),
        "paths": {side: list(getattr(document, side).paths) for side in ("base", "head")},
        "sets": document.method.kind == SETS,
        "places": _places(step),
        "titles": list(short_titles(document)),
        "per": per,
        "before": "".join(sections_html((verdict_section(document), *before))),
        "causes": [_cause(cause, step, per) for cause in exact[:MOST_CAUSES]],
        "causes_left": max(0, len(exact) - MOST_CAUSES),
        "findings": "".join(sections_html((findings,))),
        "step": "".join(sections_html(details)),
        "after": "".join(sections_html((method,))),
        "tables": {
            "parts": table(PART_HEADS, [] if step is None else _parts(step)),
            "kernels": table(KERNEL_HEADS, _kernels(document.kernels)),
        },
        "other_parts": 0 if step is None else step.other_parts.count,
    }


def _places(step: Step | None) -> dict[str, dict[str, list[str]]]:
    """What each row of the waterfall by place is named on either side; rows without a name in the timeline are out."""
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
    """The op of a key, else its kernel; why a device is idle is no event."""
    for key in side.keys:
        name = key.op or ("" if key.kind == "idle" else key.work)
        if name:
            yield sanitize(name, NAME_CHARS)


def _parts(step: Step) -> Iterator[list[Any]]:
    for part in sorted(step.parts, key=lambda part: -abs(part.delta_ns)):
        yield [
            part.delta_ns, sanitize(part.place) or _why(part), sanitize(part.status), part.base.ns, part.head.ns,
            next(_recorded(part.base), None), next(_recorded(part.head), None), part.base.calls, part.head.calls,
            part.count_ns, part.each_ns, KIND_WORDS.get(part.kind, sanitize(part.kind)), sanitize(part.matched or ""),
        ]  # fmt: skip


def _why(part: Part) -> str:
    """Of idle time its cause stands where others have their line."""
    return sanitize(part.name) if part.kind == "idle" else ""


def _kernels(kernels: Iterable[Kernel]) -> Iterator[list[Any]]:
    for kernel in kernels:
        yield [
            sanitize(kernel.name, NAME_CHARS), kernel.change_ns, kernel.base_ns, kernel.head_ns, kernel.effect,
            kernel.p, kernel.q,
            kernel_word(kernel),
        ]  # fmt: skip
