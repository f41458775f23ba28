"""The document of a comparison, ``perfscope.compare/1``, as typed values: every report format is made from it.

In CI one job writes it and another one, which does not trust the first, renders it. So it is read as an untrusted
file: its size, depth and lists are bounded, its parts must sum to their whole, unknown keys are ignored, and an error
is one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfscope.dashboards.report.compare.types import (
    MANY,
    SOME,
    Cause,
    FindingChange,
    Kernel,
    Method,
    Metric,
    NotLooked,
    ProgramDifference,
    Rank,
    Side,
    Step,
    Texts,
    Value,
    Verdict,
)
from perfscope.model.errors import DataError

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
