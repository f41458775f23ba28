"""Safetensors files: a JSON header, then the arrays (https://github.com/huggingface/safetensors#format).

A checkpoint of several files has an index, ``{"weight_map": {name: file}}``, as Hugging Face writes it. Files are
mapped into memory, so that an array is read when it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope.model.errors import DataError
from perfscope.plugins.parity.checkpoints.stored import STORAGE, Checkpoint, Make, in_torch_names, stored_bytes, widened
from perfscope.plugins.parity.document import Arrays, Kind, Weight

MOST_HEADER = 100 << 20
"""Most bytes of a header; the limit of the format."""
MOST_INDEX = 256 << 20
INDEX = ".safetensors.index.json"
_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_CODES = {name: code for code, name in _NAMES.items()}
_EMBEDDING = re.compile(r"embed|wte|wpe", re.IGNORECASE)
_FUSED_IN_OUT = re.compile(r"(.*)c_attn\.weight")
"""The fused projection of GPT-2: three times as wide as high in its `Conv1D`, the other way round in an `nn.Linear`."""
_IN_OUT = re.compile(r".*\bc_(attn|proj|fc)\.weight")
_ALIGN = 8
"""The header's size is a multiple of this, so that arrays begin at a multiple of their element's size."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Arrays(Mapping[str, np.ndarray]):
    """Arrays of files that are mapped into memory."""

    def __init__(self, places: dict[str, tuple[np.ndarray, _Entry]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        data, entry = self._places[name]
        begin, end = entry.data_offsets
        return data[begin:end].view(STORAGE[_NAMES[entry.dtype]]).reshape(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def open_safetensors(path: Path) -> Checkpoint:
    """The checkpoint in a file, in the files of an index, or in a folder with either.

    ``DataError`` with one line if a file is missing, is not a safetensors file, or its header does not match its data.
    """
    file = _main_file(path) if path.is_dir() else path
    places: dict[str, tuple[np.ndarray, _Entry]] = {}
    if file.name.endswith(".json"):
        wanted = _read_index(file)
        for shard in dict.fromkeys(wanted.values()):
            entries, data = _read_file(file.parent / shard)
            missing = [name for name, holder in wanted.items() if holder == shard and name not in entries]
            if missing:
                raise DataError(f"{file}: {missing[0]} is not in {shard}")
            places |= {name: (data, entry) for name, entry in entries.items() if wanted.get(name) == shard}
    else:
        entries, data = _read_file(file)
        places = {name: (data, entry) for name, entry in entries.items()}
    floats = {name: place for name, place in places.items() if place[1].dtype in _NAMES}
    in_torch = in_torch_names(list(places))
    kinds = kinds_of({name: entry.shape for name, (_, entry) in floats.items()}) if in_torch else {}
    weights = tuple(
        Weight(name=name, shape=entry.shape, dtype=_NAMES[entry.dtype], kind=kinds.get(name, ""))
        for name, (_, entry) in floats.items()
    )
    ignored = tuple(sorted(places.keys() - floats.keys()))
    return Checkpoint(weights=weights, arrays=_Arrays(floats), torch=in_torch, ignored=ignored)


def read_safetensors(file: Path) -> tuple[list[Weight], Arrays]:
    """Weights of a checkpoint and their values, 16-bit ones widened to float32. Errors: those of `open_safetensors`."""
    opened = open_safetensors(file)
    return list(opened.weights), {each.name: widened(opened.arrays[each.name], each.dtype) for each in opened.weights}


def holds_safetensors(folder: Path) -> bool:
    """Whether a folder has a safetensors file or an index."""
    return any(folder.glob(f"*{INDEX}")) or any(folder.glob("*.safetensors"))


def _main_file(folder: Path) -> Path:
    found = sorted(folder.glob(f"*{INDEX}")) or sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise DataError(f"{folder}: {len(found)} safetensors files and no index; name one of them")
    return found[0]


def _read_index(file: Path) -> dict[str, str]:
    try:
        with file.open("rb") as stream:
            text = stream.read(MOST_INDEX + 1)
        if len(text) > MOST_INDEX:
            raise DataError(f"{file}: larger than {MOST_INDEX:,} bytes")
        found = msgspec.json.decode(text, type=_Index).weight_map
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file}: not an index of safetensors files") from error
    outside = next((shard for shard in found.values() if Path(shard).name != shard or shard in ("", "..")), None)
    if outside is not None:
        raise DataError(f"{file}: {outside}: a file of an index must be in its folder")
    return found


def _read_file(file: Path) -> tuple[dict[str, _Entry], np.ndarray]:
    """The header of a file and its data, mapped into memory."""
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
            length = file.stat().st_size - 8 - size
            mapped: Any = np.memmap(stream, np.uint8, "r", 8 + size) if length else np.empty(0, np.uint8)
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
        _check_offsets(file, entries.values(), length)
        for entry in entries.values():
            _check_entry(entry)
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{file}: not a safetensors file, or cut off") from error
    return entries, np.asarray(mapped)


def _check_offsets(file: Path, entries: Iterable[_Entry], size: int) -> None:
    """``DataError`` unless the arrays fill the ``size`` bytes of data without gaps, as the format requires."""
    position = 0
    for begin, end in sorted(entry.data_offsets for entry in entries):
        if begin != position or end < begin:
            raise DataError(f"{file}: the arrays in its header overlap or leave gaps in the data")
        position = end
    if position != size:
        raise DataError(f"{file}: its header describes {position:,} bytes of data, the file has {size:,}")


def _check_entry(entry: _Entry) -> None:
    begin, end = entry.data_offsets
    if entry.dtype not in _NAMES:
        return
    size = math.prod(entry.shape) * np.dtype(STORAGE[_NAMES[entry.dtype]]).itemsize
    if min(entry.shape, default=0) < 0 or end - begin != size:
        raise ValueError(entry.shape)


def kinds_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Kind]:
    """How weights of a state dict are used, by their names and shapes."""
    fused = (shape for name, shape in shapes.items() if _FUSED_IN_OUT.fullmatch(name) and len(shape) == 2)
    gpt2 = any(shape[1] == 3 * shape[0] for shape in fused)
    return {
        name: "linear_in_out" if gpt2 and len(shape) == 2 and _IN_OUT.fullmatch(name) else _kind(name, len(shape))
        for name, shape in shapes.items()
    }


def _kind(name: str, axes: int) -> Kind:
    if axes < 2:
        return ""
    if axes > 2:
        return "" if axes == 3 and "expert" in name else "conv"
    return "embedding" if _EMBEDDING.search(name) else "linear"


def write_safetensors(file: Path, specs: Sequence[Weight], make: Make, *, torch: bool) -> None:
    """Write arrays one after the other into ``file``, which must be a draft: it is incomplete until this returns."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt" if torch else "np"}}
    position = 0
    for spec in specs:
        entries[spec.name] = _Entry(_CODES[spec.dtype], spec.shape, (position, position + stored_bytes(spec)))
        position += stored_bytes(spec)
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % _ALIGN)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for spec in specs:
            array = make(spec.name)
            if array.shape != spec.shape or array.nbytes != stored_bytes(spec):
                raise ValueError(f"{spec.name} is {array.shape}, not {spec.shape}")
            stream.write(np.ascontiguousarray(array).data)


def shards(specs: Sequence[Weight], most_bytes: int) -> list[list[Weight]]:
    """The arrays in groups of at most ``most_bytes``, in order; a larger array alone."""
    groups: list[list[Weight]] = [[]]
    size = 0
    for spec in specs:
        if groups[-1] and size + stored_bytes(spec) > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(spec)
        size += stored_bytes(spec)
    return groups
