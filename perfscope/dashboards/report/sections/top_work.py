"""The costliest kernels, ops, modules and lines, and their achieved rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.analyzers.ops import NOT_KNOWN
from perfscope.dashboards.report.blocks import Column, Section, notes, table
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.ops import TopWork, Utilization, WorkRow
    from perfscope.dashboards.report.blocks import Table

MOST_ROWS = 20
"""Most rows of each table; the JSON report has more."""

NAME_LIMIT, OP_LIMIT = 48, 28
"""Characters of the name of a kernel, and of the op that launched it."""

NOT_COSTED = "not costed"

EXACT_SHARE = 0.99
"""Share of compute kernels' time with a known cost below which the FLOPs are a lower bound."""

LEAST_COSTED = 0.5
"""Share of the time with a known cost below which a lower bound of the MFU means nothing."""

TERA, GIGA = 10**12, 10**9

_TITLES = {"kernels": "kernel", "ops": "op", "modules": "module"}

FIRST_LINES = 4
"""Source lines shown on the first screen of a terminal."""


def top_sections(top: TopWork | None) -> tuple[Section, ...]:
    """One section; empty if nothing is known. Kinds without any known name are left out."""
    if top is None or not top.total_ns:
        return ()
    kinds: list[tuple[str, tuple[WorkRow, ...]]] = [(kind, getattr(top, kind)) for kind in _TITLES]
    known = [(kind, rows) for kind, rows in kinds if any(row.name != NOT_KNOWN for row in rows)]
    if not known:
        return ()
    first, *others = (_table(kind, rows, top, detail=index > 0) for index, (kind, rows) in enumerate(known))
    return (
        Section(
            title=f"Top {known[0][0]}",
            summary=_whole(top),
            blocks=(first, *notes(_costed(top)), *others),
        ),
    )


def line_sections(top: TopWork | None) -> tuple[Section, ...]:
    """The same work by source line of the program; empty if no line is known."""
    rows = () if top is None else top.lines
    if top is None or all(row.name == NOT_KNOWN for row in rows):
        return ()
    return (
        Section(title="By source line", summary=_whole(top), blocks=(_table("lines", rows, top, few=FIRST_LINES),)),
    )


def _whole(top: TopWork) -> str:
    """``'CPU ops by self time per step (100% = 3.80 ms)'``."""
    several = f"work of all {top.devices:,} devices of a process" if top.devices > 1 else "device work"
    what = "CPU ops by self time" if top.on_host else several
    over = "per step" if top.steps else "in the whole capture"
    return f"{what} {over} (100% = {format_ns(top.total_ns // max(1, top.steps))})"


def _costed(top: TopWork) -> str:
    """Sentence on the share of time that has a cost model."""
    known = top.costed_share
    rest = f"; {100 * (1 - known):.1f}% of the time has no model" if known < 1 else ""
    return f"TFLOP/s and GB/s are modelled{rest}" if known else ""


def utilization_sentences(top: TopWork | None) -> list[str]:
    """Sentences on the achieved share of a peak, for the head of a report; empty if unknown."""
    if top is None:
        return []
    return [
        f"MFU {'' if item.costed_share >= EXACT_SHARE else 'at least '}{100 * item.mfu:.1f}%{_with_repeats(item)} "
        f"(modelled; {item.dtype} dense peak of {item.device}, "
        f"{item.peak_flops / TERA:,.0f} TFLOP/s)"
        for item in top.utilization
        if item.costed_share >= LEAST_COSTED
    ]


def _with_repeats(item: Utilization) -> str:
    return f", {100 * item.hfu:.1f}% with recomputation" if item.repeated_flops else ""


def _table(kind: str, rows: tuple[WorkRow, ...], top: TopWork, *, detail: bool = False, few: int = 5) -> Table:
    shown = rows[:MOST_ROWS]
    rated = any(row.achieved.time_ns for row in shown)
    columns = tuple(_columns(kind, top, rated=rated))
    return table(columns, shown, title=f"by {_TITLES[kind]}" if detail else "", detail=detail, few=few)


def _columns(kind: str, top: TopWork, *, rated: bool) -> Iterator[Column[WorkRow]]:
    steps = max(1, top.steps)
    if kind == "lines":
        yield Column("source line", lambda row: row.name, "place", limit=NAME_LIMIT)
    else:
        yield Column(_TITLES[kind], lambda row: row.name, "code", limit=NAME_LIMIT)
    yield Column("time", lambda row: row.total_ns // steps, "ns")
    yield Column("share", lambda row: row.total_ns / top.total_ns, "share")
    yield Column("calls", lambda row: _calls(row, steps), "count", drop=4)
    yield Column("mean", lambda row: row.total_ns // max(1, row.calls), "ns", drop=1)
    if rated:
        yield Column("TFLOP/s", lambda row: _rate(row, row.achieved.flops_per_s, TERA), "count", drop=2)
        yield Column("GB/s", lambda row: _rate(row, row.achieved.bytes_per_s, GIGA), "count", drop=3)
        yield Column("roofline", lambda row: row.achieved.roofline_share if _stands(row) else NOT_COSTED, "share")
    if kind == "kernels":
        yield Column("limited by", lambda row: row.limit)
        yield Column("line", lambda row: row.line, "place")
        yield Column("launched by", lambda row: "" if row.op == NOT_KNOWN else row.op, "code", drop=5, limit=OP_LIMIT)


def _calls(row: WorkRow, steps: int) -> str:
    """Calls per step; with a decimal if steps differ."""
    calls = row.calls / steps
    return f"{calls:,.0f}" if calls == int(calls) else f"{calls:,.1f}"


def _stands(row: WorkRow) -> bool:
    """Whether at least half of the row's time has a known cost, so that its rates represent the row."""
    return 2 * row.achieved.time_ns >= row.total_ns


def _rate(row: WorkRow, value: float | None, unit: int) -> str:
    if value is None or not _stands(row):
        return ""
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 0.1 else f"{scaled:.1g}"
