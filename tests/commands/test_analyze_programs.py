"""``perfscope analyze`` on several compiled programs: one thing, and which of them a finding is about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from tests.programs.test_programs import program


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(["analyze", "--format", "json", *map(str, arguments)]) == 0
    held: dict[str, Any] = json.loads(capsys.readouterr().out)
    return held


def test_files_and_folders_of_programs_are_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = program(tmp_path / "one" / "a.txt")
    program(tmp_path / "two" / "b.txt", op="tanh")
    program(tmp_path / "two" / "c.txt", op="exponential")
    (source,) = report(capsys, first, tmp_path / "two")["sources"]
    assert source["events_read"] == 6
    assert "3 compiled programs" in source["notes"][0]
    assert run(["analyze", str(first), str(tmp_path / "two")]) == 0
    printed = capsys.readouterr().out
    assert "3 compiled programs" in printed.splitlines()[0]
    assert "perfscope analyze -v" not in printed  # files and a folder are not one path to give again


def test_no_report_is_written_over_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = program(tmp_path / "a.txt").read_text()
    program(tmp_path / "b.txt", op="tanh")
    assert run(["analyze", str(tmp_path), "-o", str(tmp_path / "a.txt")]) != 0
    assert "is the trace itself" in capsys.readouterr().err
    assert (tmp_path / "a.txt").read_text() == kept


@pytest.mark.corpus
def test_of_eight_real_programs_the_dominated_policies_are_named(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((corpus / "aot").glob("gpu_ckpt_*.hlo.txt.gz")):
        shutil.copy(file, tmp_path)
    held = report(capsys, tmp_path)
    (source,) = held["sources"]
    assert "8 compiled programs" in source["notes"][0]
    (remat,) = (outcome for outcome in held["outcomes"] if outcome["rule"] == "excess_remat")
    dominated = {one["where"]["module"]: one for one in remat["findings"] if "dominated" in one["subject"]}
    expected = {"scan": (0.0, 0.143, 0.001, 0.143), "unroll": (0.0, 0.149, 0.001, 0.148)}
    assert set(dominated) == {"jit_loss_scan", "jit_loss_unroll"}
    for form, shares in expected.items():
        finding = dominated[f"jit_loss_{form}"]
        rows = {row["program"]: row for row in finding["evidence"]}
        names = [f"gpu_ckpt_{policy}_{form}" for policy in ("none", "full", "dots", "names")]
        assert [rows[name]["recompute_share"] for name in names] == pytest.approx(shares, abs=6e-4)
        assert [rows[name]["beaten_by"] for name in names] == [None, None, None, f"gpu_ckpt_dots_{form}"]
        assert finding["title"].startswith(f"gpu_ckpt_names_{form} recomputes 14.")
        assert f"gpu_ckpt_dots_{form}, a program of the same function" in finding["title"]
    others = [one for outcome in held["outcomes"] for one in outcome["findings"] if "dominated" not in one["subject"]]
    assert others
    for one in others:
        assert one["title"].startswith("gpu_ckpt_")
        assert all(str(row["program"]).startswith("gpu_ckpt_") for row in one["evidence"])
