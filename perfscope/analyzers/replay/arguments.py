"""Recorded inputs of an op as arguments of a call: checked values only, never text of the trace."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

from msgspec import Struct

from perfscope.analyzers.ops import canonical_dtype
from perfscope.analyzers.replay.signatures import DTYPES
from perfscope.model.errors import UsageError

MOST_DIMENSIONS = 16
MOST_ELEMENTS = 2**40
"""Of a tensor and of its storage. More is no tensor of a device, or the file is corrupt."""

_NUMBERS = re.compile(r"\[[-+\d\s,.eE]{0,200}\]|[-+]?[\d.][-+\d.eE]{0,30}|True|False")


class Tensor(Struct, frozen=True):
    """A tensor argument."""

    shape: tuple[int, ...]
    dtype: str
    """One of ``DTYPES``."""
    strides: tuple[int, ...] | None
    """None: contiguous."""
    below: int | None = None
    """Indices: each element is less."""

    def literal(self) -> tuple[Any, ...]:
        """As the script holds it."""
        return ("tensor", self.dtype, self.shape, self.strides, self.below)


class Recorded(Struct, frozen=True):
    """One recorded input: one of the three, or none of them."""

    tensor: Tensor | None = None
    tensors: tuple[Tensor, ...] | None = None
    value: Any = None
    """A number, a truth value, a list of numbers; None: not recorded, or nothing."""
    assumed: bool = False
    """The dtype of a list of tensors is never recorded: float32 is taken."""


class Call(Struct, frozen=True):
    """Arguments of one call as literals."""

    positional: tuple[tuple[Any, ...], ...]
    named: dict[str, tuple[Any, ...]]
    chosen: tuple[int, ...]
    """Numbers of the parameters whose values were not recorded."""


def parse_recorded(shapes: str, dtypes: str, strides: str, values: str) -> tuple[Recorded, ...]:
    """Inputs in order from the JSON texts of ``slices``; ``UsageError`` where they are no inputs."""
    sizes, kinds, steps, texts = (_json_list(text) for text in (shapes, dtypes, strides, values))
    if not sizes or len(sizes) != len(kinds):
        raise UsageError("replay: the input shapes of this op were not recorded (torch.profiler: record_shapes=True)")
    steps, texts = (column + [None] * (len(sizes) - len(column)) for column in (steps, texts))
    return tuple(map(_recorded, sizes, kinds, steps, texts))


def bind(signature: str, recorded: tuple[Recorded, ...]) -> Call:
    """The call that the recorded inputs are of; ``UsageError`` where they do not fit the signature."""
    head, _, tail = signature.partition(";")
    positional: list[tuple[Any, ...]] = []
    chosen = []
    for index, kind in enumerate(head.split()):
        given = recorded[index] if index < len(recorded) else Recorded()
        if index >= len(recorded) and kind not in ("T", "L", "?") and kind[0] != "I":
            break
        literal, known = _argument(kind, given, recorded)
        positional.append(literal)
        if not known:
            chosen.append(index)
    named = {}
    for offset, text in enumerate(tail.split()):
        name, _, default = text.partition("=")
        index = len(head.split()) + offset
        value = recorded[index].value if index < len(recorded) else None
        named[name] = ("value", ast.literal_eval(default) if value is None else value)
        if value is None and index < len(recorded):
            chosen.append(index)
    return Call(positional=tuple(positional), named=named, chosen=tuple(chosen))


def _argument(kind: str, given: Recorded, recorded: tuple[Recorded, ...]) -> tuple[tuple[Any, ...], bool]:
    """(literal, whether it was recorded)."""
    if kind == "O" and given.tensor is None:
        return ("value", None), True
    if kind in ("T", "O", "B") and given.tensor is not None:
        return given.tensor.literal(), True
    if kind == "L" and given.tensors:
        return ("list", [tensor.literal() for tensor in given.tensors]), not given.assumed
    if kind[0] == "I" and given.tensor is not None:
        tensor = given.tensor
        return Tensor(tensor.shape, tensor.dtype, tensor.strides, _bound(kind, recorded)).literal(), True
    if kind[0] == "@":
        owner = recorded[int(kind[1:])].tensor if int(kind[1:]) < len(recorded) else None
        if owner is not None:
            return ("value", list(owner.shape)), True
    if kind == "B":
        return ("value", 2 if given.value is None else given.value), given.value is not None
    if given.value is not None and kind[0] in "?=":
        return ("value", given.value), True
    if kind[0] == "=":
        return ("value", ast.literal_eval(kind[1:])), False
    raise UsageError("replay: an input of this op was not recorded, or is of another kind than the op takes")


def _bound(kind: str, recorded: tuple[Recorded, ...]) -> int:
    """Size that indices stay below: see `signatures`."""
    if kind.startswith("I="):
        value = recorded[int(kind[2:])].value
        if isinstance(value, int) and value > 0:
            return value
        raise UsageError("replay: the number of rows that the indices go to was not recorded")
    match = re.fullmatch(r"I(\d)(?:\.(\d)|@(\d))?", kind)
    assert match is not None
    tensor = recorded[int(match[1])].tensor
    dimension: Any = int(match[2] or 0) if match[3] is None else recorded[int(match[3])].value
    if tensor is None or not isinstance(dimension, int) or not -len(tensor.shape) <= dimension < len(tensor.shape):
        raise UsageError("replay: the tensor that the indices go to was not recorded")
    return max(tensor.shape[dimension], 1)


def _json_list(text: str) -> list[Any]:
    try:
        result = json.loads(text or "[]")
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, list):
        raise UsageError("replay: the recorded inputs of this op are no lists")
    return result


def _recorded(size: Any, kind: Any, step: Any, text: Any) -> Recorded:
    assumed = kind == "TensorList"
    if assumed:
        kind = ["float"] * len(size) if isinstance(size, list) else []
    if isinstance(kind, list) and isinstance(size, list) and len(kind) == len(size):
        steps = step if isinstance(step, list) and len(step) == len(size) else [None] * len(size)
        tensors = tuple(_tensor(*each) for each in zip(size, kind, steps, strict=True))
        return Recorded(tensors=tensors, assumed=assumed)
    if isinstance(kind, str) and canonical_dtype(kind) in DTYPES:
        return Recorded(tensor=_tensor(size, kind, step))
    return Recorded(value=_value(text))


def _tensor(size: Any, kind: Any, step: Any) -> Tensor:
    dtype = canonical_dtype(kind) if isinstance(kind, str) else ""
    shape = _sizes(size)
    if dtype not in DTYPES or shape is None:
        raise UsageError("replay: a tensor of this op has no shape or dtype that can be replayed")
    strides = _sizes(step)
    if strides is None or len(strides) != len(shape):
        strides = None
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides or (), strict=False) if extent)
    if max(math.prod(shape), reach) > MOST_ELEMENTS:
        raise UsageError("replay: a tensor of this op is larger than any device")
    return Tensor(shape, dtype, strides)


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    if not all(type(each) is int and 0 <= each <= MOST_ELEMENTS for each in value):
        return None
    return tuple(value)


def _value(text: Any) -> Any:
    """A number, a truth value or a list of numbers; None for anything else."""
    if not isinstance(text, str) or not _NUMBERS.fullmatch(text.strip()):
        return None
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return None
    numbers = value if isinstance(value, list) else [value]
    return value if all(type(each) in (int, float, bool) and math.isfinite(each) for each in numbers) else None
