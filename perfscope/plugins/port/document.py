"""The port ledger, ``perfscope.port/1``: two sides of one model, layer by layer, and what one side does extra.

Times are ns per step. The rows of a side and its remainder add up to its step, in every column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfscope.model.documents.bounded_json import (
    MANY,
    SOME,
    Count,
    Ns,
    Number,
    Texts,
    Value,
    read_document,
    schema_of,
)
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.port/1"
WHAT = "a port ledger"
MOST_BYTES = 32 << 20
SIDES = ("a", "b")


class Amounts(Value, frozen=True, kw_only=True):
    """Work of one side in one step."""

    flops: Count = 0
    bytes: Count = 0
    launches: Count = 0
    held_bytes: Count = 0
    recompute_flops: Count = 0
    time_ns: Ns | None = None
    dtype: str = ""
    file: str | None = None
    line: Count | None = None


class Row(Value, frozen=True, kw_only=True):
    """A layer in one phase."""

    layer: str
    phase: str
    a: Amounts | None = None
    b: Amounts | None = None


class Side(Value, frozen=True, kw_only=True):
    """One side and the sums of its step."""

    path: str
    framework: str
    device: str
    layers: Count
    step_ns: Ns | None
    basis: str | None
    """``measured`` or ``modelled``; null: nothing was timed."""
    total: Amounts
    notes: Texts = ()


class Difference(Value, frozen=True, kw_only=True):
    """Something that one side does and the other does not."""

    side: str
    """``a`` or ``b``: the one that does it."""
    kind: str
    layers: Texts
    count: Count
    """How often in a step."""
    bytes: Count = 0
    flops: Count = 0
    time_ns: Ns | None = None
    share: Number = 0
    """Share of the side's step, by ``of``."""
    of: str = ""
    """``time``, ``bytes moved``, ``FLOPs``, ``peak memory`` or ``launches``."""
    explains: bool = False
    """It takes at least half of the time that the side's step is longer."""
    detail: str = ""
    file: str | None = None
    line: Count | None = None
    other_file: str | None = None
    other_line: Count | None = None


class Unpaired(Value, frozen=True, kw_only=True):
    """A layer that only one side has, and why."""

    side: str
    layer: str
    reason: str


class Ledger(Value, frozen=True, kw_only=True):
    """The document."""

    schema: str
    a: Side
    b: Side
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=MANY)]
    differences: Annotated[tuple[Difference, ...], msgspec.Meta(max_length=SOME)] = ()
    unpaired: Annotated[tuple[Unpaired, ...], msgspec.Meta(max_length=MANY)] = ()
    notes: Texts = ()


AMOUNTS = ("flops", "bytes", "launches", "held_bytes", "recompute_flops", "time_ns")


def checked(ledger: Ledger) -> Ledger:
    """The ledger itself; ``DataError`` if the rows of a side do not add up to its step."""
    for name in SIDES:
        side: Side = getattr(ledger, name)
        for amount in AMOUNTS:
            parts = [getattr(part, amount) or 0 for row in ledger.rows if (part := getattr(row, name)) is not None]
            whole = getattr(side.total, amount)
            if whole is not None and sum(parts) != whole:
                raise DataError(f"{WHAT}: {amount} of side {name} do not add up: {sum(parts)} of {whole}")
    return ledger


def load(path: Path) -> Ledger:
    """A ledger file; ``DataError`` in one line."""
    return checked(read_document(path, Ledger, SCHEMA, what=WHAT, most_bytes=MOST_BYTES))


def dump(ledger: Ledger) -> bytes:
    """The ledger as UTF-8 JSON, its texts without control characters, secrets and homes."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(ledger))), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a ledger, made from the types that read it."""
    return schema_of(Ledger, SCHEMA, what="One model on two sides, layer by layer")
