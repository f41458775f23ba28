"""Tensors of a run that would lose most in narrower formats, and the loss over all tensors."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.plugins.numerics.document import Kind, TensorStatistics

MOST_ROWS = 50
"""Most tensors of a report."""


class TensorRow(Struct, frozen=True, kw_only=True):
    """A tensor; shares of the counted values, by format."""

    kind: Kind
    name: str
    dtype: str
    line: str
    """That calls the module."""
    elements: int
    """The most of any step."""
    nonfinite_steps: int
    """Tensors with NaN or infinity."""
    amax_first: float | None
    """Largest finite magnitude in the first step."""
    amax_largest: float | None
    """Over all steps."""
    amax_last: float | None
    """In the last step."""
    zero: float | None
    """Share of the values that were counted."""
    overflow: dict[str, float]
    """Format to share of the values that were counted; empty where none were."""
    underflow: dict[str, float]
    """Nonzero values that become 0 or subnormal."""
    amax: tuple[tuple[int, float], ...]
    """(Step, largest finite magnitude up to the next row's step)."""


class FormatRow(Struct, frozen=True, kw_only=True):
    """Loss of a format over all tensors of a kind; shares of the counted values."""

    kind: Kind
    format: str
    tensors: int
    """Tensors of that kind."""
    overflow: float
    flushed: float
    """Nonzero values that become 0."""
    subnormal: float


class NumericsSummary(Struct, frozen=True, kw_only=True):
    """The numerics of one process."""

    rank: int | None
    steps: int
    """Steps that the program took."""
    tensors: int
    """Tensors that were looked at."""
    nonfinite: int
    """Tensors that were not finite in some step."""
    watched: tuple[int, ...]
    """Steps whose values were counted and whose ops were watched."""
    scale: tuple[float, float] | None
    """Scale of the loss scaler in the first and the last step; ``None`` without one."""
    formats: tuple[FormatRow, ...]
    """Formats that lose something."""
    rows: tuple[TensorRow, ...]
    """Tensors that lose most first."""
    rows_left: int
    """Tensors that are not listed."""


def numerics_summary(trace: Trace) -> NumericsSummary | None:
    """Summarise recorded numerics; ``None`` if none were recorded."""
    from perfscope.plugins.numerics.document import numerics_of

    numerics = numerics_of(trace)
    if numerics is None:
        return None
    rows = tensor_rows(trace)
    scales = [step.scale for step in numerics.steps if step.scale is not None]
    return NumericsSummary(
        rank=trace.source.rank,
        steps=numerics.steps_seen,
        tensors=len(numerics.tensors) + numerics.tensors_left,
        nonfinite=sum(tensor.nonfinite_steps > 0 for tensor in numerics.tensors),
        watched=numerics.watched,
        scale=(scales[0], scales[-1]) if scales else None,
        formats=tuple(_formats(numerics.tensors)),
        rows=tuple(rows[:MOST_ROWS]),
        rows_left=max(0, len(rows) - MOST_ROWS) + numerics.tensors_left,
    )


def tensor_rows(trace: Trace) -> list[TensorRow]:
    """Return the tensors of a recording, those that lose most first; empty without numerics."""
    from perfscope.plugins.numerics.document import numerics_of

    numerics = numerics_of(trace)
    return [] if numerics is None else sorted(map(_row, numerics.tensors), key=_risk, reverse=True)


TENSORS: ResultTable[TensorRow] = ResultTable(
    name="numerics_tensors",
    title="Values of tensors",
    doc="Tensors of recorded numerics over all steps, those that lose most in narrower formats first. Shares are of "
    "the counted values.",
    columns=(
        Column("kind", str, "text", "input, output, loss, gradient or parameter", "key"),
        Column("name", str, "code", "module or parameter", "key"),
        Column("dtype", str, "text", "data type"),
        Column("line", str, "code", "line that calls the module"),
        Column("elements", int, "count", "the most of any step"),
        Column("nonfinite_steps", int, "count", "steps with NaN or infinity"),
        Column("amax_first", float | None, "quantity", "largest finite magnitude in the first step"),
        Column("amax_largest", float | None, "quantity", "largest finite magnitude over all steps"),
        Column("amax_last", float | None, "quantity", "largest finite magnitude in the last step"),
        Column("zero", float | None, "share", "zeros"),
        Column("overflow", dict[str, float], "share", "values that overflow, by format"),
        Column("underflow", dict[str, float], "share", "nonzero values that become 0 or subnormal, by format"),
    ),
    rows=tensor_rows,
)


def split_line(line: str) -> tuple[str | None, int | None]:
    """``train.py:88`` as file and number."""
    file, _, number = line.rpartition(":")
    return (file, int(number)) if file and number.isdecimal() else (line or None, None)


def _row(tensor: TensorStatistics) -> TensorRow:
    from perfscope.plugins.numerics.document import FORMATS

    counted = tensor.counted
    values = [largest for _, largest in tensor.amax]
    shares = list(zip(FORMATS, tensor.formats, strict=True)) if counted else []
    return TensorRow(
        kind=tensor.kind,
        name=tensor.name,
        dtype=tensor.dtype,
        line=tensor.line,
        elements=tensor.elements,
        nonfinite_steps=tensor.nonfinite_steps,
        amax_first=values[0] if values else None,
        amax_largest=max(values, default=None),
        amax_last=values[-1] if values else None,
        zero=tensor.zero / counted if counted else None,
        overflow={item.name: lost.overflow / counted for item, lost in shares},
        underflow={item.name: (lost.flushed + lost.subnormal) / counted for item, lost in shares},
        amax=tensor.amax,
    )


def _risk(row: TensorRow) -> tuple[float, ...]:
    """Sort key: not finite, then over- and underflow in the wider formats, then in the narrower ones."""
    from perfscope.plugins.numerics.document import FORMATS

    names = [item.name for item in FORMATS]
    lost = [part.get(name, 0.0) for name in names for part in (row.overflow, row.underflow)]
    return (row.nonfinite_steps, *lost)


def _formats(tensors: tuple[TensorStatistics, ...]) -> list[FormatRow]:
    from perfscope.plugins.numerics.document import FORMATS

    groups: dict[Kind, list[TensorStatistics]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.kind].append(tensor)
    rows = []
    for index, item in enumerate(FORMATS):
        for kind, members in groups.items():
            counted = sum(tensor.counted for tensor in members) or 1
            lost = [tensor.formats[index] for tensor in members]
            row = FormatRow(
                kind=kind,
                format=item.name,
                tensors=len(members),
                overflow=sum(part.overflow for part in lost) / counted,
                flushed=sum(part.flushed for part in lost) / counted,
                subnormal=sum(part.subnormal for part in lost) / counted,
            )
            if row.overflow or row.flushed or row.subnormal:
                rows.append(row)
    return rows
