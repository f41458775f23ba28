"""Makes constants of the shapes that an ONNX model computes: its tensors have no values while it is planned.

With numbers for all sizes of its inputs, ONNX's shape inference finds the shape of most values. ``Shape`` of these is
a constant, and small ops (``Gather``, ``Concat``, ``Mul`` ...) on constants give constants too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_ELEMENTS = 4096
"""Most elements of a value that is computed: shapes, indices and masks of positions, and no weights."""

MOST_ROUNDS = 8
"""Most rounds of inference: the constants of one round give the next one more shapes."""

_FOLDED = frozenset(
    {
        "Add", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather",
        "Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Range", "ReduceProd", "Reshape",
        "Shape", "Size", "Slice", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip


def folded(model: Any, shapes: Sequence[Sequence[int]]) -> Any:
    """Return a model with numbers for its inputs' sizes, and constants for the shapes that it computes."""
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    for value, shape in zip(inputs, shapes, strict=True):
        for size, number in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            size.dim_value = number
    for _ in range(MOST_ROUNDS):
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        if not _fold(model, inferred):
            break
    return model


def _fold(model: Any, inferred: Any) -> int:
    """Replace nodes with known values by constants; the number of nodes."""
    import onnx

    graph = model.graph
    shapes = {value.name: _shape(value) for value in (*inferred.graph.value_info, *inferred.graph.input)}
    shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    known = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if np.prod(tensor.dims, initial=1) <= MOST_ELEMENTS
    }
    results = {value.name for value in graph.output}
    left, made = [], 0
    for node in graph.node:
        value = None if results & set(node.output) else _value(node, known, shapes, model.opset_import)
        if value is None:
            left.append(node)
            continue
        known[node.output[0]] = value
        graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
        made += 1
    del graph.node[:]
    graph.node.extend(left)
    return made


def _value(node: Any, known: dict[str, Any], shapes: dict[str, list[int] | None], versions: Any) -> Any:
    """Return the value of a node's output, None if it is unknown or too large."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    if node.op_type not in _FOLDED or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if math.prod(shapes.get(node.output[0]) or ()) > MOST_ELEMENTS:
        return None
    given: dict[str, Any] = {name: known.get(name) for name in node.input if name}
    if node.op_type in ("Shape", "Size") and given:
        shape = shapes.get(node.input[0])
        if shape is None:
            return None
        given = {node.input[0]: np.broadcast_to(np.float32(0), shape)}  # takes no memory
    if any(value is None for value in given.values()):
        return None
    alone = onnx.helper.make_graph(
        [node], "one", [onnx.helper.make_tensor_value_info(name, _kind(value), value.shape) for name, value in
                        given.items()], [onnx.helper.make_empty_tensor_value_info(node.output[0])],
    )  # fmt: skip
    try:
        (value,) = ReferenceEvaluator(onnx.helper.make_model(alone, opset_imports=versions)).run(None, given)
    except Exception:  # what the evaluator cannot compute stays a node
        return None
    value = np.asarray(value)
    return value if value.size <= MOST_ELEMENTS else None


def _kind(value: Any) -> int:
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype))


def _shape(value: Any) -> list[int] | None:
    """Return the shape of a value if all its sizes are numbers."""
    tensor = value.type.tensor_type
    sizes = [size.dim_value for size in tensor.shape.dim if size.HasField("dim_value")]
    return sizes if tensor.HasField("shape") and len(sizes) == len(tensor.shape.dim) else None
