"""Attributes of ``HloInstructionProto`` as HLO text spells them, so that both sources say the same.

What is not here is not in our trimmed proto either (literals, named shardings, result accuracy, statistics).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perfscope.analyzers.hlo.proto_shape import shape_text
from perfscope.analyzers.hlo.proto_sharding import sharding_text

_DIMENSIONAL = frozenset(
    {
        "broadcast", "concatenate", "transpose", "reduce", "reverse", "map", "sort", "all-gather", "all-gather-start",
        "reduce-scatter", "get-dimension-size", "set-dimension-size", "fft-dimensions",
    }
)  # fmt: skip
"""Opcodes whose ``dimensions`` are written even where they are empty."""
_PRECISIONS = {0: "default", 1: "high", 2: "highest"}
_FLAGS = (
    "is_stable", "indices_are_sorted", "unique_indices", "use_global_device_ids", "custom_call_has_side_effect",
)  # fmt: skip


def attributes_of(proto: Any, names: Mapping[int, str]) -> dict[str, str]:
    """Every attribute we know of an instruction; ``names``: names of the computation's instructions by id."""
    found: dict[str, str] = {}
    for field, write in _MESSAGES.items():
        if proto.HasField(field):
            found.update(write(getattr(proto, field), proto))
    if proto.opcode == "iota":
        found["iota_dimension"] = str(proto.dimensions[0] if proto.dimensions else 0)
    elif proto.dimensions or proto.opcode in _DIMENSIONAL:
        found["dimensions"] = braced(proto.dimensions)
    if proto.opcode == "get-tuple-element":
        found["index"] = str(proto.tuple_index)
    if proto.slice_dimensions:
        found["slice"] = _slices(proto.slice_dimensions)
    if proto.opcode == "dynamic-slice":
        found["dynamic_slice_sizes"] = braced(proto.dynamic_slice_sizes)
    if proto.opcode == "gather":
        found["slice_sizes"] = braced(proto.gather_slice_sizes)
    if proto.opcode == "fft":
        found["fft_type"] = ("FFT", "IFFT", "RFFT", "IRFFT")[proto.fft_type & 3]
        found["fft_length"] = braced(proto.fft_length)
    if proto.comparison_direction:
        found["direction"] = proto.comparison_direction
    if proto.source_target_pairs:
        found["source_target_pairs"] = (
            "{" + ",".join(f"{{{p.source},{p.target}}}" for p in proto.source_target_pairs) + "}"
        )
    for count in ("feature_group_count", "batch_group_count"):
        if getattr(proto, count) > 1:
            found[count] = str(getattr(proto, count))
    found.update({flag: "true" for flag in _FLAGS if getattr(proto, flag)})
    found.update(_structure(proto, names))
    return found


