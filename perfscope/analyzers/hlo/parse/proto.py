"""``HloProto`` and ``HloModuleProto`` into the model, equal to what the module's text would give.

Two things are brought to the spelling of the text: an asynchronous call of one operation
(``async-start`` of a computation that is a lone ``reduce-scatter``) becomes ``reduce-scatter-start``
without that computation, and a while's computations are in the order condition, body.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfscope.analyzers.hlo.collective import GroupReader, Groups, SubAxis
from perfscope.analyzers.hlo.module import (
    MAX_PROTO_BYTES,
    Alias,
    Computation,
    HloModule,
    Instruction,
    json_object,
    trip_count,
)
from perfscope.analyzers.hlo.parse.proto_values import (
    ShapeProtoReader,
    attributes_of,
    buffer_assignment_of,
    sharding_text,
)
from perfscope.analyzers.hlo.platform import platform_of
from perfscope.analyzers.hlo.proto_wire import check_size, looks_like_module
from perfscope.analyzers.hlo.protos import decode
from perfscope.analyzers.hlo.scope import FrameTable
from perfscope.analyzers.hlo.structure import computation_of, linked
from perfscope.model.errors import DataError

HEAD_BYTES = 8192
"""Bytes sufficient to identify a file's format."""
"""``xla.Kind``: 1 is may-alias."""
_ASYNC = ("async-start", "async-update", "async-done")


def module_of_proto(data: bytes | memoryview, source: str) -> HloModule:
    """Return the module in the bytes of an ``HloProto``, or of an ``HloModuleProto`` alone.

    ``DataError``, one line that begins with ``source``, for bytes that are neither, are truncated, contain impossible
    sizes or exceed ``MAX_PROTO_BYTES``.
    """
    if len(data) > MAX_PROTO_BYTES:
        raise DataError(f"{source}: an HLO proto of {len(data):,} bytes: refused")
    alone = looks_like_module(bytes(data[:HEAD_BYTES]))
    try:
        check_size(data, alone=alone)
    except ValueError as error:
        raise DataError(f"{source}: HLO proto is cut off or corrupt: {error}") from error
    proto = decode("hlo.HloModuleProto" if alone else "hlo.HloProto", data, source)
    module, assignment = (proto, None) if alone else (proto.hlo_module, proto.buffer_assignment)
    if not module.computations:
        raise DataError(f"{source}: no HLO module in it, or cut off")
    try:
        return _Conversion(module, source).module(assignment if proto is not module else None)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{source}: corrupt HLO proto: {error}") from error


