"""The document ``perfscope.parity-cases/1``: a row per comparison."""

from __future__ import annotations

import math
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
    error: Number | None = None
    """Error of the judged side in the first row that parts, else in the worst one."""
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


def case_of(name: str, document: Parity, *, of_b: bool = False, a: str = "", b: str = "") -> Case:
    """The row of a comparison; ``of_b``: its reference is of B, so that A is judged."""
    judged = [row for row in document.rows if not row.regrouped]

    def error(row: Row) -> float | None:
        return row.error_a if of_b else row.error_b

    def share(row: Row) -> float:
        own = error(row)
        return math.inf if own is None else own / row.expected if row.expected else 0.0

    worst = max((row for row in judged if row.expected < 1), key=share, default=None)
    shown = document.first.row if document.first is not None else worst
    return Case(
        name=name,
        verdict=document.verdict,
        a=a,
        b=b,
        values=len(judged),
        first=document.first,
        worst=worst,
        error=None if shown is None else error(shown),
        share=None if worst is None or share(worst) == math.inf else share(worst),
    )


def dump(document: Cases) -> bytes:
    """The document as UTF-8 JSON, its texts without control characters, secrets and homes."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(document))), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document."""
    return schema_of(Cases, SCHEMA, what="Comparisons of two models on several inputs, dtypes or devices")
