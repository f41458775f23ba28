"""The HLO text reader: what it takes for HLO, and what it says of StableHLO and of damaged files."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import load_one
from perfscope.analyzers.readers import hlo_text
from perfscope.profiler.errors import DataError
from tests.analyzers.hlo.programs import ADD, program

TEXT = program(
    "  %p = f32[8]{0} parameter(0)\n"
    "  %k = f32[2]{0} constant({1, 2})\n"
    "  %g = (f32[8]{0}, /*index=1*/f32[16]{0}) all-gather-start(%p), replica_groups=[1,2]<=[2], dimensions={0},"
    ' metadata={op_name="jit(f)/add" source_file="a.py" source_line=3}, backend_config={"operation_queue_id":"0"}\n'
    "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups=mesh['x'=2] {'x'}, to_apply=%add",
    header=", is_scheduled=true, num_partitions=2",
    before='FileNames\n1 "a.py"\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n' + ADD,
)


def refused(path: Path) -> str:
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
    assert "the program before XLA optimized it" in load_one(path).source.notes[1]


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
    assert str(caught.value).startswith(f"{path}: StableHLO (MLIR), the program before XLA compiled it")
    assert "lowered.compile().as_text()" in str(caught.value)


@pytest.mark.parametrize(
    "head", [b"", b"{}", b"HLO", b"module = 3\n", b"import torch.nn.Module", b"#!/bin/sh\n", b"\x0a\x05"]
)
def test_what_is_no_hlo_text(head: bytes) -> None:
    assert not hlo_text.sniff(Path("x"), head)


def test_bad_files_get_one_line(tmp_path: Path) -> None:
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
        assert said in refused(path)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo_text, "MAX_TEXT_BYTES", 100_000)
    text = TEXT.replace("{1, 2}", "{" + "1, " * 100_000 + "2}").encode()
    path = tmp_path / "big"
    for packed in (text, gzip.compress(text), lzma.compress(text)):
        path.write_bytes(packed)
        assert "refused" in refused(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut"
    # without its last newline a module is still whole
    path.write_bytes(TEXT.encode()[: data.draw(st.integers(0, len(TEXT.rstrip()) - 1))])
    refused(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_are_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(TEXT.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped"
    path.write_bytes(damaged)
    try:
        hlo_text.read(path).check()
    except DataError:
        refused(path)


def test_the_command_refuses_with_one_line_and_exit_code_4(tmp_path: Path) -> None:
    path = tmp_path / "module.txt"
    path.write_text(TEXT[:-20])
    done = subprocess.run([sys.executable, "-m", "perfscope", "analyze", str(path)], capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "cut off in computation 'main'" in done.stderr
