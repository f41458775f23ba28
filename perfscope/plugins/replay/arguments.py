"""Recorded inputs of an op as literals of a script: checked values only, no text of the trace."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

from perfscope.analyzers.ops import canonical_dtype
from perfscope.model.errors import UsageError

DTYPES: frozenset[str] = frozenset(
    {
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz", "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "bool",
    }
)  # fmt: skip
"""Names of torch dtypes that a script may contain."""
MOST_DIMENSIONS = 16
MOST_ELEMENTS = 2**40
"""Most elements of a tensor and of its storage. A larger one exceeds any device, or the file is corrupt."""

UNKNOWN = ("unknown",)
"""Nothing (``None``), or not recorded: a trace does not distinguish them."""

_NUMBERS = re.compile(r"(?:\[(?:[-+\d\s,.eE]|True|False){0,200}\]|[-+]?[\d.][-+\d.eE]{0,30}|True|False)")

Literal = tuple[Any, ...]


def parse_recorded(shapes: str, dtypes: str, strides: str, values: str) -> list[Literal]:
    """Inputs in order from the JSON texts of ``slices``; ``UsageError`` if they are invalid.

    Each is ``("tensor", dtype, shape, strides or None)``, ``("tensors", list of those)``, ``("value", number, truth
    value, or list of them)`` or ``UNKNOWN``.
    """
    sizes, kinds, steps, texts = (_json_list(text) for text in (shapes, dtypes, strides, values))
    if not sizes or len(sizes) != len(kinds):
        raise UsageError("replay: the input shapes of this op were not recorded (torch.profiler: record_shapes=True)")
    steps, texts = (column + [None] * (len(sizes) - len(column)) for column in (steps, texts))
    return list(map(_literal, sizes, kinds, steps, texts))


def _json_list(text: str) -> list[Any]:
    try:
        result = json.loads(text or "[]")
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, list):
        raise UsageError("replay: the recorded inputs of this op are not lists")
    return result


def _literal(size: Any, kind: Any, step: Any, text: Any) -> Literal:
    if kind == "TensorList":  # their dtype is never recorded
        kind = ["float"] * len(size) if isinstance(size, list) else []
    if isinstance(kind, list) and isinstance(size, list) and len(kind) == len(size):
        steps = step if isinstance(step, list) and len(step) == len(size) else [None] * len(size)
        return ("tensors", [_tensor(*each) for each in zip(size, kind, steps, strict=True)])
    if isinstance(kind, str) and canonical_dtype(kind) in DTYPES:
        return _tensor(size, kind, step)
    if isinstance(kind, str) and kind and kind[:6] != "Scalar" and size:
        raise UsageError("replay: a tensor of this op has no dtype that can be replayed")
    value = _value(text)
    return UNKNOWN if value is None else ("value", value)


def _tensor(size: Any, kind: Any, step: Any) -> Literal:
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
    return ("tensor", dtype, shape, strides)


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    if not all(type(each) is int and 0 <= each <= MOST_ELEMENTS for each in value):
        return None
    return tuple(value)


def _value(text: Any) -> Any:
    """A number, a truth value or a list of these; None for anything else."""
    if not isinstance(text, str) or not _NUMBERS.fullmatch(text.strip()):
        return None
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return None
    values = value if isinstance(value, list) else [value]
    return value if all(type(each) in (int, float, bool) and math.isfinite(each) for each in values) else None
