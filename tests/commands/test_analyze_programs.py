"""``perfscope analyze`` on several compiled programs: one thing, and which of them a finding is about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from tests.programs.test_programs import program


def report_of_programs(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(["analyze", "--format", "json", *map(str, arguments)]) == 0
    held: dict[str, Any] = json.loads(capsys.readouterr().out)
    return held


def test_files_and_folders_of_programs_are_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = program(tmp_path / "one" / "a.txt")
    program(tmp_path / "two" / "b.txt", op="tanh")
    program(tmp_path / "two" / "c.txt", op="exponential")
    (source,) = report_of_programs(capsys, first, tmp_path / "two")["sources"]
    assert source["events_read"] == 6
    assert "3 compiled programs" in source["notes"][0]
    assert run(["analyze", str(first), str(tmp_path / "two")]) == 0
    printed = capsys.readouterr().out
    assert "3 compiled programs" in " ".join(printed.split())
    assert "perfscope analyze -v" not in printed  # files and a folder are not one path to give again


@pytest.mark.corpus
def test_findings_on_eight_real_programs_name_the_program(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((corpus / "aot").glob("gpu_ckpt_*.hlo.txt.gz")):
        shutil.copy(file, tmp_path)
    held = report_of_programs(capsys, tmp_path)
    (source,) = held["sources"]
    assert "8 compiled programs" in source["notes"][0]
    findings = [one for outcome in held["outcomes"] for one in outcome["findings"]]
    assert findings
    for one in findings:
        assert "gpu_ckpt_" in one["title"] + one["detail"]
        assert all(str(row["program"]).startswith("gpu_ckpt_") for row in one["evidence"])


HEAD = "HloModule jit_step, is_scheduled=true\n"
CHAIN = """
%body (p: f32[N]) -> f32[N] {
  %p = f32[N]{0} parameter(0)
  ROOT %e = f32[N]{0} exponential(%p)
}
ENTRY %main (a: f32[N]) -> f32[N] {
  %a = f32[N]{0} parameter(0)
  %made = f32[N]{0} fusion(%a), kind=kLoop, calls=%body, CONFIG
  %read = f32[N]{0} fusion(%made), kind=kLoop, calls=%body
  ROOT %view = f32[N]{0} bitcast(%read)
}
"""
GPU = 'backend_config={"operation_queue_id":"0"}'
CPU = 'backend_config={"outer_dimension_partitions":["2"]}'
ELEMENTS = 1 << 25


def chain(folder: Path, config: str = GPU) -> str:
    path = folder / "step.hlo.txt"
    path.write_text(HEAD + CHAIN.replace("CONFIG", config).replace("[N]", f"[{ELEMENTS}]"))
    return str(path)


def report_for_device(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["analyze", "--format", "json", *arguments]) == 0
    held: dict[str, Any] = json.loads(capsys.readouterr().out)
    return held


def unfused(held: dict[str, Any]) -> dict[str, Any]:
    (outcome,) = (one for one in held["outcomes"] if one["rule"] == "unfused_ops")
    (finding,) = outcome["findings"]
    found: dict[str, Any] = finding
    return found


def test_another_device_has_another_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = chain(tmp_path)
    assumed, named = (
        unfused(report_for_device(capsys, path)),
        unfused(report_for_device(capsys, path, "--device", "b200")),
    )
    assert assumed["cost_ns"] == pytest.approx(8 * ELEMENTS / 3.352e12 * 1e9, rel=0.001)
    assert named["cost_ns"] == pytest.approx(8 * ELEMENTS / 7.7e12 * 1e9, rel=0.001)
    assert "H100 SXM (assumed)" in assumed["detail"]
    assert "B200" in named["detail"]
    assert "(assumed)" not in named["detail"]
    assert (assumed["severity"], named["severity"]) == ("medium", "high")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("A100", "close: A100 SXM 80GB, A100 PCIe 80GB, A100 40GB"),
        ("abacus", "known: GB300, B300, GB200, B200"),
        ("", "known: GB300"),
    ],
)
def test_an_unknown_device_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert run(["analyze", chain(tmp_path), "--device", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert words in said.err


@pytest.mark.parametrize(
    ("config", "device", "words"),
    [(CPU, "H200", "compiled for a CPU"), (GPU, "TPU v5p", "compiled for a GPU, not for a TPU")],
)
def test_a_device_that_cannot_run_the_program_is_not_used_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, device: str, words: str
) -> None:
    (source,) = report_for_device(capsys, chain(tmp_path, config), "--device", device)["sources"]
    (note,) = (note for note in source["notes"] if "--device" in note)
    assert f"--device {device} is not used" in note
    assert words in note


@pytest.mark.corpus
def test_what_was_recorded_wins(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")
    (source,) = report_for_device(capsys, path, "--device", "TPU v5p", "--rule", "blocking_collective")["sources"]
    assert any("names the device the programs ran on, TPU v6 Lite" in note for note in source["notes"])
