"""``perfscope doctor``: what can be captured here, and obstacles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfscope.profiler import doctor as module
from perfscope.profiler.session.pass_runner import tools
from tests.session.programs import environment


def ask(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfscope", "doctor", *words],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.torch
def test_it_says_of_every_tool_whether_it_can_capture() -> None:
    done = ask("--json", PERFSCOPE_UNHEARD_OF="planted-secret")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "perfscope.doctor/1"
    assert set(report["captures"]) == set(tools())
    assert report["captures"]["torch_profiler"] is None
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["torch"]["status"] == "ok"
    assert "PERFSCOPE_UNHEARD_OF" in checks["PERFSCOPE_*"]["text"]
    assert "planted-secret" not in done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_the_text_names_what_stands_in_the_way() -> None:
    done = ask(NSYS_PROFILING_SESSION_ID="7")
    assert done.returncode == 0, done.stderr
    assert "no      torch_profiler: Nsight Systems" in done.stdout
    assert "this machine" in done.stdout


@pytest.mark.parametrize(
    ("program", "name", "status"),
    [
        ("import os; os.abort()", "torch", "problem"),
        ('print(\'{"problem": "ModuleNotFoundError: No module named torch", "captures": {}}\')', "torch", "absent"),
        ("import time; time.sleep(60)", "torch", "problem"),
    ],
)
def test_a_torch_that_is_absent_crashes_or_hangs_is_said(
    monkeypatch: pytest.MonkeyPatch, program: str, name: str, status: str
) -> None:
    monkeypatch.setattr(module, "_PROBE", program)
    monkeypatch.setattr(module, "TORCH_SECONDS", 2.0)
    (check,) = module._torch_checks(module._probe())
    assert (check.name, check.status) == (name, status)


def test_a_build_for_a_gpu_that_sees_none_is_a_problem() -> None:
    probe = {"torch": "2", "cuda": "12", "hip": None, "activities": ["CPU"], "devices": [], "distributed": []}
    probe |= {"compiler": True, "triton": False}
    checks = {check.name: check for check in module._torch_checks(probe)}
    assert checks["devices"].status == "problem"
    probe["cuda"] = None
    checks = {check.name: check for check in module._torch_checks(probe)}
    assert checks["devices"].status == "absent"


@pytest.mark.parametrize(
    ("compiler", "triton", "devices", "status", "said"),
    [
        (True, False, False, "ok", "no Triton (GPUs need it)"),
        (True, True, True, "ok", "C++ compiler, Triton"),
        (True, False, True, "problem", "no Triton: nothing can be compiled for the device"),
        (False, False, False, "problem", "no C++ compiler on PATH"),
        (False, True, True, "problem", "no C++ compiler on PATH"),
    ],
)
def test_what_torch_compile_lacks_is_a_problem(
    compiler: bool, triton: bool, devices: bool, status: str, said: str
) -> None:
    check = module._compile_check(compiler=compiler, triton=triton, devices=devices)
    assert check.status == status
    assert said in check.text
    assert (check.advice is None) == (status == "ok")


@pytest.mark.parametrize(("level", "uid", "status"), [("2", 1, "ok"), ("4", 0, "ok"), ("4", 1, "problem")])
def test_a_kernel_that_refuses_sampling_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, uid: int, status: str
) -> None:
    (tmp_path / "level").write_text(level)
    monkeypatch.setattr(module, "PERF_PARANOID", tmp_path / "level")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert module._perf().status == status


@pytest.mark.parametrize(
    ("version", "nsys", "status"),
    [("0.2.11", True, "ok"), ("0.2.12", True, "problem"), ("0.2.17", False, "ok"), ("1.0", True, "problem")],
)
def test_an_nvtx_that_records_nothing_is_said_where_there_is_an_nsys(
    monkeypatch: pytest.MonkeyPatch, version: str, nsys: bool, status: str
) -> None:
    monkeypatch.setattr(module, "version", lambda _: version)
    monkeypatch.setattr(module.shutil, "which", lambda _: "/usr/bin/nsys" if nsys else None)
    assert module._nvtx().status == status


def test_a_full_disk_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    assert module._disk().status == "problem"
