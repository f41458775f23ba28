from __future__ import annotations

import gzip
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.hlo import proto as hlo_proto
from perfscope.analyzers.readers.hlo import text
from perfscope.analyzers.readers.hlo import text as hlo_text
from perfscope.analyzers.readers.hlo.program import refusals_of
from perfscope.analyzers.readers.load import load_one
from perfscope.model.errors import DataError
from tests.hlo.modules import ADD, program
from tests.hlo.test_proto import BODY, made

DUMP = 'fusion_steps {\n  producer_ineligible {\n    producer_name: "div.1"\n    reason: "because"\n  }\n}\n'
PROGRAM = "HloModule jit_step\nENTRY %main (a: f32[8]) -> f32[8] {\n  ROOT %a = f32[8]{0} parameter(0)\n}\n"


@pytest.fixture
def dumped_program(tmp_path: Path) -> Path:
    path = tmp_path / "module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt"
    path.write_text(PROGRAM)
    return path


def test_the_dump_of_the_same_module_is_found(dumped_program: Path):
    (dumped_program.parent / "module_0012.jit_step.priority_fusion_dump.txt").write_text(DUMP)
    assert refusals_of(dumped_program) == ({"div.1": "because"}, None)
    assert text.read(dumped_program).hlo[0].fusion_refusals == {"div.1": "because"}


def test_the_dump_of_another_module_is_not(dumped_program: Path):
    (dumped_program.parent / "module_0013.jit_step.priority_fusion_dump.txt").write_text(DUMP)
    assert refusals_of(dumped_program) == ({}, None)
    assert text.read(dumped_program).hlo[0].fusion_refusals == {}


