"""``perfscope run`` on a JAX workload, from the command line to the line of its defect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

SSM = REPOSITORY / "perfscope" / "workloads" / "jax" / "ssm.py"
ARGUMENTS = ("--size", "tiny", "--steps", "16")


def perfscope(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perfscope", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("variant", "status"), [("scan", "flagged"), ("associative", "clean")])
def test_a_workload_is_captured_and_judged(variant: str, status: str, tmp_path: Path) -> None:
    ran = perfscope(tmp_path, "run", "-m", "perfscope.workloads.jax.ssm", "--variant", variant, *ARGUMENTS)
    assert ran.returncode == 0, ran.stderr
    assert "step  15  loss" in ran.stdout
    judged = perfscope(tmp_path, "analyze", "latest", "--format", "json")
    report = json.loads(judged.stdout)
    states = {capture["pass"]: capture["state"] for capture in report["run"]["processes"][0]["captures"]}
    assert states.items() >= {"timing": "recorded", "events": "recorded", "hlo": "recorded"}.items()
    outcomes = {outcome["rule"]: outcome for outcome in report["outcomes"]}
    scan = outcomes["sequential_scan"]
    assert (scan["status"], scan["reason"]) == (status, None)
    lines = SSM.read_text().splitlines()
    places = {(Path(found["where"]["file"]).name, found["where"]["line"]) for found in scan["findings"]}
    (body,) = (number for number, line in enumerate(lines, start=1) if "lax.scan(advance" in line)
    assert places == ({("ssm.py", body)} if status == "flagged" else set())
