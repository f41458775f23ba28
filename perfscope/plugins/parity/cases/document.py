"""The document ``perfscope.parity-cases/1``: a row per comparison."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import MANY, Count, Number, Texts, Value, schema_of
from perfscope.model.untrusted_text import sanitize_value
from perfscope.plugins.parity.document import Divergence, Parity, Row, SideSummary

SCHEMA = "perfscope.parity-cases/1"
FILE = "cases.json"
CaseVerdict = Literal["same", "diverges", "not compared", "not run", "does not apply"]


class Case(Value, frozen=True, kw_only=True):
    """A comparison."""

    name: str
    """The regime of inputs; of a matrix the names of both sides."""
    verdict: CaseVerdict
    reason: str = ""
    """Why it was not run, or does not apply."""
    a: str = ""
    b: str = ""
    values: Count = 0
    """Values that were judged."""
    first: Divergence | None = None
    worst: Row | None = None
    """The row whose error is the largest part of what rounding explains, where that is less than the value itself."""
    share: Number | None = None
    """That part; ``None``: not finite."""


class Cases(Value, frozen=True, kw_only=True):
    """All rows."""

    schema: str
    created_utc: str
    kind: Literal["inputs", "backends"]
    sides: tuple[SideSummary, ...]
    cases: Annotated[tuple[Case, ...], msgspec.Meta(max_length=MANY)]
    notes: Texts = ()


def case_of(name: str, document: Parity, *, a: str = "", b: str = "") -> Case:
    """The row of a comparison."""
    judged = [row for row in document.rows if not row.regrouped]
    worst = max((row for row in judged if row.expected < 1), key=_share, default=None)
    share = None if worst is None else _share(worst)
    return Case(
        name=name,
        verdict=document.verdict,
        a=a,
        b=b,
        values=len(judged),
        first=document.first,
        worst=worst,
        share=share if share is not None and share < float("inf") else None,
    )


def _share(row: Row) -> float:
    """Part of the bound that the judged side's error is; infinite where it has no finite error."""
    errors = [row.error_b, row.error_a]
    if row.diverges and None in errors:
        return float("inf")
    return max(error or 0.0 for error in errors) / row.expected if row.expected else 0.0


def dump(document: Cases) -> bytes:
    """The document as UTF-8 JSON, its texts without control characters, secrets and homes."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(document))), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document."""
    return schema_of(Cases, SCHEMA, what="Comparisons of two models on several inputs, dtypes or devices")
