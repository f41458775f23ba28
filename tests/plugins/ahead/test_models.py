"""Hybrids, pictures and adapters compile for an H100 and a TPU; a defect is the first finding, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfscope
from perfscope.__main__ import run
from tests.accuracy.labels import lines_of, place_of
from tests.plugins.ahead.compilers import require

pytestmark = [pytest.mark.aot, pytest.mark.slow]

SMALL = "--dtype bfloat16 --batch 2 --seq 256 --dim 256 --heads 16 --layers 1"
FEW_ROWS = "--dtype bfloat16 --batch 1 --seq 64 --dim 1024 --layers 1"
PICTURES = "--dtype bfloat16 --batch 2 --seq 64 --dim 256 --heads 4 --layers 1"
PROGRAMS = (
    ("hybrid", f"--variant naive {SMALL}", "unfused_attention", ""),
    ("jax.hybrid", f"--variant scan {SMALL}", "sequential_scan", "sequential_scan"),
    ("jax.hybrid", f"--variant naive {SMALL}", "unfused_attention", "unfused_attention"),
    ("jax.hybrid", f"--variant kernels {SMALL}", "", ""),
    ("jax.lora", f"--variant merged {FEW_ROWS}", "constant_work", ""),
    ("jax.lora", f"--variant factors {FEW_ROWS}", "", ""),
    ("vision.classifier", PICTURES, "", ""),
    ("jax.vision.classifier", PICTURES, "", ""),
    ("jax.vision.diffusion", PICTURES, "", ""),
)
"""Workload, flags, the first finding on an H100 and on a v5e; no finding at a labelled line if ``""``."""


@pytest.mark.parametrize("target", ["h100", "v5e"])
@pytest.mark.parametrize(("name", "flags", "on_h100", "on_v5e"), PROGRAMS)
def test_a_model(
    target: str, name: str, flags: str, on_h100: str, on_v5e: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_jax = name.startswith("jax.")
    if target == "v5e" and not in_jax:
        pytest.skip("torch compiles for GPUs here")
    require("tpu" if target == "v5e" else "gpu-nvidia" if in_jax else "torch")
    device = "tpu" if target == "v5e" else "gpu" if in_jax else "cuda"
    monkeypatch.chdir(tmp_path)
    words = f"-m perfscope.workloads.{name} --device {device} {flags}"
    assert run(["compile", "--target", target, "-q", *words.split()]) == 0
    findings = perfscope.analyze(perfscope.load(tmp_path / "perfscope-runs" / "latest")).findings()
    expected = on_v5e if target == "v5e" else on_h100
    if expected:
        rule, first = findings[0]
        assert rule == expected
        assert place_of(first.where.file, first.where.line) in lines_of(rule, "")
    else:
        assert [rule for rule, one in findings if place_of(one.where.file, one.where.line) in lines_of(rule, "")] == []