def braced(numbers: Iterable[int]) -> str:
    """``{0,2,1}``."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _structure(proto: Any, names: Mapping[int, str]) -> dict[str, str]:
    """What ties an instruction to others: control edges, aliases, layouts of operands, the thread it runs on."""
    found = {}
    sharding = sharding_text(proto.sharding) if proto.HasField("sharding") else None
    if sharding is not None:
        found["sharding"] = sharding
    if proto.control_predecessor_ids:
        before = (names.get(one) for one in proto.control_predecessor_ids)
        found["control-predecessors"] = "{" + ", ".join(f"%{name}" for name in before if name is not None) + "}"
    if proto.output_operand_aliasing:
        found["output_to_operand_aliasing"] = "{" + ", ".join(map(_alias, proto.output_operand_aliasing)) + "}"
    if proto.constrain_layout:
        found["operand_layout_constraints"] = "{" + ", ".join(map(shape_text, proto.operand_shapes_with_layout)) + "}"
    if proto.async_execution_thread not in ("", "main"):
        found["async_execution_thread"] = f'"{proto.async_execution_thread}"'
    return found


def _alias(alias: Any) -> str:
    source = f"({alias.operand_index}, {_spaced(alias.operand_shape_index)})"
    return f"{_spaced(alias.output_shape_index)}: {source}"


def _spaced(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def _slices(dimensions: Iterable[Any]) -> str:
    slices = list(dimensions)
    strided = any(one.stride != 1 for one in slices)
    return "{" + ", ".join(f"[{s.start}:{s.limit}{f':{s.stride}' if strided else ''}]" for s in slices) + "}"


def _dot(dot: Any, _: Any) -> dict[str, str]:
    written = {
        "lhs_batch_dims": dot.lhs_batch_dimensions,
        "lhs_contracting_dims": dot.lhs_contracting_dimensions,
        "rhs_batch_dims": dot.rhs_batch_dimensions,
        "rhs_contracting_dims": dot.rhs_contracting_dimensions,
    }
    return {key: braced(dims) for key, dims in written.items() if dims or key.endswith("contracting_dims")}


def _ragged(ragged: Any, proto: Any) -> dict[str, str]:
    return {
        **_dot(ragged.dot_dimension_numbers, proto),
        "lhs_ragged_dims": braced(ragged.lhs_ragged_dimensions),
        "rhs_group_dims": braced(ragged.rhs_group_dimensions),
    }


def _padding(padding: Any, _: Any) -> dict[str, str]:
    interior = any(one.interior_padding for one in padding.dimensions)
    edges = [
        f"{one.edge_padding_low}_{one.edge_padding_high}" + (f"_{one.interior_padding}" if interior else "")
        for one in padding.dimensions
    ]
    return {"padding": "x".join(edges)}


def _window(window: Any, _: Any) -> dict[str, str]:
    dims = window.dimensions
    if not dims:
        return {}
    written = [f"size={'x'.join(str(one.size) for one in dims)}"]
    if any(one.stride != 1 for one in dims):
        written.append(f"stride={'x'.join(str(one.stride) for one in dims)}")
    if any(one.padding_low or one.padding_high for one in dims):
        written.append(f"pad={'x'.join(f'{one.padding_low}_{one.padding_high}' for one in dims)}")
    if any(one.base_dilation != 1 for one in dims):
        written.append(f"lhs_dilate={'x'.join(str(one.base_dilation) for one in dims)}")
    if any(one.window_dilation != 1 for one in dims):
        written.append(f"rhs_dilate={'x'.join(str(one.window_dilation) for one in dims)}")
    if any(one.window_reversal for one in dims):
        written.append(f"rhs_reversal={'x'.join(str(int(one.window_reversal)) for one in dims)}")
    return {"window": "{" + " ".join(written) + "}"}


def _labels(numbers: Any, _: Any) -> dict[str, str]:
    """``b01f_01io->b01f``: which dimension of input, kernel and output is batch, feature and space."""
    return {
        "dim_labels": _label(
            {"b": numbers.input_batch_dimension, "f": numbers.input_feature_dimension},
            numbers.input_spatial_dimensions,
        )
        + "_"
        + _label(
            {"i": numbers.kernel_input_feature_dimension, "o": numbers.kernel_output_feature_dimension},
            numbers.kernel_spatial_dimensions,
        )
        + "->"
        + _label(
            {"b": numbers.output_batch_dimension, "f": numbers.output_feature_dimension},
            numbers.output_spatial_dimensions,
        )
    }


def _label(named: dict[str, int], spatial: Iterable[int]) -> str:
    places = {place: name for name, place in named.items()} | {at: str(order) for order, at in enumerate(spatial)}
    return "".join(places[place] for place in sorted(places))


def _gather(numbers: Any, _: Any) -> dict[str, str]:
    written = {
        "offset_dims": braced(numbers.offset_dims),
        "collapsed_slice_dims": braced(numbers.collapsed_slice_dims),
        "start_index_map": braced(numbers.start_index_map),
    }
    if numbers.operand_batching_dims or numbers.start_indices_batching_dims:
        written["operand_batching_dims"] = braced(numbers.operand_batching_dims)
        written["start_indices_batching_dims"] = braced(numbers.start_indices_batching_dims)
    return {**written, "index_vector_dim": str(numbers.index_vector_dim)}


def _scatter(numbers: Any, _: Any) -> dict[str, str]:
    written = {
        "update_window_dims": braced(numbers.update_window_dims),
        "inserted_window_dims": braced(numbers.inserted_window_dims),
        "scatter_dims_to_operand_dims": braced(numbers.scatter_dims_to_operand_dims),
    }
    if numbers.input_batching_dims or numbers.scatter_indices_batching_dims:
        written["input_batching_dims"] = braced(numbers.input_batching_dims)
        written["scatter_indices_batching_dims"] = braced(numbers.scatter_indices_batching_dims)
    return {**written, "index_vector_dim": str(numbers.index_vector_dim)}


def _precision(config: Any, _: Any) -> dict[str, str]:
    if not any(config.operand_precision):
        return {}
    return {
        "operand_precision": "{" + ",".join(_PRECISIONS.get(one, str(one)) for one in config.operand_precision) + "}"
    }


def _frontend(attributes: Any, _: Any) -> dict[str, str]:
    if not attributes.map:
        return {}
    pairs = sorted((one.key, one.value) for one in attributes.map)
    # a value in braces (an MLIR attribute) stands without quotes
    shown = (f"{key}={value}" if value.startswith("{") else f'{key}="{_escaped(value)}"' for key, value in pairs)
    return {"frontend_attributes": "{" + ",".join(shown) + "}"}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("'", "\\'")


_MESSAGES: dict[str, Callable[[Any, Any], dict[str, str]]] = {
    "convolution_dimension_numbers": _labels,
    "dot_dimension_numbers": _dot,
    "frontend_attributes": _frontend,
    "gather_dimension_numbers": _gather,
    "padding_config": _padding,
    "precision_config": _precision,
    "ragged_dot_dimension_numbers": _ragged,
    "scatter_dimension_numbers": _scatter,
    "window": _window,
}
"""Field that holds a message -> its attributes."""
