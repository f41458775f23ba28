"""Hooks in torch: each is heard, and each leaves torch as it was."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session.pass_runner import CAPTURES, load_capture, unavailable
from perfscope.profiler.session.passes import passes
from perfscope.profiler.session.steps import Source
from perfscope.profiler.torch.hooks import Hooks
from perfscope.profiler.torch.profiler import TorchProfilerCapture
from tests.session.programs import plain

pytestmark = pytest.mark.torch


class Heard:
    """Stands for a step finder."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def edge(self, source: Source) -> None:
        self.events.append(source)

    def annotation_enter(self, name: str) -> None:
        self.events.append(f"+{name}")

    def annotation_exit(self, name: str) -> None:
        self.events.append(f"-{name}")


def attributes() -> list[Any]:
    """Current attributes that hooks may replace."""
    import torch
    from torch.autograd.profiler import profile as kineto
    from torch.autograd.profiler import record_function

    return [
        torch.optim.Optimizer.__dict__["profile_hook_step"].__func__,
        torch.profiler.profile.__dict__["step"],
        record_function.__dict__["__enter__"],
        record_function.__dict__["__exit__"],
        torch.cuda.nvtx.range_push,
        torch.cuda.nvtx.range_pop,
        kineto.__dict__["_prepare_trace"],
        kineto.__dict__["__exit__"],
    ]


def test_everything_is_heard_and_taken_out_again() -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    class Descent(torch.optim.SGD):
        """A separate class, because torch wraps a class's step once, when its first instance is made."""

        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)  # torch has hooked the base class, too
    before = attributes()
    hooks, heard, way = Hooks(), Heard(), []
    hooks.install(heard, ours=lambda: False, make_way=lambda: way.append(1))  # type: ignore[arg-type]
    try:
        assert all(now is not then for now, then in zip(attributes(), before, strict=True))
        first = Descent([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        second = Descent([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        first.step()
        second.step()
        assert [event for event in heard.events if event is Source.OPTIMIZER] == [Source.OPTIMIZER], "the first alone"
        assert set(hooks.optimizers) == {first, second}
        heard.events.clear()
        with record_function("mine"):
            pass
        assert heard.events == ["+mine", "-mine"]
        heard.events.clear()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            assert len(hooks.program_profilers) == 1
            profiler.step()
        assert way == [1]
        assert heard.events == [Source.PROFILER]
        assert len(hooks.program_profilers) == 0
    finally:
        hooks.remove()
    assert all(now is then for now, then in zip(attributes(), before, strict=True))
    heard.events.clear()
    first.step()
    assert heard.events == [], "an optimizer that was made under the hooks is silent without them"


def test_our_own_profiler_makes_nobody_give_way() -> None:
    from torch.profiler import ProfilerActivity, profile

    hooks, way = Hooks(), []
    hooks.install(Heard(), ours=lambda: True, make_way=lambda: way.append(1))  # type: ignore[arg-type]
    try:
        with profile(activities=[ProfilerActivity.CPU]):
            assert len(hooks.program_profilers) == 0
    finally:
        hooks.remove()
    assert way == []


def test_what_somebody_else_replaced_since_is_left_alone() -> None:
    from torch.autograd.profiler import record_function

    original = record_function.__enter__
    hooks = Hooks()
    hooks.install(Heard(), ours=lambda: False, make_way=lambda: None)  # type: ignore[arg-type]
    try:

        def theirs(self: Any) -> Any:
            return original(self)

        record_function.__enter__ = theirs
        hooks.remove()
        assert record_function.__enter__ is theirs
    finally:
        hooks.remove()
        record_function.__enter__ = original


def record(path: Path, index: int, steps: int = 1) -> dict[str, Any]:
    """Capture ``steps`` steps with the settings of pass ``at`` of the default level."""
    import torch

    capture = TorchProfilerCapture(passes(CaptureOptions())[index])
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
    assert [item.name for item in tmp_path.iterdir()] == ["timing.pt.trace.json.gz"], "no draft is left"


def test_the_trace_does_not_name_the_folder_it_was_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in record(tmp_path / "timing.pt.trace.json.gz", 0)["traceName"]


@pytest.mark.slow
def test_it_says_nothing_on_stderr_and_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    # In a separate process: libkineto takes its log level from its first user.
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tests.torch_capture.test_hooks import record\nbefore = dict(os.environ)\n"
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
