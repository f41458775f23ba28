"""An ONNX model as a program to plan: onnx2torch converts it, and it is called with inputs of its shapes.

Run as ``python -m perfscope.plugins.ahead.torch.onnx_program FILE [NAME=SIZE ...]``, only in the child, whose tensors
have no data. Sizes that the model leaves open have names (``batch``), and are given after the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CALLS = 4
"""The planner ignores the first ones."""

OPS_VERSION = 13
"""Version of ONNX's ops that older models are converted to."""


def main(path: str, sizes: Mapping[str, int]) -> None:
    """Call the converted model; ``SystemExit`` with one line for a model that is corrupt or cannot be converted."""
    import torch

    from perfscope.plugins.ahead.torch.onnx_graph import with_weights

    with ThreadPoolExecutor(max_workers=1) as other:  # modes are per thread: conversion reads values of constants
        graph, inputs = other.submit(_converted, path, sizes).result()
    model = with_weights(graph)
    arguments = [torch.empty(shape, dtype=dtype) for shape, dtype in inputs]
    with torch.no_grad():
        for _ in range(CALLS):
            model(*arguments)


def _converted(path: str, sizes: Mapping[str, int]) -> tuple[Any, list[tuple[list[int], Any]]]:
    """Return the graph, and shape and dtype of each input."""
    import onnx
    import onnx2torch

    from perfscope.plugins.ahead.torch.onnx_graph import graph_of
    from perfscope.plugins.ahead.torch.onnx_shapes import folded

    try:
        model = onnx.load(path)
    except Exception as error:  # of protobuf, or of files with weights that are missing
        raise SystemExit(f"not an ONNX model that can be read: {_first_line(error)}") from None
    inputs = _inputs(model, sizes)
    try:
        sized = folded(_newer(model), [shape for shape, _ in inputs])
    except Exception as error:  # of onnx's C++, which has no common type
        raise SystemExit(f"ONNX cannot infer the shapes of this model: {_first_line(error)}") from None
    try:
        module = onnx2torch.convert(sized).eval()
        return graph_of(module, inputs), inputs
    except Exception as error:  # of the converter, which has no common type
        raise SystemExit(f"onnx2torch cannot convert it: {_first_line(error)}") from None


def _newer(model: Any) -> Any:
    """Convert the ops of an old model to a version that onnx2torch covers better, where ONNX can do this."""
    import onnx

    version = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), OPS_VERSION)
    if version >= OPS_VERSION:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPS_VERSION)
    except Exception:  # of C++, which has no common type
        return model


def _inputs(model: Any, sizes: Mapping[str, int]) -> list[tuple[list[int], Any]]:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    open_sizes: dict[str, None] = {}
    made = []
    for value in inputs:
        tensor = value.type.tensor_type
        shape = []
        for place, size in enumerate(tensor.shape.dim):
            name = size.dim_param or f"{value.name}.{place}"
            number = size.dim_value if size.HasField("dim_value") else sizes.get(name, 0)
            if number <= 0:
                open_sizes[name] = None
            shape.append(number)
        made.append((shape, _dtype(value.name, tensor.elem_type)))
    if open_sizes:
        words = " ".join(f"{name}=1" for name in open_sizes)
        raise SystemExit(f"its inputs have open sizes: give them after the file, e.g. {words}")
    return made


def _dtype(name: str, kind: int) -> Any:
    """Return torch's dtype of a kind of ONNX."""
    import onnx
    import torch

    try:
        return getattr(torch, _NAMES.get(kind) or str(onnx.helper.tensor_dtype_to_np_dtype(kind)))
    except (AttributeError, KeyError, TypeError):
        raise SystemExit(f"input {name} is not of a type of tensor that PyTorch has") from None


_NAMES = {16: "bfloat16", 9: "bool"}
"""Kinds whose type has another name in numpy."""


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def sizes_of(words: Sequence[str]) -> dict[str, int]:
    """Return the sizes of ``NAME=SIZE`` words."""
    pairs = (word.rpartition("=") for word in words)
    return {name: int(size) for name, _, size in pairs if size.isdecimal()}


if __name__ == "__main__":
    main(sys.argv[1], sizes_of(sys.argv[2:]))
