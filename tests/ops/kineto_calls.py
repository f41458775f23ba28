"""Calls of torch ops written down as Kineto records them: shapes, types, strides and values by position, JSON text."""

from __future__ import annotations

import json
from typing import Any

_TYPES = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "int64": "long int",
    "int32": "int", "bool": "bool", "int8": "signed char", "uint8": "unsigned char",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
}  # fmt: skip


def recorded(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """(name, shapes, dtypes, strides, values) of a call of an overload such as ``torch.ops.aten.mm.default``."""
    columns: list[tuple[Any, str, Any, str]] = []
    for index, argument in enumerate(op._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
        columns.append(_column(value))
    name = op._schema.name
    shapes, dtypes, strides, values = (list(column) for column in zip(*columns, strict=True))
    return name, json.dumps(shapes), json.dumps(dtypes), json.dumps(strides), json.dumps(values)


def _column(value: Any) -> tuple[Any, str, Any, str]:
    import torch

    if isinstance(value, torch.Tensor):
        return list(value.shape), _TYPES[str(value.dtype).removeprefix("torch.")], list(value.stride()), ""
    if isinstance(value, list | tuple) and value and all(isinstance(item, torch.Tensor) for item in value):
        return [list(item.shape) for item in value], "TensorList", [list(item.stride()) for item in value], ""
    if value is None:
        return [], "", [], ""
    if isinstance(value, torch.dtype):
        return [], "Scalar", [], str({torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}[value])
    if isinstance(value, list | tuple):
        return [], "ScalarList", [], str(list(value))
    return [], "Scalar", [], str(value)
