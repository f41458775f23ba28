"""HloProto into the model: small modules made by hand, and what is wrong with bad ones."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from perfscope.analyzers.hlo.module import HeapEvent, Shape
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.protos import decode, message, pool
from perfscope.analyzers.hlo.protos.schema import Field, fields, file_descriptor
from perfscope.model.errors import DataError

F32 = {"element_type": 11, "dimensions": [8], "layout": {"minor_to_major": [0]}}


def made(*instructions: dict[str, Any], others: tuple[dict[str, Any], ...] = (), **module: Any) -> Any:
    """A proto with an entry computation (id 1) of the given instructions, after a parameter with id 1."""
    parameter = {"name": "p", "opcode": "parameter", "id": 1, "shape": F32}
    whole = [parameter, *({"shape": F32, "id": 2 + index, **one} for index, one in enumerate(instructions))]
    entry = {"name": "main", "id": 1, "instructions": whole, "root_id": whole[-1]["id"]}
    return message("hlo.HloProto")(
        hlo_module={
            "name": "jit_f",
            "entry_computation_name": "main",
            "entry_computation_id": 1,
            "computations": [*others, entry],
            **module,
        }
    )


def read(proto: Any) -> Any:
    return module_of_proto(proto.SerializeToString(), "m.pb")


def refused(data: bytes) -> str:
    with pytest.raises(DataError) as caught:
        module_of_proto(data, "m.pb")
    line = str(caught.value)
    assert line.startswith("m.pb: ")
    assert "\n" not in line
    return line.removeprefix("m.pb: ")


def test_a_module_and_a_module_alone() -> None:
    proto = made(
        {
            "name": "r",
            "opcode": "copy",
            "operand_ids": [1],
            "metadata": {"op_name": "jit(f)/copy", "stack_frame_id": 2},
        },
        device_assignment={"computation_count": 8, "replica_count": 2},
        stack_frame_index={
            "file_names": ["train.py", "/x/site-packages/a.py"],
            "file_locations": [{"file_name_id": 1, "line": 4}, {"file_name_id": 2, "line": 9}],
            "stack_frames": [{"file_location_id": 1}, {"file_location_id": 2, "parent_frame_id": 1}],
        },
    )
    for data in (proto.SerializeToString(), proto.hlo_module.SerializeToString()):
        module = module_of_proto(data, "m.pb")
        assert (module.name, module.entry, module.source) == ("jit_f", "main", "m.pb")
        assert (module.num_partitions, module.num_replicas, module.is_scheduled) == (8, 2, False)
        root = module.entry_computation().root
        assert (root.name, root.operands, root.op_name) == ("r", ("p",), "jit(f)/copy")
        assert (root.file, root.line) == ("train.py", 4)
        assert root.shape == Shape(dtype="f32", dims=(8,), layout=(0,))


MESH = {"axes": [{"name": "data", "size": 2}, {"name": "model", "size": 4}]}
DATA, MODEL = {"mesh_axis_index": 0}, {"mesh_axis_index": 1}
REST: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("named", "sharding"),
    [
        ({"mesh": {}}, "{replicated}"),
        ({"mesh": MESH, "dim_shardings": [REST, REST]}, "{replicated}"),
        ({"mesh": MESH, "dim_shardings": [{"axes": [DATA]}, REST]},
         "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
        ({"mesh": MESH, "dim_shardings": [REST, {"axes": [MODEL]}]},
         "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"),
        ({"mesh": MESH, "dim_shardings": [{"axes": [DATA, MODEL]}, REST]}, "{devices=[8,1]<=[8]}"),
        ({"mesh": MESH, "dim_shardings": [{"axes": [{**MODEL, "sub_axis_info": {"pre_size": 1, "size": 2}}]}]},
         "{devices=[2,4]0,1,4,5,2,3,6,7 last_tile_dim_replicate}"),
        ({"mesh": {**MESH, "device_ids": [7, 6, 5, 4, 3, 2, 1, 0]}, "dim_shardings": [{"axes": [DATA, MODEL]}]},
         "{devices=[8]7,6,5,4,3,2,1,0}"),
        ({"mesh": {"device_ids": [3]}}, None),
        ({"mesh": MESH, "dim_shardings": [{"axes": [DATA]}], "manual_axes": [MODEL]}, None),
        ({"mesh": MESH, "dim_shardings": [{"axes": [DATA]}], "unreduced_axes": [MODEL]}, None),
    ],
)  # fmt: skip
def test_shardings_by_axes_of_a_mesh_are_those_of_the_module(named: dict[str, Any], sharding: str | None) -> None:
    """XLA of jax 0.12 keeps the shardings of arguments with the module, as axes of a mesh."""
    proto = made({"name": "r", "opcode": "copy", "operand_ids": [1]}, spmd_parameters_shardings=[
        {"named_sharding": named}])  # fmt: skip
    parameter, root = read(proto).entry_computation().instructions
    assert parameter.attributes.get("sharding") == sharding
    assert "sharding" not in root.attributes


def test_a_mesh_without_the_axis_is_refused() -> None:
    named = {"mesh": MESH, "dim_shardings": [{"axes": [{"mesh_axis_index": 9}]}]}
    proto = made({"name": "r", "opcode": "copy", "operand_ids": [1]}, spmd_parameters_shardings=[
        {"named_sharding": named}])  # fmt: skip
    assert "axis that their mesh lacks" in refused(proto.SerializeToString())


def test_instructions_stand_in_schedule_order() -> None:
    proto = made(
        {"name": "a", "opcode": "copy", "operand_ids": [1]},
        {"name": "b", "opcode": "negate", "operand_ids": [1]},
        {"name": "c", "opcode": "add", "operand_ids": [2, 3]},
        schedule={"sequences": [{"key": 1, "value": {"instruction_ids": [1, 3, 2, 4]}}]},
    )
    module = read(proto)
    assert module.is_scheduled
    assert [one.name for one in module.entry_computation().instructions] == ["p", "b", "a", "c"]
    proto.hlo_module.schedule.sequences[0].value.instruction_ids[0] = 9
    assert "the schedule of computation 'main'" in refused(proto.SerializeToString())


BODY = {
    "name": "body",
    "id": 7,
    "root_id": 72,
    "instructions": [
        {"name": "x", "opcode": "parameter", "id": 71, "shape": F32},
        {"name": "y", "opcode": "reduce-scatter", "id": 72, "operand_ids": [71], "shape": F32, "dimensions": [0],
         "channel_id": 5, "iota_collective_device_list": {"num_replica_groups": 2, "num_devices_per_group": 2,
                                                         "iota_reshape_dims": [2, 2], "iota_transpose_perm": [1, 0]}},
    ],
}  # fmt: skip


def test_an_asynchronous_call_of_one_operation_is_spelt_as_text_spells_it() -> None:
    module = read(
        made(
            {"name": "s", "opcode": "async-start", "operand_ids": [1], "called_computation_ids": [7]},
            {"name": "u", "opcode": "async-update", "operand_ids": [2]},
            {"name": "d", "opcode": "async-done", "operand_ids": [3], "called_computation_ids": [7]},
            others=(BODY,),
        )
    )
    assert set(module.computations) == {"main"}
    start, update, done = module.entry_computation().instructions[1:]
    assert (start.opcode, update.opcode, done.opcode) == (
        "reduce-scatter-start",
        "reduce-scatter-update",
        "reduce-scatter-done",
    )
    assert (start.replica_groups, start.channel_id) == (((0, 2), (1, 3)), 5)
    assert start.attributes == {"dimensions": "{0}"}
    assert (done.replica_groups, done.called, done.attributes) == (None, (), {})


def test_an_asynchronous_call_of_several_operations_stays_one() -> None:
    more = {**BODY, "instructions": [*BODY["instructions"][:1], {"name": "z", "opcode": "copy", "id": 73, "shape": F32,
            "operand_ids": [71]}, *BODY["instructions"][1:]]}  # type: ignore[index]  # fmt: skip
    module = read(
        made({"name": "s", "opcode": "async-start", "operand_ids": [1], "called_computation_ids": [7]}, others=(more,))
    )
    start = module.entry_computation().root
    assert (start.opcode, start.called) == ("async-start", ("body",))


def test_a_while_calls_condition_then_body_and_knows_its_trips() -> None:
    condition = {**BODY, "name": "condition", "id": 8}
    config = b'{"known_trip_count":{"n":"4"}}'
    loop = {"name": "w", "opcode": "while", "operand_ids": [1], "called_computation_ids": [7, 8]}
    for spelt in ({"backend_config": config}, {"backend_config_payload": {"value": config}}):
        root = read(made({**loop, **spelt}, others=(BODY, condition))).entry_computation().root
        assert (root.called, root.trip_count) == (("condition", "body"), 4)
    listed = made({**loop, "backend_config_payload": {"id": 1}}, others=(BODY, condition), payloads=[b"", config])
    assert read(listed).entry_computation().root.trip_count == 4


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({"opcode": "iota", "dimensions": [1]}, {"iota_dimension": "1"}),
        ({"opcode": "broadcast"}, {"dimensions": "{}"}),
        ({"opcode": "get-tuple-element", "tuple_index": 0}, {"index": "0"}),
        ({"opcode": "compare", "comparison_direction": "LT"}, {"direction": "LT"}),
        ({"opcode": "sort", "dimensions": [0], "is_stable": True}, {"dimensions": "{0}", "is_stable": "true"}),
        (
            {"opcode": "slice", "slice_dimensions": [{"limit": 4, "stride": 1}, {"start": 1, "limit": 5, "stride": 2}]},
            {"slice": "{[0:4:1], [1:5:2]}"},
        ),
        (
            {"opcode": "pad", "padding_config": {"dimensions": [{"edge_padding_low": -1}, {"interior_padding": 2}]}},
            {"padding": "-1_0_0x0_0_2"},
        ),
        (
            {"opcode": "collective-permute", "source_target_pairs": [{"source": 0, "target": 1}, {"source": 1}]},
            {"source_target_pairs": "{{0,1},{1,0}}"},
        ),
        (
            {
                "opcode": "convolution",
                "feature_group_count": 4,
                "window": {"dimensions": [{"size": 3, "stride": 2, "padding_low": 1, "padding_high": 1,
                                           "window_dilation": 1, "base_dilation": 1, "window_reversal": True}]},
                "convolution_dimension_numbers": {"input_feature_dimension": 2, "input_spatial_dimensions": [1],
                    "kernel_input_feature_dimension": 1, "kernel_output_feature_dimension": 2,
                    "kernel_spatial_dimensions": [0], "output_feature_dimension": 2, "output_spatial_dimensions": [1]},
            },
            {"window": "{size=3 stride=2 pad=1_1 rhs_reversal=1}", "dim_labels": "b0f_0io->b0f",
             "feature_group_count": "4"},
        ),
        (
            {"opcode": "custom-call", "output_operand_aliasing": [{"output_shape_index": [1], "operand_index": 2}]},
            {"output_to_operand_aliasing": "{{1}: (2, {})}"},
        ),
    ],
)  # fmt: skip
def test_attributes_as_text_spells_them(fields: dict[str, Any], attributes: dict[str, str]) -> None:
    assert read(made({"name": "r", "operand_ids": [1], **fields})).entry_computation().root.attributes == attributes


@pytest.mark.parametrize("sizes", [(1 << 62,), (1 << 60, 1 << 60, 1)])
def test_allocations_of_more_than_any_memory_are_refused(sizes: tuple[int, ...]) -> None:
    proto = made({"name": "r", "opcode": "copy", "operand_ids": [1]})
    proto.buffer_assignment.logical_buffers.add(id=3, size=32, defined_at={"instruction_name": "p"})
    for index, size in enumerate(sizes):
        proto.buffer_assignment.buffer_allocations.add(index=index, size=size)
    with pytest.raises(DataError, match="allocation"):
        read(proto)


def test_buffers_and_heap_events() -> None:
    proto = made({"name": "r", "opcode": "copy", "operand_ids": [1]})
    assignment = proto.buffer_assignment
    assignment.logical_buffers.add(id=3, size=32, defined_at={"instruction_name": "p"})
    assignment.logical_buffers.add(id=4, size=32, defined_at={"instruction_id": 2})
    assignment.buffer_allocations.add(index=0, size=64, color=1, assigned=[{"logical_buffer_id": 4, "offset": 32}])
    assignment.heap_simulator_traces.add(
        events=[{"buffer_id": 4, "instruction_name": "r"}, {"kind": 2, "buffer_id": 3, "share_with_canonical_id": 4}]
    )
    found = read(proto).buffer_assignment
    assert [(one.instruction, one.allocation, one.offset) for one in found.buffers.values()] == [
        ("p", None, None),
        ("r", 0, 32),
    ]
    assert (found.allocations[0].memory_space, found.allocations[0].buffers) == (1, (4,))
    assert found.heap_traces == (
        (
            HeapEvent(kind="alloc", buffer=4, instruction="r"),
            HeapEvent(kind="share_with", buffer=3, instruction="", share_with=4),
        ),
    )
    assignment.heap_simulator_traces[0].events[0].kind = 7
    assert refused(proto.SerializeToString()) == "corrupt HLO proto: a heap event of kind 7"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"operand_ids": [9]}, "an operand 9 that is not in its computation"),
        ({"operand_ids": [2]}, "'r' in computation 'main' uses 'r', which is not defined before it"),
        ({"called_computation_ids": [9]}, "a call of computation 9, which is not in the module"),
        ({"called_computation_ids": [1]}, "computation 'main' calls itself"),
        ({"shape": {"element_type": 99}}, "unknown element type 99"),
        ({"shape": {"element_type": 11, "dimensions": [1] * 100}}, "a shape of 100 dimensions"),
        ({"shape": {"element_type": 11, "dimensions": [-1]}}, "a dimension that is negative or beyond 64 bits"),
        (
            {"iota_collective_device_list": {"num_replica_groups": 10**6, "num_devices_per_group": 10**6,
                                             "iota_reshape_dims": [10**12]}},
            "replica groups of 1,000,000,000,000 devices: more than any machine has",
        ),
        (
            {"mesh_axes_replica_group_list": {"mesh": {"axes": [{"name": "x", "size": 10**12}]}, "axes": [{}]}},
            "replica groups of 1,000,000,000,000 devices: more than any machine has",
        ),
        (
            {"mesh_axes_replica_group_list": {"mesh": {"axes": [{"name": "x", "size": 2}]},
                                              "axes": [{"mesh_axis_index": -1}]}},
            "replica groups along an axis that their mesh lacks",
        ),
        ({"id": 1}, "computation 'main' has two instructions of the same id"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(fields: dict[str, Any], said: str) -> None:
    proto = made({"name": "r", "opcode": "all-gather", **fields})
    assert refused(proto.SerializeToString()) == f"corrupt HLO proto: {said}"


def test_bytes_that_are_no_module() -> None:
    assert refused(b"") == "no HLO module in it, or cut off"
    assert refused(b"hello") == "HLO proto is cut off or corrupt: field of unknown wire type 4 at byte 2"
    assert refused(b"\x0a\xff") == "HLO proto is cut off or corrupt: truncated varint at byte 1"


def nested_shape(depth: int) -> bytes:
    """Tuples in tuples, by hand: the protobuf package would not serialize them."""
    shape = b""
    for _ in range(depth):
        size = len(shape)
        length = b""
        while size > 0x7F:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        shape = b"\x22" + length + bytes([size]) + shape
    return shape


def test_shapes_nested_beyond_reason_are_refused() -> None:
    shape = message("hlo.ShapeProto").FromString(nested_shape(70))
    whole = made({"name": "r", "opcode": "tuple", "shape": shape})
    part = whole.hlo_module.computations[0].instructions[1].shape
    while part.tuple_shapes:
        part.element_type = 13
        part = part.tuple_shapes[0]
    assert refused(whole.SerializeToString()) == "corrupt HLO proto: tuples nested more than 64 deep"
    with pytest.raises(DataError, match=r"^m: cut off or corrupt: not a ShapeProto$"):
        decode("hlo.ShapeProto", nested_shape(5_000), "m")


def test_a_bomb_of_empty_instructions_is_refused_before_it_is_parsed() -> None:
    count = 1_000_000
    computation = b"\x12\x00" * count
    size = len(computation)
    length = bytes([size & 0x7F | 0x80, (size >> 7) & 0x7F | 0x80, size >> 14])
    module = b"\x1a" + length + computation
    size = len(module)
    data = b"\x0a" + bytes([size & 0x7F | 0x80, (size >> 7) & 0x7F | 0x80, size >> 14]) + module
    tracemalloc.start()
    try:
        assert refused(data) == "HLO proto is cut off or corrupt: an instruction of 0 bytes"
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
    finally:
        tracemalloc.stop()


def test_the_pool_is_ours_alone() -> None:
    from google.protobuf.descriptor_pool import Default

    assert message("hlo.HloProto") is message("hlo.HloProto")
    assert pool().FindMessageTypeByName("hlo.HloProto") is message("hlo.HloProto").DESCRIPTOR
    with pytest.raises(KeyError):
        Default().FindMessageTypeByName("hlo.HloProto")


def test_importing_the_readers_does_not_load_protobuf() -> None:
    program = (
        "import sys, perfscope.analyzers.readers.hlo.proto, perfscope.analyzers.readers.hlo.text\n"
        "assert not [name for name in sys.modules if name.startswith('google')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


SCHEMA = """
Outer
  1 int64 number
  3 *Outer.Inner parts
