"""Losses that narrower number formats would cause in a run's tensors, and the tensors at risk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Section, Text, table, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.plugins.numerics.summary import FormatRow, NumericsSummary, TensorRow

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3": "e4m3", "float8_e5m2": "e5m2"}
FEW = 8

_FORMATS: tuple[Column[FormatRow], ...] = (
    Column("format", lambda row: row.format),
    Column("values", lambda row: row.kind),
    Column("tensors", lambda row: row.tensors, "count", drop=1),
    Column("overflow", lambda row: row.overflow, "share"),
    Column("become 0", lambda row: row.flushed, "share"),
    Column("subnormal", lambda row: row.subnormal, "share"),
)


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield a section for each process."""
    summaries = analysis.results["numerics"]
    for summary in summaries:
        yield _section(summary, several=len(summaries) > 1)


def facts(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence on the first process for the head of a report."""
    first: NumericsSummary = analysis.results["numerics"][0]
    tensors = f"{first.tensors:,} tensors" if first.tensors != 1 else "1 tensor"
    yield f"numerics of {tensors} in {first.steps:,} steps, {_finite(first)}; recorded without times"


def _finite(summary: NumericsSummary) -> str:
    return f"{summary.nonfinite:,} not finite in some step" if summary.nonfinite else "all finite"


def _section(summary: NumericsSummary, *, several: bool) -> Section:
    whose = f" of rank {summary.rank}" if several and summary.rank is not None else ""
    scale = "" if summary.scale is None else f", loss scale {summary.scale[0]:g} to {summary.scale[1]:g}"
    rows = table(
        tuple(_columns()),
        summary.rows,
        title="tensors of which most is lost",
        few=FEW,
        left=summary.rows_left,
        rest="tensors",
    )
    kept = table(_FORMATS, summary.formats, title="what each format would lose, without scaling", few=FEW, rest="rows")
    return Section(
        title=f"Numerics{whose}",
        summary=f"{summary.tensors:,} tensors in {summary.steps:,} steps, {_finite(summary)}{scale}",
        blocks=(
            *tables(kept, rows),
            Text(
                f"amax: largest magnitude in the first step, over all steps and in the last; shares are of values "
                f"counted in steps {_numbers(summary.watched)} (cast as they are: over: overflow, under: nonzero "
                "values that become 0 or subnormal)",
                detail=True,
            ),
        ),
    )


def _numbers(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:6]))
    return f"{shown} ..." if len(steps) > 6 else shown or "that were chosen"


def _columns() -> Iterator[Column[TensorRow]]:
    yield Column("tensor", lambda row: row.name, "place", limit=40)
    yield Column("values", lambda row: row.kind)
    yield Column("dtype", lambda row: row.dtype)
    yield Column("steps not finite", lambda row: row.nonfinite_steps or None, "count")
    yield Column("amax first", lambda row: _number(row.amax_first), drop=2)
    yield Column("largest", lambda row: _number(row.amax_largest))
    yield Column("last", lambda row: _number(row.amax_last), drop=1)
    yield Column("zero", lambda row: row.zero, "share", drop=3)
    for order, name in enumerate(("float16", "float8_e5m2", "float8_e4m3", "bfloat16")):
        yield Column(f"{SHORT[name]} over", _share(name, over=True), "share", drop=4 + order)
        yield Column(f"{SHORT[name]} under", _share(name, over=False), "share", drop=4 + order)


def _share(name: str, *, over: bool) -> Callable[[TensorRow], float | None]:
    return lambda row: (row.overflow if over else row.underflow).get(name) or None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
