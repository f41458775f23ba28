"""The document of a comparison of two recordings of fingerprints, ``perfscope.first-difference/1``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import MANY, Count, Number, Texts, Value, read_document, schema_of
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.first-difference/1"
MOST_BYTES = 16 << 20
FILE = "first-difference.json"

Cause = Literal[
    "arguments", "batch", "choice", "collective", "control flow", "data", "op", "optimizer state", "order", "random",
    "shape", "unseen write", "unwritten memory", "weights", "gradients", "buffers",
]  # fmt: skip
Mode = Literal["ops", "first rows", "gradients"]


class Place(Value, frozen=True, kw_only=True):
    """An op of one side."""

    op: str
    line: str
    module: str
    phase: str
    number: Count
    """Its place among the ops of the step."""
    arguments: str = ""


class Differing(Value, frozen=True, kw_only=True):
    """A value that differs between the sides."""

    role: str
    """``input 0``, ``output 1``, ``gradient blocks.0.weight``."""
    dtype: str
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    sum_a: Number | None = None
    sum_b: Number | None = None
    largest_a: Number | None = None
    largest_b: Number | None = None
    error: Number | None = None
    """Norm of the difference over the norm of A's, estimated from both sketches; ``None`` if unknown."""
    explained: Number | None = None
    """Error that rounding explains; ``None`` if equality was required."""
    factor: Number | None = None
    """B is this many times A, within rounding; ``None`` if there is no such number."""


class Difference(Value, frozen=True, kw_only=True):
    """The first difference of one pair of ranks."""

    cause: Cause
    rank_a: Count
    rank_b: Count
    step_a: Count
    step_b: Count
    a: Place | None = None
    b: Place | None = None
    """``None`` on a side whose step ended before."""
    recorded: bool = True
    """Whether both sides recorded the ops of that step, and not its states alone."""
    before: Place | None = None
    """The last op that is equal, of A."""
    values: Annotated[tuple[Differing, ...], msgspec.Meta(max_length=MANY)] = ()
    values_left: Count = 0
    """Further differing values of the same op."""
    written_by: Place | None = None
    """The op of A that last wrote the memory of a value that changed unseen."""
    same_as_step: Count | None = None
    """Step of A that had B's data."""
    last_equal_step: Count | None = None
    """The step of A before, if its states are equal and its ops were not recorded: the difference may begin there."""


class Side(Value, frozen=True, kw_only=True):
    """A run."""

    source: str
    framework: str
    ranks: Count
    steps: Count
    sampled: Annotated[tuple[int, ...], msgspec.Meta(max_length=MANY)]
    """Steps whose ops were recorded, of the first rank."""


class Setting(Value, frozen=True, kw_only=True):
    """A setting or version that is not the same on both sides."""

    name: str
    a: str
    b: str


class Counts(msgspec.Struct, kw_only=True):
    """Numbers of compared things, over all ranks."""

    steps: Count = 0
    ops: Count = 0
    values: Count = 0
    unequal: Count = 0
    """Values that differ within what rounding explains."""
    unread: Count = 0
    """Differing results that no op reads, such as workspaces."""
    rows: bool = False
    """Whether first rows were compared in place of whole values."""


class FirstDifference(Value, frozen=True, kw_only=True):
    """The whole comparison."""

    schema: str
    a: Side
    b: Side
    tolerance: Literal["exact", "rounding"]
    mode: Mode
    """``first rows``: of each value, because the batches differ in size; ``gradients``: states before each step of the
    optimizer, because the sides divide a batch differently."""
    shift: int
    """Step of A less the step of B that it was compared with."""
    verdict: Literal["same", "differs"]
    first: Difference | None = None
    ranks: tuple[Difference, ...] = ()
    """First difference of each rank, ``first`` among them."""
    counts: Counts
    settings: tuple[Setting, ...] = ()
    notes: Texts = ()


def dump(document: FirstDifference) -> bytes:
    """The document as UTF-8 JSON, its texts without control characters, secrets and homes."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(document))), indent=1) + b"\n"


def load(path: Path) -> FirstDifference:
    """The document in a file. ``DataError`` in one line for anything else."""
    return read_document(path, FirstDifference, SCHEMA, what="a first difference", most_bytes=MOST_BYTES)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it."""
    return schema_of(FirstDifference, SCHEMA, what="The first difference between two runs")
