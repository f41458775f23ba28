"""The HloProto reader: packed or not, and damaged files."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.load import load_one
from perfscope.analyzers.readers import hlo_proto
from perfscope.profiler.errors import DataError
from tests.analyzers.hlo.test_proto import BODY, made


def proto() -> Any:
    whole = made(
        {"name": "s", "opcode": "async-start", "operand_ids": [1], "called_computation_ids": [7],
         "metadata": {"op_name": "jit(f)/psum_scatter", "stack_frame_id": 1}},
        {"name": "d", "opcode": "async-done", "operand_ids": [2], "backend_config": b'{"operation_queue_id":"0"}'},
        others=(BODY,),
        schedule={"sequences": [{"key": 1, "value": {"instruction_ids": [1, 2, 3]}}]},
        stack_frame_index={"file_names": ["a.py"], "file_locations": [{"file_name_id": 1, "line": 4}],
                           "stack_frames": [{"file_location_id": 1}]},
    )  # fmt: skip
    assignment = whole.buffer_assignment
    assignment.logical_buffers.add(id=3, size=32, defined_at={"instruction_name": "p"})
    assignment.buffer_allocations.add(index=0, size=64, assigned=[{"logical_buffer_id": 3}])
    assignment.heap_simulator_traces.add(events=[{"buffer_id": 3}, {"kind": 1, "buffer_id": 3}])
    return whole


WHOLE = proto().SerializeToString()
ALONE = proto().hlo_module.SerializeToString()


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        hlo_proto.read(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("content", [WHOLE, ALONE])
def test_a_proto_is_a_trace_without_rows(tmp_path: Path, content: bytes, pack: object) -> None:
    path = tmp_path / "module.pb"
    path.write_bytes(pack(content))  # type: ignore[operator]
    trace = load_one(path)
    trace.check()
    assert (trace.source.format, trace.source.events_read, trace.recorded) == ("hlo_proto", 3, {"hlo"})
    (module,) = trace.hlo
    assert (module.platform, module.buffer_assignment is not None) == ("gpu", content is WHOLE)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x0a",
        b"\x0a\x05hello",
        b"\n\n\n\n\n",
        b"\x0a\x0b\x08\x01\x12\x07/host:x",  # an XSpace: its first plane begins with an id
        b"\x0a\x09\x12\x07/host:x",
        b"\x0a\x04\x08\x01\x10\x02",  # pprof
    ],
)
def test_other_protos_are_not_taken_for_a_module(head: bytes) -> None:
    assert not hlo_proto.sniff(Path("x"), head)


def test_bad_files_get_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad"
    for content, said in (
        (b"", "empty file"),
        (b"\x00\x01\x02", "HLO proto is cut off or corrupt"),
        (gzip.compress(WHOLE)[:-9], "gzip is cut off"),
        (lzma.compress(WHOLE)[:-9], "xz is cut off"),
    ):
        path.write_bytes(content)
        assert said in refused(path)
    monkeypatch.setattr(hlo_proto, "MAX_PROTO_BYTES", 100)
    for packed in (WHOLE, gzip.compress(WHOLE), lzma.compress(WHOLE)):
        path.write_bytes(packed)
        assert "refused" in refused(path)


def ends() -> set[int]:
    """Lengths at which a prefix of the proto is a proto itself: after the module, and after the buffers."""
    module = len(WHOLE) - proto().buffer_assignment.ByteSize()
    return {module - size for size in range(1, 4)} | {len(WHOLE)}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line_or_loses_only_the_buffers(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut"
    size = data.draw(st.integers(0, len(WHOLE) - 1))
    path.write_bytes(WHOLE[:size])
    if size in ends():
        try:
            assert hlo_proto.read(path).hlo[0].buffer_assignment is None
        except DataError:
            refused(path)
    else:
        refused(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_are_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped"
    path.write_bytes(damaged)
    try:
        hlo_proto.read(path).check()
    except DataError:
        refused(path)
