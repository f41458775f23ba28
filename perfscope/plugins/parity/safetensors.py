"""Reads a safetensors file: a JSON header, then the arrays (https://github.com/huggingface/safetensors#format)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from perfscope.model.errors import DataError
from perfscope.plugins.parity.document import Arrays, Kind, Weight

MOST_HEADER = 100 << 20
"""Most bytes of a header; the limit of the format."""
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_EMBEDDING = re.compile(r"embed|wte|wpe", re.IGNORECASE)


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_safetensors(file: Path) -> tuple[list[Weight], Arrays]:
    """Floating-point arrays of a file, 16-bit ones widened to float32, as weights of a PyTorch state dict.

    ``DataError`` with one line if it is missing, is not a safetensors file, or its header does not match its data.
    """
    try:
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: not a regular file")
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 2 <= size <= MOST_HEADER:
                raise DataError(f"{file}: not a safetensors file")
            text = stream.read(size)
            if len(text) < size:
                raise DataError(f"{file}: not a safetensors file, or cut off")
            header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            data = np.frombuffer(stream.read(), np.uint8)
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
        _check_offsets(file, entries.values(), len(data))
        arrays = {name: _array(entry, data) for name, entry in entries.items() if entry.dtype in _DTYPES}
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{file}: not a safetensors file, or cut off") from error
    weights = [
        Weight(name=name, shape=array.shape, dtype=_NAMES[entries[name].dtype], kind=_kind(name, array.ndim))
        for name, array in arrays.items()
    ]
    return weights, arrays


def _check_offsets(file: Path, entries: Iterable[_Entry], size: int) -> None:
    """``DataError`` unless the arrays fill the ``size`` bytes of data without gaps, as the format requires."""
    position = 0
    for begin, end in sorted(entry.data_offsets for entry in entries):
        if begin != position or end < begin:
            raise DataError(f"{file}: the arrays in its header overlap or leave gaps in the data")
        position = end
    if position != size:
        raise DataError(f"{file}: its header describes {position:,} bytes of data, the file has {size:,}")


def _array(entry: _Entry, data: np.ndarray) -> np.ndarray:
    begin, end = entry.data_offsets
    if (
        min(entry.shape, default=0) < 0
        or end - begin != math.prod(entry.shape) * np.dtype(_DTYPES[entry.dtype]).itemsize
    ):
        raise ValueError(entry.shape)
    flat = data[begin:end].view(_DTYPES[entry.dtype])
    if entry.dtype == "BF16":
        flat = (flat.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif entry.dtype == "F16":
        flat = flat.astype(np.float32)
    return flat.reshape(entry.shape)


def _kind(name: str, axes: int) -> Kind:
    if axes < 2:
        return ""
    return "conv" if axes > 2 else "embedding" if _EMBEDDING.search(name) else "linear"
