"""Parts of at least a fifth of the step without a finding: the reason why each is fine or cannot be judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfscope.analyzers.large_parts import LARGE_SHARE
from perfscope.dashboards.report.blocks import Listing, Section
from perfscope.model.documents.causes import cause_words
from perfscope.model.units import format_bytes, format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.large_parts import LargePart

FIRST_PARTS = 3
"""Lines shown without ``-v``."""

TERA, GIGA = 1e12, 1e9


def large_sections(parts: Sequence[LargePart], *, findings: bool) -> tuple[Section, ...]:
    """One section; empty if every large part has a finding. ``findings``: the report has findings."""
    rest = [part for part in parts if part.rule is None and (part.share >= LARGE_SHARE or not findings)]
    if not rest:
        return ()
    if rest[0].share < LARGE_SHARE:
        title, summary = "Largest parts", "no op, kernel or line takes a fifth of it; the largest"
    else:
        title = "Also large" if findings else "Largest parts"
        summary = "parts of a fifth or more" + (" that are in no finding" if findings else "")
    items = tuple(map(_line, rest))
    return (Section(title=title, summary=summary, blocks=(Listing(items=items, few=FIRST_PARTS, rest="parts"),)),)


def _line(part: LargePart) -> str:
    """``'`aten::addmm` 46.2% of the step, model.py:88: at 84% of its roofline (modelled)'``."""
    of = (
        "the time with a core"
        if part.waited
        else "the step"
        if part.steps
        else "the run"
        if part.reason == "bound"
        else "the time"
    )
    name = cause_words(part.name, on_host=part.on_host) if part.kind == "cause" else part.name
    inside = f" in {part.inside}" if part.inside else f", mostly {part.mainly}" if part.mainly else ""
    place = f", {part.where}" if part.where else ""
    return f"{name}{inside}, {100 * part.share:.1f}% of {of}{place}: {_why(part)}"


def _why(part: LargePart) -> str:
    reached, known = _reached(part), part.achieved.roofline_share
    peaks = "this CPU" if part.on_host else "this device"
    share = "" if known is None else f"at {100 * min(known, 1.0):.0f}% of its roofline (modelled)"
    words = {
        "at_roofline": share,
        "below_roofline": f"{share}; no rule explains why",
        "bound": f"modelled at its least time{f', bound by {part.bound}' if part.bound else ''}",
        "few_rows": f"memory bounds it ({_intensity(part):.2g} FLOP per byte){_more_rows(part)}",
        "short_calls": f"{_calls(part)} of {format_ns(part.time_ns // max(1, part.calls))}: mostly the price of a call",
        "communication": "the account shows its exposed part",
        "no_peak": f"not judged: the peaks of {peaks} are not known{reached}",
        "no_cost": "not judged: its cost is not known",
        "many_ops": f"{_calls(part)}, {format_ns(part.time_ns // max(1, part.calls))} of Python and dispatch before "
        "each; larger batches or a compiled step have fewer",
        "no_core": "not judged: the host also waited for a core, which lengthens it; record again on a free machine",
        "no_rule": "not judged: no rule found what causes it",
    }
    return words[part.reason]


def _more_rows(part: LargePart) -> str:
    """Remark on a matrix product; attention and convolutions read no weights that more rows would share."""
    product = part.work == "matrix product"
    return "; where weights are most of the bytes, more rows per call cost little more" if product else ""


def _calls(part: LargePart) -> str:
    calls = part.calls / max(1, part.steps)
    what = "ops" if part.reason == "many_ops" else "calls"
    return f"{calls:,.0f} {what}{' per step' if part.steps else ''}"


def _intensity(part: LargePart) -> float:
    return part.achieved.flops / part.achieved.bytes if part.achieved.bytes else 0.0


def _reached(part: LargePart) -> str:
    """Achieved rate, from modelled FLOPs or bytes."""
    flops, moved = part.achieved.flops_per_s, part.achieved.bytes_per_s
    if flops and flops >= GIGA:
        return f" (reached {flops / GIGA:,.0f} GFLOP/s)" if flops < TERA else f" (reached {flops / TERA:,.1f} TFLOP/s)"
    return f" (moved {format_bytes(moved)}/s)" if moved else ""