def test_a_dump_that_is_cut_off_leaves_the_program_readable_and_says_so(dumped_program: Path):
    packed = gzip.compress(DUMP.encode() * 50)
    (dumped_program.parent / "module_0012.jit_step.priority_fusion_dump.txt.gz").write_bytes(packed[: len(packed) // 2])
    trace = text.read(dumped_program)
    assert trace.hlo[0].fusion_refusals == {}
    assert any("XLA's reasons are left out" in note for note in trace.source.notes)


@pytest.mark.corpus
def test_a_real_dump_beside_its_program(corpus: Path, tmp_path: Path):
    shutil.copy(corpus / "aot" / "gpu_moe_ragged.hlo.txt.gz", tmp_path / "moe_ragged.hlo.txt.gz")
    shutil.copy(corpus / "aot" / "moe_ragged.priority_fusion_dump.txt.gz", tmp_path)
    (module,) = text.read(tmp_path / "moe_ragged.hlo.txt.gz").hlo
    assert module.fusion_refusals["gemm_fusion_dot.11"] == "the producer is not fusible"


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


def proto_refused(path: Path) -> str:
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


def test_bad_protos_get_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad"
    for content, said in (
        (b"", "empty file"),
        (b"\x00\x01\x02", "HLO proto is cut off or corrupt"),
        (gzip.compress(WHOLE)[:-9], "gzip is cut off"),
        (lzma.compress(WHOLE)[:-9], "xz is cut off"),
    ):
        path.write_bytes(content)
        assert said in proto_refused(path)
    monkeypatch.setattr(hlo_proto, "MAX_PROTO_BYTES", 100)
    for packed in (WHOLE, gzip.compress(WHOLE), lzma.compress(WHOLE)):
        path.write_bytes(packed)
        assert "refused" in proto_refused(path)


def valid_prefix_lengths() -> set[int]:
    """Lengths at which a prefix of the proto is a proto itself: after the module, and after the buffers."""
    module = len(WHOLE) - proto().buffer_assignment.ByteSize()
    return {module - size for size in range(1, 4)} | {len(WHOLE)}


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line_or_loses_only_the_buffers(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut"
    size = data.draw(st.integers(0, len(WHOLE) - 1))
    path.write_bytes(WHOLE[:size])
    if size in valid_prefix_lengths():
        try:
            assert hlo_proto.read(path).hlo[0].buffer_assignment is None
        except DataError:
            proto_refused(path)
    else:
        proto_refused(path)


TEXT = program(
    "  %p = f32[8]{0} parameter(0)\n"
    "  %k = f32[2]{0} constant({1, 2})\n"
    "  %g = (f32[8]{0}, /*index=1*/f32[16]{0}) all-gather-start(%p), replica_groups=[1,2]<=[2], dimensions={0},"
    ' metadata={op_name="jit(f)/add" source_file="a.py" source_line=3}, backend_config={"operation_queue_id":"0"}\n'
    "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups=mesh['x'=2] {'x'}, to_apply=%add",
    header=", is_scheduled=true, num_partitions=2",
    before='FileNames\n1 "a.py"\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n' + ADD,
)


def text_refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        hlo_text.read(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_module_alone_is_a_trace_without_rows(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "module.txt"
    path.write_bytes(pack(b"\xef\xbb\xbf// dumped\n" + TEXT.encode()))  # type: ignore[operator]
    trace = load_one(path)
    trace.check()
    assert (trace.source.format, trace.source.events_read, trace.recorded) == ("hlo_text", 7, {"hlo"})
    assert not any(len(rows) for rows in trace.rows.values())
    (module,) = trace.hlo
    assert (module.name, module.source, module.platform) == ("jit_f", str(path), "gpu")
    assert "not a recording of its run" in trace.source.notes[0]
    assert len(trace.source.notes) == 1


def test_rules_of_recordings_abstain(tmp_path: Path) -> None:
    path = tmp_path / "module.txt"
    path.write_text(TEXT)
    outcomes = {one.rule: one.status for one in analyze(load_one(path)).outcomes}
    assert outcomes["launch_bound"] == outcomes["pageable_copy"] == "abstained"


def test_a_program_that_is_not_optimized_yet_says_so(tmp_path: Path) -> None:
    path = tmp_path / "module.txt"
    path.write_text(program("  ROOT %p = f32[8]{0} parameter(0)"))
    note = load_one(path).source.notes[1]
    assert "the program before XLA optimized it" in note
    assert f"perfscope compile {path} --target" in note


MLIR = "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = stablehlo.add %a, %a : tensor<4xf32>\n}"


@pytest.mark.parametrize(
    "text",
    [
        "module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n  " + MLIR + "\n}\n",
        "#loc1 = loc(unknown)\nmodule @jit_f {\n  " + MLIR + "\n}\n",
        "// comment\nbuiltin.module {\n" + MLIR + "}",
        MLIR,
    ],
)
def test_stablehlo_gets_a_line_that_says_what_to_give_instead(tmp_path: Path, text: str) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        load_one(path)
    assert str(caught.value).startswith(f"{path}: StableHLO (MLIR), which no compiler has optimized yet")
    assert f"perfscope compile {path} --target" in str(caught.value)


@pytest.mark.parametrize(
    "head", [b"", b"{}", b"HLO", b"module = 3\n", b"import torch.nn.Module", b"#!/bin/sh\n", b"\x0a\x05"]
)
def test_what_is_no_hlo_text(head: bytes) -> None:
    assert not hlo_text.sniff(Path("x"), head)


def test_bad_texts_get_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    for content, said in (
        (b"", "empty file"),
        (b"\n \n", "empty file"),
        (b'HloModule x\n\nENTRY e {\n  %p = f32[] parameter(0), metadata={op_name="', "cut off in computation 'e'"),
        (b"HloModule x\n\n" + b"(" * 100_000, "line 3: neither a computation nor a table"),
        (b"HloModule x\n\nENTRY e {\n  %p = " + b"(" * 1_000_000, "cut off in computation 'e'"),
        (b"HloModule x\n\nENTRY e {\n  %p = f32[] constant(" + b"{" * 100 + b"}" * 200 + b")\n", "line 4: "),
        (gzip.compress(TEXT.encode())[:-20], "gzip is cut off within the first 4 MiB of its content"),
        (lzma.compress(TEXT.encode())[:-20], "xz is cut off after 667 bytes of its content"),
        (lzma.compress(TEXT.encode())[:30] + b"\x00" * 99, "xz is corrupt within the first 4 MiB"),
    ):
        path.write_bytes(content)
        assert said in text_refused(path)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo_text, "MAX_TEXT_BYTES", 100_000)
    text = TEXT.replace("{1, 2}", "{" + "1, " * 100_000 + "2}").encode()
    path = tmp_path / "big"
    for packed in (text, gzip.compress(text), lzma.compress(text)):
        path.write_bytes(packed)
        assert "refused" in text_refused(path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut"
    # without its last newline a module is still whole
    path.write_bytes(TEXT.encode()[: data.draw(st.integers(0, len(TEXT.rstrip()) - 1))])
    text_refused(path)
