from __future__ import annotations

import gzip
import lzma
import shutil
from pathlib import Path

import pytest

from perfscope.analyzers.hlo.parse.thunks import read_thunks
from perfscope.analyzers.readers.hlo.program import thunks_of
from perfscope.analyzers.readers.load import load_all

TEXT = """\
001: kCustomKernel [source       | next=029 (9)] loop_broadcast_fusion_1 grid: [16384, 2, 1] threads: [128, 1, 1]
006: kWhile        [prev=005 (1) | next=026 (1)]
condition:
    007: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
  body:
    012: kAsyncStart         [prev=009 (1) | next=017 (3)] stream=communication_stream[0], async_id=12
        011: kAllGather [source | sink] kAllGather
    015: kAsyncDone          [source       | sink        ] async_id=12
026: kCustomKernel [prev=006 (1) | next=028 (2)] input_reduce_fusion grid: [128, 1, 1] threads: [256, 1, 1]
"""


def test_kernels_streams_and_edges() -> None:
    thunks = read_thunks(TEXT.splitlines(keepends=True))
    assert [(one.id, one.kind, one.depth) for one in thunks.thunks] == [
        (1, "CustomKernel", 0),
        (6, "While", 0),
        (7, "CustomKernel", 1),
        (12, "AsyncStart", 1),
        (11, "AllGather", 2),
        (15, "AsyncDone", 1),
        (26, "CustomKernel", 0),
    ]
    first, start = thunks.thunks[0], thunks.thunks[3]
    assert (first.name, first.blocks, first.threads, first.before, first.after) == (
        "loop_broadcast_fusion_1", 32768, 128, None, 29,
    )  # fmt: skip
    assert (start.stream, start.before, start.after) == ("communication_stream[0]", 9, 17)
    assert thunks.blocks()["loop_compare_fusion"] == 1
    assert not thunks.has_command_buffers


@pytest.mark.parametrize(
    "line", ["", "body:", "\x00" * 5000, "001: kX [", "9" * 5000 + ": kCopy [source | sink] kCopy"]
)
def test_what_is_no_thunk_is_left_out(line: str) -> None:
    assert read_thunks([line]).thunks == ()


@pytest.mark.corpus
def test_every_line_of_real_sequences_is_read(corpus: Path) -> None:
    files = sorted((corpus / "aot").glob("*.thunk_sequence.txt.gz"))
    assert files
    for file in files:
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        numbered = [line for line in lines if line.strip()[:1].isdigit()]
        assert len(read_thunks(lines).thunks) == len(numbered), file.name


FIXTURE = Path(__file__).parents[2] / "fixtures" / "h100-programs" / "mlp-swiglu-halves-two-none.hlo.pb.xz"


def test_the_launches_beside_a_program_come_with_it(tmp_path: Path) -> None:
    (tmp_path / "00.jit_step.hlo.pb").write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    (trace,) = load_all(tmp_path / "00.jit_step.hlo.pb")
    assert trace.hlo[0].thunks is None
    (tmp_path / "00.jit_step.thunk_sequence.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (trace,) = load_all(tmp_path / "00.jit_step.hlo.pb")
    assert trace.hlo[0].thunks is not None
    assert len(trace.hlo[0].thunks.thunks) == 7


def test_a_file_that_holds_none_is_said(tmp_path: Path) -> None:
    program = tmp_path / "00.jit_step.hlo.pb"
    shutil.copy(FIXTURE, program)
    beside = tmp_path / "00.jit_step.thunk_sequence.txt"
    beside.write_bytes(b"\x00\xff" * 100)
    found, note = thunks_of(program)
    assert found is None
    assert note is not None
    assert note.startswith("the launches are taken from the schedule: ")
    assert thunks_of(tmp_path / "other.hlo.pb") == (None, None)
