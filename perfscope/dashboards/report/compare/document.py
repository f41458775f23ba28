"""The document of a comparison, ``perfscope.compare/1``, as typed values: every report format is made from it.

In CI one job writes it and another one, which does not trust the first, renders it. So it is read as an untrusted
file: its size, depth and lists are bounded, its parts must sum to their whole, unknown keys are ignored, and an error
is one line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfscope.dashboards.report.compare.types import (
    MANY,
    SOME,
    Cause,
    Count,
    FindingChange,
    Kernel,
    Method,
    Metric,
    NotLooked,
    Rank,
    Side,
    Step,
    Texts,
    Value,
    Verdict,
)
from perfscope.dashboards.report.compare.wording import IDENTICAL, amount
from perfscope.model.errors import DataError
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import NAME_LIMIT, TEXT_LIMIT, sanitize

# What a comparison's document says of compiled programs, typed: changes by instruction that sum to the whole.


Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class ProgramAmount(Value, frozen=True, kw_only=True):
    """A metric of a program, or a row's part of it, on both sides."""

    name: str
    unit: str
    base: Amount
    head: Amount


Amounts = Annotated[tuple[ProgramAmount, ...], msgspec.Meta(max_length=SOME)]


class ProgramRow(Value, frozen=True, kw_only=True):
    """One change at one line; ``source``: the line of the program as written that changed, where it is known."""

    change: str
    what: str = ""
    place: str = ""
    source: str = ""
    phase: str = ""
    count: Count = 1
    amounts: Amounts = ()
    lost: Count = 0
    """Launches that were part of a fusion."""
    blocking: Count = 0
    """Collectives that the device waits for now, and did not."""
    base_names: Texts = ()
    head_names: Texts = ()
    said: Texts = ()
    is_worse: bool = False

    def where(self) -> str:
        """The line to look at first."""
        return self.source or self.place


class OtherRows(Value, frozen=True, kw_only=True):
    """The rows that were not written one by one."""

    count: Count = 0
    amounts: Amounts = ()


class ProgramWritten(Value, frozen=True, kw_only=True):
    """What differs at a line of the program before the compiler optimized it."""

    place: str
    change: str
    what: str = ""
    count: Count = 1


class Span(Value, frozen=True, kw_only=True):
    """Time of a run by the model, in ns: between the peaks of the hardware and what kernels usually reach."""

    low: Amount
    high: Amount


class ProgramDifference(Value, frozen=True, kw_only=True):
    """One compiled program on both sides; its rows sum to the change of each of its metrics."""

    name: str
    base_fingerprint: str
    head_fingerprint: str
    identical: bool
    amounts: Amounts = ()
    rows: Annotated[tuple[ProgramRow, ...], msgspec.Meta(max_length=MANY)] = ()
    other_rows: OtherRows = OtherRows()
    written: Annotated[tuple[ProgramWritten, ...], msgspec.Meta(max_length=MANY)] | None = None
    """``None``: the programs before optimization were not there."""
    base_modelled: Span | None = None
    head_modelled: Span | None = None
    notes: Texts = ()

    def problem(self) -> str | None:
        """What does not sum; ``None``: everything does."""
        wanted = {amount.name: amount.head - amount.base for amount in self.amounts}
        sums = dict.fromkeys(wanted, 0)
        for amounts in (*(row.amounts for row in self.rows), self.other_rows.amounts):
            for part in amounts:
                if part.name not in sums:
                    return f"a row is of {part.name[:80]!r}, which the program does not have"
                sums[part.name] += part.head - part.base
        wrong = next((name for name in wanted if sums[name] != wanted[name]), None)
        if wrong is not None:
            return f"{wrong[:80]}: its rows sum to {sums[wrong]}, not to {wanted[wrong]}"
        if self.identical and (self.rows or self.base_fingerprint != self.head_fingerprint):
            return "it is called identical and is not"
        return None


# What every report format says of compiled programs: rows and words, sanitized but not escaped.


_SHORT = {
    "bytes moved a run": "moved",
    "FLOPs a run": "FLOPs",
    "instructions launched a run": "launches",
    "recomputed FLOPs a run": "FLOPs recomputed",
    "collective bytes a run": "sent to other devices",
    "peak memory of the program": "at the peak",
    "bytes of planned kernels a step": "moved",
    "FLOPs of planned kernels a step": "FLOPs",
    "planned kernels a step": "kernels",
    "planned graph breaks": "graph breaks",
    "planned peak memory of a step": "at the peak",
    "planned collectives a step": "collectives",
    "planned collective bytes a step": "sent to other devices",
    "planned collectives that block a step": "that block",
    "planned collective bytes that block a step": "of what blocks",
}
"""What stands behind a row's amounts."""