class _Conversion:
    """Conversion of one module from proto to model."""

    def __init__(self, proto: Any, source: str) -> None:
        self._proto = proto
        self._source = source
        self._shapes = ShapeProtoReader()
        self._groups = GroupReader()
        self._frames = _frame_table(proto.stack_frame_index)
        self._computations = {computation.id: computation for computation in proto.computations}
        if len(self._computations) != len(proto.computations):
            raise ValueError("two computations have the same id")
        self._wrapped = self._lone_operations()
        self._started: dict[tuple[int, int], Any] = {}
        """Computation and instruction of an ``async-...`` -> the single operation that it runs."""
        self._order = {entry.key: entry.value.instruction_ids for entry in proto.schedule.sequences}

    def module(self, assignment: Any | None) -> HloModule:
        """Return the module, with its buffers if ``assignment`` has any."""
        proto = self._proto
        dropped = set(self._wrapped)
        computations = [
            self._computation(computation) for computation in proto.computations if computation.id not in dropped
        ]
        entry = self._computations.get(proto.entry_computation_id)
        names = [computation.name for computation in computations]
        entry_name = entry.name if entry is not None else proto.entry_computation_name
        if entry_name not in names:
            raise ValueError(f"no entry computation {entry_name[:80]!r}")
        scheduled = proto.HasField("schedule")
        buffers = None
        if assignment is not None and assignment.logical_buffers:
            by_id = {
                instruction.id: instruction.name
                for computation in proto.computations
                for instruction in computation.instructions
            }
            buffers = buffer_assignment_of(assignment, by_id)
        devices = proto.device_assignment
        notes = [item.key for item in proto.frontend_attributes.map]
        return HloModule(
            name=proto.name,
            entry=entry_name,
            computations=linked(computations),
            is_scheduled=scheduled,
            num_partitions=max(devices.computation_count, 1),
            num_replicas=max(devices.replica_count, 1),
            platform=platform_of(computations, tiled=self._shapes.tiled, scheduled=scheduled, notes=notes),
            buffer_assignment=buffers,
            source=self._source,
            aliases=tuple(
                Alias(
                    output=tuple(entry.output_shape_index),
                    parameter=entry.parameter_number,
                    part=tuple(entry.parameter_shape_index),
                )
                for entry in proto.input_output_alias.entries
            ),
            donors=tuple(
                (entry.parameter_number, tuple(entry.parameter_shape_index)) for entry in proto.buffer_donor.entries
            ),
        )

    def _lone_operations(self) -> dict[int, Any]:
        """Map the computations of ``async-start`` that text writes as ``<root>-start`` to their roots."""
        called = {
            instruction.called_computation_ids[0]
            for computation in self._proto.computations
            for instruction in computation.instructions
            if instruction.opcode in _ASYNC and len(instruction.called_computation_ids) == 1
        }
        result = {}
        for key in called & self._computations.keys():
            computation = self._computations[key]
            root = [instruction for instruction in computation.instructions if instruction.id == computation.root_id]
            others = [instruction for instruction in computation.instructions if instruction.id != computation.root_id]
            if len(root) == 1 and all(other.opcode == "parameter" for other in others):
                result[key] = root[0]
        return result

    def _computation(self, proto: Any) -> Computation:
        by_id = {instruction.id: instruction for instruction in proto.instructions}
        if len(by_id) != len(proto.instructions):
            raise ValueError(f"computation {proto.name[:80]!r} has two instructions of the same id")
        names = {key: item.name for key, item in by_id.items()}
        order: Sequence[int] = self._order.get(proto.id, ())
        if order and (set(order) != by_id.keys() or len(order) != len(by_id)):
            raise ValueError(f"the schedule of computation {proto.name[:80]!r} is not one of its instructions")
        arranged = [by_id[key] for key in order] if order else proto.instructions
        if proto.root_id not in by_id:
            raise ValueError(f"computation {proto.name[:80]!r} has no root")
        return computation_of(proto.name, [self._instruction(item, names, proto) for item in arranged])

    def _operation_of(self, proto: Any, computation: int) -> Any | None:
        """Return the operation of an ``async-...``, if it is a single one.

        A done may refer to it only through its start.
        """
        called = proto.called_computation_ids
        result = self._wrapped.get(called[0]) if len(called) == 1 else None
        if result is None and not called and proto.operand_ids:
            result = self._started.get((computation, proto.operand_ids[0]))
        if result is not None:
            self._started[computation, proto.id] = result
        return result

    def _instruction(self, proto: Any, names: Mapping[int, str], computation: Any) -> Instruction:
        opcode, what = proto.opcode, proto
        called = list(proto.called_computation_ids)
        wrapped = self._operation_of(proto, computation.id) if opcode in _ASYNC else None
        if wrapped is not None:
            # text has the wrapped operation's attributes only on its start
            opcode = wrapped.opcode + opcode.removeprefix("async")
            called = []
            if opcode.endswith("-start"):
                what, called = wrapped, list(wrapped.called_computation_ids)
        if opcode == "while":
            called.reverse()
        metadata = proto.metadata
        file, line = self._place(metadata)
        config = json_object(self._config(proto))
        return Instruction(
            name=proto.name,
            opcode=opcode,
            shape=self._shapes.read(proto.shape),
            operands=tuple(_at(names, key) for key in proto.operand_ids),
            called=tuple(self._called(key) for key in called),
            is_root=proto.id == computation.root_id,
            op_name=metadata.op_name,
            file=file,
            line=line,
            lines=self._frames.user_lines(metadata.stack_frame_id),
            scheduling_name=metadata.scheduling_name,
            wraps=what.name if what is not proto else "",
            fusion_kind=what.fusion_kind or None,
            custom_call_target=what.custom_call_target or None,
            parameter_number=proto.parameter_number if opcode == "parameter" else None,
            value=_integer(proto) if opcode == "constant" else None,
            is_zero=opcode == "constant" and _is_zero(proto),
            literal=_literal(proto) if opcode == "constant" else "",
            replica_groups=self._replica_groups(what),
            channel_id=what.channel_id or None,
            trip_count=trip_count(config) if opcode == "while" else None,
            backend_config=config,
            attributes=self._sharding(proto, computation) | self._attributes(proto, what, names),
        )

    def _config(self, proto: Any) -> bytes:
        """Return a configuration's text, from the instruction or (newer XLA) from the module's list."""
        if proto.backend_config or not proto.HasField("backend_config_payload"):
            own: bytes = proto.backend_config
            return own
        payload = proto.backend_config_payload
        if payload.value or not 0 <= payload.id < len(self._proto.payloads):
            text: bytes = payload.value
            return text
        listed: bytes = self._proto.payloads[payload.id]
        return listed

    def _sharding(self, proto: Any, computation: Any) -> dict[str, str]:
        """Return the sharding of an argument of the program, which newer XLA keeps with the module."""
        every = self._proto.spmd_parameters_shardings
        is_argument = proto.opcode == "parameter" and computation.id == self._proto.entry_computation_id
        if not is_argument or not 0 <= proto.parameter_number < len(every):
            return {}
        sharding = every[proto.parameter_number]
        text = (
            self._named_sharding(sharding.named_sharding)
            if sharding.HasField("named_sharding")
            else sharding_text(sharding)
        )
        return {} if text is None else {"sharding": text}

    def _named_sharding(self, named: Any) -> str | None:
        """Return a sharding by axes of a mesh in the older notation.

        ``None`` for a single device, partial sums, and parts that the program itself makes.
        """
        mesh, divided = named.mesh, named.dim_shardings
        if named.unreduced_axes or named.manual_axes:
            return None
        used = [[_sub_axis(axis) for axis in dimension.axes] for dimension in divided]
        if not any(used):
            return None if mesh.device_ids and not mesh.axes else "{replicated}"
        sizes, iota = [axis.size for axis in mesh.axes], mesh.iota_transform
        parts, devices = self._groups.tiles(sizes, used, iota.reshape_dims, iota.transpose_perm, mesh.device_ids)
        copies = len(devices) // max(1, math.prod(parts))
        order = f"<=[{len(devices)}]" if devices == sorted(devices) else ",".join(map(str, devices))
        tiles = ",".join(map(str, [*parts, *([copies] if copies > 1 else [])]))
        return f"{{devices=[{tiles}]{order}{' last_tile_dim_replicate' if copies > 1 else ''}}}"

    def _attributes(self, proto: Any, what: Any, names: Mapping[int, str]) -> dict[str, str]:
        if what is proto:
            return attributes_of(proto, names)
        own = attributes_of(proto, names)
        return {**attributes_of(what, {}), **own}

    def _called(self, key: int) -> str:
        if key not in self._computations:
            raise ValueError(f"a call of computation {key}, which is not in the module")
        name: str = self._computations[key].name
        return name

    def _place(self, metadata: Any) -> tuple[str | None, int | None]:
        if metadata.source_file:
            return metadata.source_file, metadata.source_line or None
        line = self._frames.user_line(metadata.stack_frame_id)
        return (None, None) if line is None else line

    def _replica_groups(self, proto: Any) -> Groups | None:
        if proto.HasField("iota_collective_device_list"):
            iota = proto.iota_collective_device_list
            return self._groups.iota(
                iota.num_replica_groups, iota.num_devices_per_group, iota.iota_reshape_dims, iota.iota_transpose_perm
            )
        if proto.HasField("mesh_axes_replica_group_list"):
            mesh = proto.mesh_axes_replica_group_list.mesh
            used = [_sub_axis(axis) for axis in proto.mesh_axes_replica_group_list.axes]
            sizes, iota = [axis.size for axis in mesh.axes], mesh.iota_transform
            return self._groups.mesh(sizes, used, iota.reshape_dims, iota.transpose_perm, mesh.device_ids)
        listed = proto.collective_device_list.replica_groups or proto.replica_groups
        return self._groups.listed(tuple(tuple(item.replica_ids) for item in listed))


