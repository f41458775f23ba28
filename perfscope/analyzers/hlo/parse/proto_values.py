"""Attributes of ``HloInstructionProto`` in the notation of HLO text, so that both sources give equal models.

Attributes that are missing here are also missing in our trimmed proto (literals, named shardings, result accuracy,
statistics).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from perfscope.analyzers.hlo.module import (
    ITEM_BITS,
    MAX_TUPLE_DEPTH,
    BufferAllocation,
    BufferAssignment,
    HeapEvent,
    LogicalBuffer,
    Shape,
    checked_dims,
)

MOST_ALLOCATED = 1 << 61
"""Maximum bytes of all allocations of a program; sums of a few still fit 64 bits."""


ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2",
    20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2",
    28: "f8e4m3", 29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip
"""``xla.PrimitiveType``: number -> name in HLO text."""

_REPLICATED, _MAXIMAL, _TUPLE, _TILED, _MANUAL, _UNKNOWN, _UNREDUCED = range(7)
"""``xla.OpSharding.Type``."""

_NAMES = {_REPLICATED: "replicated", _MANUAL: "manual", _UNKNOWN: "unknown", _UNREDUCED: "unreduced"}

_DEEPEST = 8
"""Maximum depth; tuples of shardings are flat, and XLA rejects others."""

_DIMENSIONAL = frozenset(
    {
        "broadcast", "concatenate", "transpose", "reduce", "reverse", "map", "sort", "all-gather", "all-gather-start",
        "reduce-scatter", "get-dimension-size", "set-dimension-size", "fft-dimensions",
    }
)  # fmt: skip
"""Opcodes whose ``dimensions`` are written even if empty."""

_PRECISIONS = {0: "default", 1: "high", 2: "highest"}

_FLAGS = (
    "is_stable", "indices_are_sorted", "unique_indices", "use_global_device_ids", "custom_call_has_side_effect",
)  # fmt: skip

_KINDS: tuple[Literal["alloc", "free", "share_with"], ...] = ("alloc", "free", "share_with")


# Shapes of ``ShapeProto``, and their text for attributes.


class ShapeProtoReader:
    """Converts shapes, each once. ``tiled``: whether a layout with tiles was found (TPU)."""

    def __init__(self) -> None:
        self.tiled = False
        self._known: dict[bytes, Shape] = {}

    def read(self, proto: Any) -> Shape:
        """Return the shape; ``ValueError`` for an invalid one."""
        key = proto.SerializeToString(deterministic=True)
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = self._converted(proto, 0)
        return shape

    def _converted(self, proto: Any, depth: int) -> Shape:
        if depth > MAX_TUPLE_DEPTH:
            raise ValueError(f"tuples nested more than {MAX_TUPLE_DEPTH} deep")
        dtype = ELEMENT_TYPES.get(proto.element_type)
        if dtype is None:
            raise ValueError(f"unknown element type {proto.element_type}")
        if dtype == "tuple":
            return Shape(dtype=dtype, parts=tuple(self._converted(part, depth + 1) for part in proto.tuple_shapes))
        dims = checked_dims(tuple(proto.dimensions))
        layout: tuple[int, ...] | None = None
        if proto.HasField("layout") and ITEM_BITS[dtype]:
            layout = tuple(proto.layout.minor_to_major)
            self.tiled |= len(proto.layout.tiles) > 0
        elif not dims and ITEM_BITS[dtype]:
            layout = ()
        space = proto.layout.memory_space if proto.HasField("layout") else 0
        return Shape(dtype=dtype, dims=dims, layout=layout, memory_space=space)


def shape_text(proto: Any) -> str:
    """Return a shape in the notation of HLO text, with its layout; ``ValueError`` for tuples (no attribute has one)."""
    dtype = ELEMENT_TYPES.get(proto.element_type)
    if dtype is None or dtype == "tuple":
        raise ValueError(f"a shape of element type {proto.element_type} in an attribute")
    text = f"{dtype}[{','.join(map(str, proto.dimensions))}]"
    layout = proto.layout
    if not layout.minor_to_major and not layout.tiles:
        return text
    tiles = "".join(f"({','.join(map(str, tile.dimensions))})" for tile in layout.tiles)
    marks = (f"T{tiles}" if tiles else "") + (f"S({layout.memory_space})" if layout.memory_space else "")
    order = ",".join(map(str, layout.minor_to_major))
    return f"{text}{{{order}{':' if marks else ''}{marks}}}"


# ``OpSharding`` in the notation of HLO text: ``{replicated}``, ``{devices=[1,8]<=[8] last_tile_dim_replicate}``.


def sharding_text(proto: Any, depth: int = 0) -> str | None:
    """Return the text; ``None`` for an unknown kind (the mesh of named shardings is not in our proto)."""
    if proto.HasField("named_sharding") or depth > _DEEPEST:
        return None
    if proto.type == _TUPLE:
        parts = [sharding_text(part, depth + 1) for part in proto.tuple_shardings]
        if any(part is None for part in parts):
            return None
        # text numbers every fifth part
        shown = (
            f"/*index={index}*/{part}" if index and not index % 5 else str(part) for index, part in enumerate(parts)
        )
        return "{" + ", ".join(shown) + "}"
    if proto.type == _MAXIMAL:
        return f"{{maximal device={proto.tile_assignment_devices[0] if proto.tile_assignment_devices else 0}}}"
    if proto.type in _NAMES:
        return "{" + _NAMES[proto.type] + "}"
    return f"{{devices=[{_listed(proto.tile_assignment_dimensions)}]{_devices(proto)}{_last_dims(proto)}}}"


def _devices(proto: Any) -> str:
    reshape, transpose = list(proto.iota_reshape_dims), list(proto.iota_transpose_perm)
    if reshape:
        turned = transpose != sorted(transpose)
        return f"<=[{_listed(reshape)}]" + (f"T({_listed(transpose)})" if turned else "")
    devices = list(proto.tile_assignment_devices)
    # an ascending list is written as its count
    return f"<=[{len(devices)}]" if devices == list(range(len(devices))) else _listed(devices)


def _last_dims(proto: Any) -> str:
    kinds = list(proto.last_tile_dims)
    if proto.replicate_on_last_tile_dim or kinds == [_REPLICATED]:
        return " last_tile_dim_replicate"
    names = ", ".join(_NAMES.get(kind, str(kind)) for kind in kinds)
    return f" last_tile_dims={{{names}}}" if kinds else ""


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def attributes_of(proto: Any, names: Mapping[int, str]) -> dict[str, str]:
    """Return every known attribute of an instruction; ``names``: names of the computation's instructions by id."""
    result: dict[str, str] = {}
    for field, write in _MESSAGES.items():
        if proto.HasField(field):
            result.update(write(getattr(proto, field), proto))
    if proto.opcode == "iota":
        result["iota_dimension"] = str(proto.dimensions[0] if proto.dimensions else 0)
    elif proto.dimensions or proto.opcode in _DIMENSIONAL:
        result["dimensions"] = braced(proto.dimensions)
    if proto.opcode == "get-tuple-element":
        result["index"] = str(proto.tuple_index)
    if proto.slice_dimensions:
        result["slice"] = _slices(proto.slice_dimensions)
    if proto.opcode == "dynamic-slice":
        result["dynamic_slice_sizes"] = braced(proto.dynamic_slice_sizes)
    if proto.opcode == "gather":
        result["slice_sizes"] = braced(proto.gather_slice_sizes)
    if proto.opcode == "fft":
        result["fft_type"] = ("FFT", "IFFT", "RFFT", "IRFFT")[proto.fft_type & 3]
        result["fft_length"] = braced(proto.fft_length)
    if proto.comparison_direction:
        result["direction"] = proto.comparison_direction
    if proto.source_target_pairs:
        result["source_target_pairs"] = (
            "{" + ",".join(f"{{{p.source},{p.target}}}" for p in proto.source_target_pairs) + "}"
        )
    for count in ("feature_group_count", "batch_group_count"):
        if getattr(proto, count) > 1:
            result[count] = str(getattr(proto, count))
    result.update({flag: "true" for flag in _FLAGS if getattr(proto, flag)})
    result.update(_structure(proto, names))
    return result