_BLOCKED = ("collectives that block a run", "planned collectives that block a step")

MOST_WRITTEN = 6
MOST_ROWS_SAID = 3
"""Sentences of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLine:
    """A row in words."""

    where: str
    """The line to look at; ``''`` where none is known."""
    title: str
    """``moved out of a fusion: reduce_sum, mul (backward), 4 times; shows at model.py:16``."""
    amounts: str
    """``+160 MiB moved, +6 launches``."""
    said: tuple[str, ...]
    is_worse: bool


def program_title(program: ProgramDifference, *, several: bool) -> str:
    """``jit_step: 3 changes by instruction``."""
    lead = f"{sanitize(program.name)}: " if several else ""
    if program.identical:
        return f"{lead}{IDENTICAL} ({sanitize(program.head_fingerprint)})"
    count = len(program.rows) + program.other_rows.count
    if program.base_fingerprint == program.head_fingerprint:
        return f"{lead}same fingerprint, another plan of its memory"
    if not count:
        return f"{lead}the same launches in another order"
    return f"{lead}{count:,} change{'' if count == 1 else 's'} by instruction; each metric's parts sum to its change"


def program_lines(program: ProgramDifference, most: int, *, limit: int = NAME_LIMIT) -> tuple[list[ProgramLine], int]:
    """(the first rows in words, how many are left)."""
    kept = program.rows[:most]
    return [_line(row, limit) for row in kept], len(program.rows) - len(kept) + program.other_rows.count


def _line(row: ProgramRow, limit: int) -> ProgramLine:
    phase = f" ({sanitize(row.phase)})" if row.phase else ""
    times = f", {row.count:,} times" if row.count > 1 else ""
    shown_at = (
        f"; shows at {sanitize(row.place, limit)}" if row.source and row.place and row.place != row.source else ""
    )
    return ProgramLine(
        where=sanitize(row.where(), limit),
        title=f"{sanitize(row.change)}: {sanitize(row.what, limit)}{phase}{times}{shown_at}",
        amounts=", ".join(map(signed, row.amounts)),
        said=tuple(sanitize(text, TEXT_LIMIT) for text in row.said[:MOST_ROWS_SAID]),
        is_worse=row.is_worse,
    )


def signed(part: ProgramAmount) -> str:
    """``+160 MiB moved``."""
    change = part.head - part.base
    name = _SHORT.get(part.name, sanitize(part.name))
    return f"{'+' if change > 0 else '-'}{amount(part.unit, abs(change))}{f' {name}' if name else ''}"


def written_line(program: ProgramDifference) -> str:
    """What differs in the program as written; ``''`` where nothing does, or it is not known."""
    if not program.written:
        return ""
    places: dict[str, list[str]] = {}
    for line in program.written:
        times = f" ({line.count:,} times)" if line.count > 1 else ""
        places.setdefault(sanitize(line.place), []).append(f"{sanitize(line.change)} {sanitize(line.what)}{times}")
    sentences = [f"{location}: {', '.join(what[:MOST_WRITTEN])}" for location, what in places.items()]
    more = f"; and {len(sentences) - MOST_WRITTEN:,} more lines" if len(sentences) > MOST_WRITTEN else ""
    return "; ".join(sentences[:MOST_WRITTEN]) + more


def modelled_line(program: ProgramDifference) -> str:
    """Time of a run by the model on both sides; ``''`` where it is not known."""
    if program.base_modelled is None or program.head_modelled is None:
        return ""
    spans = f"{_span(program.base_modelled)} → {_span(program.head_modelled)}"
    return f"a run takes {spans} by the model; nothing was measured"


def _span(span: Span) -> str:
    return f"{format_ns(span.low)} to {format_ns(span.high)}"


def row_of_metric(document: Document, name: str) -> ProgramRow | None:
    """The first row of a program's metric that is worse by it; ``name`` as the document's metrics have it."""
    for program in document.programs:
        plain = name.removeprefix(f"{program.name}: ")
        for row in program.rows:
            if any(amount.name == plain and amount.head > amount.base for amount in row.amounts):
                return row
            if plain in _BLOCKED and row.blocking:
                return row
    return None


SCHEMA = "perfscope.compare/1"

MOST_BYTES = 32 << 20
"""Of a document: ours have a few MiB at most, with 2,000 parts and their keys."""


class Document(Value, frozen=True, kw_only=True):
    """All of a comparison."""

    schema: str
    headline: Verdict
    summary: str
    base: Side
    head: Side
    metrics: Annotated[tuple[Metric, ...], msgspec.Meta(max_length=SOME)]
    failed: Texts = ()
    gates: Texts = ()
    """What ``--fail-on`` asked for."""
    beside: Annotated[tuple[Metric, ...], msgspec.Meta(max_length=SOME)] = ()
    programs: Annotated[tuple[ProgramDifference, ...], msgspec.Meta(max_length=SOME)] = ()
    """Compiled programs, by instruction."""
    causes: Annotated[tuple[Cause, ...], msgspec.Meta(max_length=MANY)] = ()
    step: Step | None = None
    worst_rank: Step | None = None
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=MANY)] = ()
    findings: Annotated[tuple[FindingChange, ...], msgspec.Meta(max_length=MANY)] = ()
    kernels: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=MANY)] = ()
    not_looked: Annotated[tuple[NotLooked, ...], msgspec.Meta(max_length=SOME)] = ()
    notes: Texts = ()
    method: Method = Method()


class _Named(Value, frozen=True, kw_only=True):
    """Enough to tell whether it is one at all."""

    schema: str = ""


def read(path: str | Path) -> Document:
    """The document in a file; ``DataError`` where it cannot be read, is too large, or is none."""
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    return parse(content, path)


def parse(content: bytes, path: str | Path) -> Document:
    """The document in ``content``; ``path`` is named in errors. ``DataError`` in one line where it is none."""
    if len(content) > MOST_BYTES:
        raise DataError(f"{path}: more than {MOST_BYTES >> 20} MiB: no comparison is that large")
    try:
        named = msgspec.json.decode(content, type=_Named)
        if named.schema != SCHEMA:
            what = f"schema {named.schema[:80]!r}" if named.schema else "no schema"
            raise DataError(f"{path}: {what}, not a comparison ({SCHEMA})")
        document = msgspec.json.decode(content, type=Document)
    except RecursionError:
        raise DataError(f"{path}: nested too deeply for a comparison") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a comparison: {_one_line(error)}") from error
    return _checked(document, path)


def of(values: dict[str, Any]) -> Document:
    """The document that we made ourselves; ``DataError`` if it is none."""
    try:
        document = msgspec.convert(values, type=Document)
    except msgspec.ValidationError as error:
        raise DataError(f"the comparison that was made is none: {_one_line(error)}") from error
    return _checked(document, "the comparison that was made")


def _checked(document: Document, path: str | Path) -> Document:
    for name, step in (("step", document.step), ("worst_rank", document.worst_rank)):
        problem = None if step is None else step.problem()
        if problem is not None:
            raise DataError(f"{path}: not a comparison: {name}: {problem}")
    for program in document.programs:
        problem = program.problem()
        if problem is not None:
            raise DataError(f"{path}: not a comparison: programs: {problem}")
    if any(finding.base is None and finding.head is None for finding in document.findings):
        raise DataError(f"{path}: not a comparison: a finding that neither side has")
    return document


def _one_line(error: Exception) -> str:
    """Its text without line ends: names of the file stand in it."""
    return " ".join(str(error).split())[:300]


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it (docs/compare-schema.json).

    Other keys are allowed: within a version they are only added.
    """
    _, parts = msgspec.json.schema_components([Document], ref_template="#/$defs/{name}")
    whole = parts.pop("Document")
    whole["properties"]["schema"] = {"const": SCHEMA}
    result: dict[str, Any] = _plain(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"A comparison, {SCHEMA}",
            **{key: value for key, value in whole.items() if key != "title"},
            "$defs": dict(sorted(parts.items())),
        }
    )
    return result


def _plain(value: Any) -> Any:
    """As JSON holds it, in an order of its own, without defaults: what is written has every key."""
    if isinstance(value, dict):
        return {key: _plain(value) for key, value in value.items() if key != "default"}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return sorted(items, key=json.dumps) if all(isinstance(item, dict) for item in items) else items
    return value
