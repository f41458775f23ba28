from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from perfscope.analyzers.readers import hlo_text
from perfscope.analyzers.readers._fusion_dump import refusals_beside

DUMP = 'fusion_steps {\n  producer_ineligible {\n    producer_name: "div.1"\n    reason: "because"\n  }\n}\n'
PROGRAM = "HloModule jit_step\nENTRY %main (a: f32[8]) -> f32[8] {\n  ROOT %a = f32[8]{0} parameter(0)\n}\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt"
    path.write_text(PROGRAM)
    return path


def test_the_dump_of_the_same_module_is_found(program: Path):
    (program.parent / "module_0012.jit_step.priority_fusion_dump.txt").write_text(DUMP)
    assert refusals_beside(program) == ({"div.1": "because"}, None)
    assert hlo_text.read(program).hlo[0].fusion_refusals == {"div.1": "because"}


def test_the_dump_of_another_module_is_not(program: Path):
    (program.parent / "module_0013.jit_step.priority_fusion_dump.txt").write_text(DUMP)
    assert refusals_beside(program) == ({}, None)
    assert hlo_text.read(program).hlo[0].fusion_refusals == {}


def test_a_dump_that_is_cut_off_leaves_the_program_readable_and_says_so(program: Path):
    packed = gzip.compress(DUMP.encode() * 50)
    (program.parent / "module_0012.jit_step.priority_fusion_dump.txt.gz").write_bytes(packed[: len(packed) // 2])
    trace = hlo_text.read(program)
    assert trace.hlo[0].fusion_refusals == {}
    assert any("XLA's reasons are left out" in note for note in trace.source.notes)


@pytest.mark.corpus
def test_a_real_dump_beside_its_program(corpus: Path, tmp_path: Path):
    shutil.copy(corpus / "aot" / "gpu_moe_ragged.hlo.txt.gz", tmp_path / "moe_ragged.hlo.txt.gz")
    shutil.copy(corpus / "aot" / "moe_ragged.priority_fusion_dump.txt.gz", tmp_path)
    (module,) = hlo_text.read(tmp_path / "moe_ragged.hlo.txt.gz").hlo
    assert module.fusion_refusals["gemm_fusion_dot.11"] == "the producer is not fusible"
