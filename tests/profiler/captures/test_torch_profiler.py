"""The torch.profiler capture: quiet, whole, and gone again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session.pass_runner import CAPTURES, load_capture, unavailable
from perfscope.profiler.session.passes import passes
from perfscope.profiler.torch.profiler import TorchProfilerCapture
from tests.profiler.programs import plain

pytestmark = pytest.mark.torch


def record(path: Path, at: int, steps: int = 1) -> dict[str, Any]:
    """Capture ``steps`` steps with the settings of pass ``at`` of the default level."""
    import torch

    capture = TorchProfilerCapture(passes(CaptureOptions())[at])
    capture.start(7)
    for number in range(7, 7 + steps):
        capture.begin_step(number)
        torch.ones(4).add(1)
        capture.end_step()
    capture.stop((7, 7 + steps), None)
    capture.save(path)
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def names(content: dict[str, Any], category: str) -> list[str]:
    return [event["name"] for event in content["traceEvents"] if event.get("cat") == category]


def test_a_window_holds_its_steps_and_says_which(tmp_path: Path) -> None:
    content = record(tmp_path / "timing.pt.trace.json.gz", 0, steps=2)
    assert sorted(names(content, "user_annotation")) == ["perfscope.step#7", "perfscope.step#8"]
    assert names(content, "cpu_op").count("aten::add") == 2
    assert content["perfscope"] == {"pass": "timing", "steps": [7, 9], "cut_off": None}
    assert [one.name for one in tmp_path.iterdir()] == ["timing.pt.trace.json.gz"], "no draft is left"


def test_the_trace_does_not_name_the_folder_it_was_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in record(tmp_path / "timing.pt.trace.json.gz", 0)["traceName"]


def test_it_says_nothing_on_stderr_and_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    # In a process of its own: libkineto takes its log level from whoever uses it first.
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tests.profiler.captures.test_torch_profiler import record\nbefore = dict(os.environ)\n"
        "record(Path(sys.argv[1]), 1)\nassert dict(os.environ) == before\n"
    )
    path = tmp_path / "detail.pt.trace.json.gz"
    done = plain("-c", program, str(path), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert path.exists()


def test_under_nsight_systems_it_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable("torch_profiler") is None
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    assert "Nsight Systems" in str(unavailable("torch_profiler"))


def test_every_tool_can_be_asked() -> None:
    for tool in CAPTURES:
        answer = load_capture(tool).available()
        assert answer is None or answer.strip()


def test_a_tool_that_cannot_be_loaded_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CAPTURES, "op_graph", "perfscope.profiler.session.pass_runner.absent")
    assert "ModuleNotFoundError" in str(unavailable("op_graph"))