def braced(numbers: Iterable[int]) -> str:
    """Return ``{0,2,1}``."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _structure(proto: Any, names: Mapping[int, str]) -> dict[str, str]:
    """Return attributes that connect instructions: control edges, aliases, layouts of operands, execution thread."""
    result = {}
    sharding = sharding_text(proto.sharding) if proto.HasField("sharding") else None
    if sharding is not None:
        result["sharding"] = sharding
    if proto.control_predecessor_ids:
        before = (names.get(predecessor) for predecessor in proto.control_predecessor_ids)
        result["control-predecessors"] = "{" + ", ".join(f"%{name}" for name in before if name is not None) + "}"
    if proto.output_operand_aliasing:
        result["output_to_operand_aliasing"] = "{" + ", ".join(map(_alias, proto.output_operand_aliasing)) + "}"
    if proto.constrain_layout:
        result["operand_layout_constraints"] = "{" + ", ".join(map(shape_text, proto.operand_shapes_with_layout)) + "}"
    if proto.async_execution_thread not in ("", "main"):
        result["async_execution_thread"] = f'"{proto.async_execution_thread}"'
    return result


def _alias(alias: Any) -> str:
    source = f"({alias.operand_index}, {_spaced(alias.operand_shape_index)})"
    return f"{_spaced(alias.output_shape_index)}: {source}"


def _spaced(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def _slices(dimensions: Iterable[Any]) -> str:
    slices = list(dimensions)
    strided = any(part.stride != 1 for part in slices)
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
    interior = any(dimension.interior_padding for dimension in padding.dimensions)
    edges = [
        f"{dimension.edge_padding_low}_{dimension.edge_padding_high}"
        + (f"_{dimension.interior_padding}" if interior else "")
        for dimension in padding.dimensions
    ]
    return {"padding": "x".join(edges)}


def _window(window: Any, _: Any) -> dict[str, str]:
    dims = window.dimensions
    if not dims:
        return {}
    written = [f"size={'x'.join(str(dim.size) for dim in dims)}"]
    if any(dim.stride != 1 for dim in dims):
        written.append(f"stride={'x'.join(str(dim.stride) for dim in dims)}")
    if any(dim.padding_low or dim.padding_high for dim in dims):
        written.append(f"pad={'x'.join(f'{dim.padding_low}_{dim.padding_high}' for dim in dims)}")
    if any(dim.base_dilation != 1 for dim in dims):
        written.append(f"lhs_dilate={'x'.join(str(dim.base_dilation) for dim in dims)}")
    if any(dim.window_dilation != 1 for dim in dims):
        written.append(f"rhs_dilate={'x'.join(str(dim.window_dilation) for dim in dims)}")
    if any(dim.window_reversal for dim in dims):
        written.append(f"rhs_reversal={'x'.join(str(int(dim.window_reversal)) for dim in dims)}")
    return {"window": "{" + " ".join(written) + "}"}


def _labels(numbers: Any, _: Any) -> dict[str, str]:
    """Return ``b01f_01io->b01f``: the roles (batch, feature, spatial) of the dimensions of input, kernel and output."""
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
    places = {index: name for name, index in named.items()} | {index: str(order) for order, index in enumerate(spatial)}
    return "".join(places[index] for index in sorted(places))


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
        "operand_precision": "{" + ",".join(_PRECISIONS.get(part, str(part)) for part in config.operand_precision) + "}"
    }


def _frontend(attributes: Any, _: Any) -> dict[str, str]:
    if not attributes.map:
        return {}
    pairs = sorted((part.key, part.value) for part in attributes.map)
    # a value in braces (an MLIR attribute) is written without quotes
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
"""Message field -> its attributes."""


# ``BufferAssignmentProto`` into the model: location of buffers, and the heap simulator's trace of their lifetimes.


def buffer_assignment_of(proto: Any, names: Mapping[int, str]) -> BufferAssignment:
    """Return the assignment; ``names``: instructions of the module by id, for files that refer to them by id.

    ``ValueError`` for sizes that are negative or exceed any memory, or for a duplicate buffer. The allocation index of
    a heap trace is ignored because it is stale: it was written before allocations were renumbered.
    """
    placed: dict[int, tuple[int, int, int]] = {}
    allocations = []
    total = 0
    for allocation in proto.buffer_allocations:
        total += allocation.size
        if allocation.size < 0 or total > MOST_ALLOCATED:
            raise ValueError(f"allocation {allocation.index} of {allocation.size:,} bytes")
        for assigned in allocation.assigned:
            placed[assigned.logical_buffer_id] = (allocation.index, assigned.offset, assigned.size)
        allocations.append(
            BufferAllocation(
                index=allocation.index,
                size=allocation.size,
                is_parameter=allocation.is_entry_computation_parameter,
                is_constant=allocation.is_constant,
                is_thread_local=allocation.is_thread_local,
                maybe_live_out=allocation.maybe_live_out,
                memory_space=allocation.color,
                buffers=tuple(assigned.logical_buffer_id for assigned in allocation.assigned),
            )
        )
    buffers: dict[int, LogicalBuffer] = {}
    for buffer in proto.logical_buffers:
        if buffer.size < 0 or buffer.id in buffers:
            raise ValueError(f"buffer {buffer.id} of {buffer.size:,} bytes is impossible or named twice")
        place = placed.get(buffer.id)
        at = buffer.defined_at
        buffers[buffer.id] = LogicalBuffer(
            id=buffer.id,
            instruction=at.instruction_name or names.get(at.instruction_id, ""),
            size=buffer.size,
            allocation=None if place is None else place[0],
            offset=None if place is None else place[1],
            index=tuple(at.shape_index),
        )
    traces = tuple(tuple(_event(event) for event in trace.events) for trace in proto.heap_simulator_traces)
    return BufferAssignment(buffers=buffers, allocations=tuple(allocations), heap_traces=traces)


def _event(event: Any) -> HeapEvent:
    if not 0 <= event.kind < len(_KINDS):
        raise ValueError(f"a heap event of kind {event.kind}")
    kind = _KINDS[event.kind]
    return HeapEvent(
        kind=kind,
        buffer=event.buffer_id,
        instruction=event.instruction_name,
        share_with=event.share_with_canonical_id if kind == "share_with" else None,
    )
