"""step() and region(): received by a listener and by tools, free and harmless without listeners."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from perfscope.profiler.session import annotate
from perfscope.profiler.session.annotate import region, step, steps
from tests.session.programs import environment


class Ears:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def explicit_edge(self) -> None:
        self.heard.append("edge")

    def explicit_enter(self) -> None:
        self.heard.append("enter")

    def explicit_exit(self) -> None:
        self.heard.append("exit")

    def annotation_enter(self, name: str) -> None:
        self.heard.append(f"+{name}")

    def annotation_exit(self, name: str) -> None:
        self.heard.append(f"-{name}")


class Nvtx:
    """An nvtx module that a tool listens to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def push_range(self, message: str, domain: str) -> None:
        self.calls.append(("push", message, domain))

    def pop_range(self, domain: str) -> None:
        self.calls.append(("pop", domain))

    def start_range(self, message: str, domain: str) -> int:
        self.calls.append(("start", message, domain))
        return len(self.calls)

    def end_range(self, index: int) -> None:
        self.calls.append(("end", index))


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ears]:
    monkeypatch.setattr(annotate, "_nvtx", False)
    listener = Ears()
    annotate.listen(listener)
    yield listener
    annotate.listen(None)


def test_a_listener_hears_steps_and_regions(ears: Ears) -> None:
    step()
    with step(), region("a"), region("b"):
        pass
    assert ears.heard == ["edge", "edge", "enter", "+a", "+b", "-b", "-a", "exit"]


def test_each_turn_of_a_loop_is_a_step(ears: Ears) -> None:
    assert list(steps("abc")) == ["a", "b", "c"]
    assert ears.heard == ["edge"] * 3


def test_a_decorated_function_is_a_region_each_time_it_is_called(ears: Ears) -> None:
    @region("work")
    def work(depth: int) -> int:
        """Documented."""
        return depth if depth == 0 else work(depth - 1)

    @region("wait")
    async def wait() -> str:
        ears.heard.append("inside")
        return "done"

    assert work(1) == 0
    assert work.__doc__ == "Documented."
    assert asyncio.run(wait()) == "done"
    assert ears.heard == ["+work", "+work", "-work", "-work", "+wait", "inside", "-wait"]


def test_an_exception_goes_through_and_the_region_ends(ears: Ears) -> None:
    with pytest.raises(KeyError), region("a"):
        raise KeyError
    assert ears.heard == ["+a", "-a"]


def test_without_anybody_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotate, "_nvtx", False)
    with step(), region("a"):
        step()


def test_at_exit_the_last_step_is_closed_inside_a_range_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = Nvtx()
    registered: list[Any] = []
    monkeypatch.setattr(annotate, "_nvtx", nvtx)
    monkeypatch.setattr(annotate, "_open_step", None)
    monkeypatch.setattr(annotate, "_closes_at_exit", False)
    monkeypatch.setattr("atexit.register", registered.append)
    step()
    step()
    (at_exit,) = registered
    at_exit()
    at_exit()
    assert nvtx.calls == [
        ("start", "step", "perfscope"),
        ("end", 1),
        ("start", "step", "perfscope"),
        ("start", "exit", "perfscope"),
        ("end", 3),
        ("end", 4),
    ]


def test_a_step_that_ended_by_itself_needs_no_end_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = Nvtx()
    monkeypatch.setattr(annotate, "_nvtx", nvtx)
    monkeypatch.setattr(annotate, "_open_step", None)
    with step():
        pass
    annotate._close_at_exit()
    assert nvtx.calls == [("start", "step", "perfscope"), ("end", 1)]


def test_ranges_go_to_nvtx_in_our_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = Nvtx()
    monkeypatch.setattr(annotate, "_nvtx", nvtx)
    monkeypatch.setattr(annotate, "_open_step", None)
    step()
    with region("a"):
        pass
    with step():
        pass
    assert nvtx.calls == [
        ("start", "step", "perfscope"),
        ("push", "a", "perfscope"),
        ("pop", "perfscope"),
        ("end", 1),
        ("start", "step", "perfscope"),
        ("end", 5),
    ]


def test_a_region_that_a_listener_left_in_the_middle_of_still_ends(ears: Ears) -> None:
    with region("a"):
        annotate.listen(None)
    assert ears.heard == ["+a"]


@pytest.mark.torch
def test_a_region_is_in_the_trace_of_a_torch_profiler() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler, region("mine"):
        pass
    assert "mine" in {event.name for event in profiler.events()}


@pytest.mark.torch
def test_a_step_written_as_a_with_is_in_the_trace_of_a_torch_profiler_of_the_programs_own() -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            with step():
                torch.ones(2)
            step()
    names = [event.name for event in profiler.events() if event.name.startswith("perfscope.step#")]
    first = int(names[0].partition("#")[2])
    assert names == [f"perfscope.step#{first}", f"perfscope.step#{first + 1}"], "the plain calls have no end"


PROGRAM = (
    "import sys, perfscope\n"
    "for _ in range(3):\n    perfscope.step()\n    with perfscope.region('a'):\n        pass\n"
    "print('torch' in sys.modules)\n"
)


def run(program: str = PROGRAM, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(**more), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_public_names_work_without_torch_and_say_nothing() -> None:
    done = run()
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_ranges_arrive_under_a_tool_that_denies_listening() -> None:
    """Nsight Systems 2022.4 and 2023.x: nvtx believes them and writes nothing, we write all the same."""
    done = run(NSYS_PROFILING_SESSION_ID="7")
    assert done.stderr == ""


def test_lost_ranges_under_nsight_systems_are_said_once() -> None:
    import nvtx

    if type(nvtx.get_domain("perfscope")).__name__ != "DummyDomain":
        pytest.skip("this nvtx always records")
    program = "import nvtx._lib.lib as lib\ndel lib.DomainHandle\n" + PROGRAM
    (line,) = run(program, NSYS_PROFILING_SESSION_ID="7").stderr.splitlines()
    assert "records no perfscope ranges" in line
    assert "nvtx<0.2.12" in line
