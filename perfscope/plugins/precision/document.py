"""Advice on precision, ``perfscope.precision/1``: what each recipe keeps, and the proposal for each layer.

Errors are norms relative to the exact product, the largest of all measured steps. Times are ns per step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfscope.model.documents.bounded_json import SOME, Count, Ns, Number, Texts, Value, read_document, schema_of
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.precision/1"
WHAT = "advice on precision"
MOST_BYTES = 32 << 20


class RecipeRow(Value, frozen=True, kw_only=True):
    """A recipe over all products of the program."""

    recipe: str
    bits: Count
    keeps: Number
    """Share of the FLOPs in layers all of whose products it keeps."""
    layers: Count
    """Number of these layers."""
    expected: Number
    """Error that its elements have on normally distributed factors."""
    median: Number
    worst: Number
    worst_layer: str
    most_overflow: Number
    """Largest share of a product's values that saturate."""
    most_underflow: Number
    """Largest share of a product's values that become 0."""
    most_bias: Number
    """Largest bias, with its sign."""
    refused: str = ""
    """Why it is not proposed, besides what it loses; empty: it may be."""


class LayerRow(Value, frozen=True, kw_only=True):
    """The products of a layer, forward and backward."""

    layer: str
    line: str
    dtype: str
    """dtype of its factors today."""
    products: Count
    flops: Count
    """Per step."""
    proposal: str
    """A recipe, ``bf16`` or ``float32``."""
    error: Number | None
    """Largest error of its products in the proposal; null for float32."""
    reason: str = ""
    """Why it is not narrower."""
    now_ns: Ns | None = None
    """Modelled time of its products at the peaks of the target."""
    then_ns: Ns | None = None


class Precision(Value, frozen=True, kw_only=True):
    """The document."""

    schema: str
    subject: str
    framework: str
    target: str | None
    recipe: str
    """Recipe of the layers that go narrower than 16 bits; empty: none does."""
    steps: Count
    """Most steps in which a product was measured."""
    recipes: Annotated[tuple[RecipeRow, ...], msgspec.Meta(max_length=SOME)]
    layers: Annotated[tuple[LayerRow, ...], msgspec.Meta(max_length=SOME)]
    now_ns: Ns | None = None
    then_ns: Ns | None = None
    notes: Texts = ()


def load(path: Path) -> Precision:
    """The advice in a file; ``DataError`` in one line."""
    return read_document(path, Precision, SCHEMA, what=WHAT, most_bytes=MOST_BYTES)


def dump(advice: Precision) -> bytes:
    """The advice as UTF-8 JSON, its texts without control characters and secrets."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(advice))), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the advice, made from the types that read it."""
    return schema_of(Precision, SCHEMA, what="Which layers may be computed in which precision")
