from __future__ import annotations

import gzip
import lzma
import shutil
from pathlib import Path

from perfscope.analyzers.load import load
from perfscope.analyzers.readers._thunk_sequence import thunks_beside
from tests.analyzers.hlo.test_thunks import TEXT

FIXTURE = Path(__file__).parents[3] / "fixtures" / "h100-programs" / "mlp-swiglu-halves-two-none.hlo.pb.xz"


def test_the_launches_beside_a_program_come_with_it(tmp_path: Path) -> None:
    (tmp_path / "00.jit_step.hlo.pb").write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    (trace,) = load(tmp_path / "00.jit_step.hlo.pb")
    assert trace.hlo[0].thunks is None
    (tmp_path / "00.jit_step.thunk_sequence.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (trace,) = load(tmp_path / "00.jit_step.hlo.pb")
    assert trace.hlo[0].thunks is not None
    assert len(trace.hlo[0].thunks.thunks) == 7


def test_a_file_that_holds_none_is_said(tmp_path: Path) -> None:
    program = tmp_path / "00.jit_step.hlo.pb"
    shutil.copy(FIXTURE, program)
    beside = tmp_path / "00.jit_step.thunk_sequence.txt"
    beside.write_bytes(b"\x00\xff" * 100)
    found, note = thunks_beside(program)
    assert found is None
    assert note is not None
    assert note.startswith("the launches are taken from the schedule: ")
    assert thunks_beside(tmp_path / "other.hlo.pb") == (None, None)