def _sub_axis(axis: Any) -> SubAxis:
    return axis.mesh_axis_index, axis.sub_axis_info.pre_size or 1, axis.sub_axis_info.size


def _at(names: Mapping[int, str], key: int) -> str:
    if key not in names:
        raise ValueError(f"an operand {key} that is not in its computation")
    return names[key]


def _frame_table(index: Any) -> FrameTable:
    return FrameTable(
        files=dict(enumerate(index.file_names, 1)),
        locations={key: (entry.file_name_id, entry.line) for key, entry in enumerate(index.file_locations, 1)},
        frames={
            key: (entry.file_location_id, entry.parent_frame_id) for key, entry in enumerate(index.stack_frames, 1)
        },
    )


def _integer(proto: Any) -> int | None:
    """Return the value of a constant that is a single 32-bit integer."""
    if proto.shape.dimensions or proto.shape.tuple_shapes:
        return None
    values = proto.literal.s32s or proto.literal.u32s
    return int(values[0]) if len(values) == 1 else None


def _literal(proto: Any) -> str:
    """Return a digest of a constant's value, including fields that our trimmed proto does not name.

    Empty without a value.
    """
    data: bytes = proto.literal.SerializeToString(deterministic=True)
    return hashlib.blake2b(data, digest_size=16).hexdigest() if data else ""


def _is_zero(proto: Any) -> bool:
    """Whether a constant is a single floating-point zero of either sign."""
    if proto.shape.dimensions or proto.shape.tuple_shapes:
        return False
    literal = proto.literal
    numbers = literal.f32s or literal.f64s
    if len(numbers) == 1:
        return bool(numbers[0] == 0)
    packed: bytes = literal.bf16s or literal.f16s
    return packed in (b"\0\0", b"\0\x80")  # either sign, little-endian
