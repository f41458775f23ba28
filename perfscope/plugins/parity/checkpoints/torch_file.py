"""Checkpoints of `torch.save`, read and written without code: with ``weights_only``."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.model.errors import DataError
from perfscope.plugins.parity.checkpoints.safetensors import kinds_of
from perfscope.plugins.parity.checkpoints.stored import STORAGE, Checkpoint, Make, in_torch_names
from perfscope.plugins.parity.document import Weight

NESTED = ("state_dict", "model_state_dict", "model", "module")
"""Keys of a training state under which the model's state dict is."""

_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""dtypes that numpy lacks -> integers of their size, which both have."""


class _Arrays(Mapping[str, np.ndarray]):
    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> np.ndarray:
        import torch

        tensor = self._tensors[name].detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        bits = tensor.contiguous().view(getattr(torch, _BITS[dtype])) if dtype in _BITS else tensor
        array: np.ndarray = bits.numpy()
        return array.view(STORAGE[dtype]) if dtype in _BITS else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def open_torch(file: Path) -> Checkpoint:
    """The state dict in a file. ``DataError`` with one line if it is not one, needs code, or PyTorch is missing."""
    try:
        import torch
    except ImportError as error:
        raise DataError(f"{file}: a checkpoint of PyTorch; it is read with PyTorch: pip install torch") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols
            state: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    except Exception as error:  # unpickling code raises whatever it likes
        raise DataError(f"{file}: not read as a checkpoint of tensors alone: {type(error).__name__}") from error
    state = next((state[key] for key in NESTED if isinstance(state, dict) and isinstance(state.get(key), dict)), state)
    if not isinstance(state, dict):
        raise DataError(f"{file}: holds a {type(state).__name__}, not a state dict")
    tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    floats = {name: tensor for name, tensor in tensors.items() if dtypes[name] in STORAGE and not tensor.is_sparse}
    kinds = kinds_of({name: tuple(tensor.shape) for name, tensor in floats.items()})
    aliases = _aliases(floats)
    weights = tuple(
        Weight(name=name, shape=tuple(tensor.shape), dtype=dtypes[name], kind=kinds[name], aliases=tuple(aliases[name]))
        for name, tensor in floats.items()
        if name in aliases
    )
    ignored = tuple(sorted(tensors.keys() - floats.keys()))
    return Checkpoint(weights=weights, arrays=_Arrays(floats), torch=in_torch_names(list(floats)), ignored=ignored)


def _aliases(tensors: Mapping[str, Any]) -> dict[str, list[str]]:
    """First name of each tensor -> its other names. Tensors are one if their data is."""
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else (name,)
        if place in first:
            found[first[place]].append(name)
        else:
            first[place] = name
            found[name] = []
    return found


def write_torch(file: Path, specs: Sequence[Weight], make: Make) -> None:
    """Write a state dict that `torch.load` reads with ``weights_only``; all arrays are in memory. ``file``: a draft."""
    try:
        import torch
    except ImportError as error:
        raise DataError(f"{file.name}: a checkpoint of PyTorch is written with PyTorch: pip install torch") from error
    state: dict[str, Any] = {}
    for spec in specs:
        array = np.array(make(spec.name))
        tensor = torch.from_numpy(array.view(_BITS.get(spec.dtype, array.dtype)))
        tensor = tensor.view(getattr(torch, spec.dtype)) if spec.dtype in _BITS else tensor
        state |= dict.fromkeys((spec.name, *spec.aliases), tensor)
    torch.save(state, file)