Outer.Inner
  2 enum kind
  4 *string names
"""


def test_a_schema_means_what_it_says() -> None:
    assert list(fields(SCHEMA)) == [
        Field(message="Outer", number=1, type="int64", name="number", repeated=False),
        Field(message="Outer", number=3, type="Outer.Inner", name="parts", repeated=True),
        Field(message="Outer.Inner", number=2, type="enum", name="kind", repeated=False),
        Field(message="Outer.Inner", number=4, type="string", name="names", repeated=True),
    ]
    (outer,) = file_descriptor("mine", SCHEMA).message_type
    assert [(one.name, one.number, one.type_name) for one in outer.field] == [
        ("number", 1, ""),
        ("parts", 3, ".mine.Outer.Inner"),
    ]
    assert [(one.name, one.number) for one in outer.nested_type[0].field] == [("kind", 2), ("names", 4)]


def test_fields_we_do_not_know_are_passed_over() -> None:
    assert decode("hlo.SourceTarget", b"\x08\x01\x98\x06\x07\x10\x02", "x").target == 2


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\xff\xff", b"\x0a\x02\xff\xfe"])
def test_damaged_bytes_are_one_line(data: bytes) -> None:
    with pytest.raises(DataError) as caught:
        decode("hlo.HloComputationProto", data, "a.pb")
    assert str(caught.value) == "a.pb: cut off or corrupt: not a HloComputationProto"
