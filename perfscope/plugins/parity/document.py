"""Files of `perfscope parity`: the recording of one run of a model, and the document ``perfscope.parity/1``.

A recording is a folder with ``recording.json`` and ``arrays.npz``. Keys of its arrays: ``layer:N`` and ``gradient:N``
(of the output of layer N), ``op:N`` (the result of op N, as far as their sizes allow), ``input:N``, ``weight:NAME`` and
``weight_gradient:NAME``. Arrays are float32 or float64;
narrower values were widened, which is exact.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from perfscope.model.documents.bounded_json import MANY, Count, Number, Texts, Value, read_document, schema_of
from perfscope.model.documents.trail import Layer, Op
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.parity/1"
RECORDING_SCHEMA = "perfscope.parity-recording/1"
FILE = "parity.json"
RECORDING = "recording.json"
ARRAYS = "arrays.npz"
MOST_BYTES = 256 << 20

Arrays = dict[str, np.ndarray]
Kind = Literal["linear", "linear_in_out", "conv", "embedding", "buffer", ""]
"""How the module that owns a weight uses it; ``''``: unknown. ``linear``: (out, in), ``linear_in_out``:
(in, out), ``conv``: (out, in, *space)."""


class Weight(Value, frozen=True, kw_only=True):
    """A named array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind = ""
    aliases: Texts = ()
    """Other names of the same array (tied weights)."""
    heads: str = ""
    """``"Q/G"``: a fused projection whose query, key and value alternate per group (`heads`)."""


class Recording(Value, frozen=True, kw_only=True):
    """One run of a model, forward and backward."""

    schema: str
    framework: str
    version: str
    device: str
    dtype: str
    weights: tuple[Weight, ...]
    layers: Annotated[tuple[Layer, ...], msgspec.Meta(max_length=MANY)]
    ops: Annotated[tuple[Op, ...], msgspec.Meta(max_length=MANY)] = ()
    outputs: Count = 1
    notes: Texts = ()


def save_recording(folder: Path, recording: Recording, arrays: Arrays) -> None:
    """Write a recording into ``folder``, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
    (folder / RECORDING).write_bytes(msgspec.json.encode(recording))


def load_recording(folder: Path) -> tuple[Recording, Arrays]:
    """Read the recording in a folder. ``DataError`` in one line if it is missing, corrupt or of another schema."""
    recording = read_document(
        folder / RECORDING, Recording, RECORDING_SCHEMA, what="a recording of a model", most_bytes=MOST_BYTES
    )
    return recording, load_arrays(folder / ARRAYS)


def load_arrays(file: Path) -> Arrays:
    """Arrays of an ``.npz`` file by name, without pickles. ``DataError`` where it cannot be read."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: not readable as arrays: {error}") from error


def inputs_by_key(inputs: Sequence[np.ndarray]) -> Arrays:
    """Inputs by the keys of a recording."""
    return {f"input:{number}": value for number, value in enumerate(inputs)}


def inputs_of(arrays: Arrays) -> list[np.ndarray]:
    """The inputs among the arrays of a recording."""
    return [arrays[f"input:{number}"] for number in range(sum(name.startswith("input:") for name in arrays))]


class SideSummary(Value, frozen=True, kw_only=True):
    """One of the two that are compared."""

    source: str
    """``model.py:torch_model`` or the folder of a recording."""
    framework: str
    version: str
    device: str
    dtype: str
    layers: Count
    """Layers that it recorded."""


RowKind = Literal["activation", "gradient", "weight", "weight gradient", "update"]


class Row(Value, frozen=True, kw_only=True):
    """A layer of both sides, in the order of the forward (gradients: of the backward)."""

    name: str
    kind: RowKind
    diverges: bool
    error_a: Number | None
    """Error of A against the reference, relative norm. ``None``: not finite, or of another size."""
    error_b: Number | None
    """Error of B against the reference."""
    expected: Number
    """The largest error that rounding explains, of the side that the reference is not of."""
    cosine: Number | None = None
    """Cosine between that side and the reference."""
    max_ulp: Number | None = None
    """Largest difference of an element from the reference, in units in the last place of that side's dtype."""
    dtype: str = ""
    """dtype of that side."""
    op_a: str = ""
    op_b: str = ""
    line_a: str = ""
    line_b: str = ""
    remark: str = ""
    regrouped: bool = False
    """One side has the value of the layer at a later op, and all later layers agree: no divergence."""


class Divergence(Value, frozen=True, kw_only=True):
    """The first layer in which the sides differ."""

    row: Row
    after: str = ""
    """The last layer before it that agrees; ``''``: no layer does."""
    common_a: str = ""
    common_b: str = ""
    """The last op of each side, between both layers, whose result both have: ``'bmm at model.py:38'``."""
    next_a: str = ""
    next_b: str = ""
    """The next op of each side."""
    exact: bool = True
    """Ops can be distinguished: by their values, or the dtype is exact enough for norms and sums."""
    lines_a: Texts = ()
    lines_b: Texts = ()
    """Lines of each side, from the first layer of the same module up to this one, that may hold the difference: with
    results that the other side lacks; all of them where not ``exact``."""


class Mapping(Value, frozen=True, kw_only=True):
    """A weight of A and where it went in B."""

    a: str
    b: str
    layout: str
    by: Literal["name", "order", "option"]


class OptimizerSetting(Value, frozen=True, kw_only=True):
    """A setting of the optimizers, as it was measured."""

    name: str
    a: str
    b: str
    same: bool


class OptimizerGroup(Value, frozen=True, kw_only=True):
    """Weights of A that both optimizers update with the same settings."""

    weights: Texts
    settings: tuple[OptimizerSetting, ...]


class Parity(Value, frozen=True, kw_only=True):
    """All of `perfscope parity`."""

    schema: str
    created_utc: str
    a: SideSummary
    b: SideSummary
    reference: str
    """``'A in float64'``."""
    verdict: Literal["same", "diverges", "not compared"]
    first: Divergence | None = None
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=MANY)] = ()
    mappings: tuple[Mapping, ...] = ()
    optimizers: Annotated[tuple[OptimizerGroup, ...], msgspec.Meta(max_length=MANY)] = ()
    unmatched_a: Texts = ()
    unmatched_b: Texts = ()
    """Layers of one side only; whatever is wrong in them shows in the next layer of both."""
    notes: Texts = ()


def dump(document: Parity) -> bytes:
    """The document as UTF-8 JSON, its texts without control characters, secrets and homes."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(document))), indent=1) + b"\n"


def load(path: Path) -> Parity:
    """The document in a file or in the folder of a comparison. ``DataError`` in one line for whatever else."""
    file = path / FILE if path.is_dir() else path
    return read_document(file, Parity, SCHEMA, what="a comparison of two models", most_bytes=MOST_BYTES)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it."""
    return schema_of(Parity, SCHEMA, what="Two models, compared layer by layer")
