"""Options on their way into the program, and the passes they plan."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.model.capture import (
    MOST_RETRIES,
    WINDOW_SIZES,
    CaptureOptions,
    Message,
    TimedWindows,
    load_message,
    parse_steps,
)
from perfscope.model.errors import UsageError
from perfscope.profiler.session import pass_runner, process_state
from perfscope.profiler.session.pass_runner import PassRunner
from perfscope.profiler.session.passes import Pass, first_step, passes


@pytest.mark.parametrize("steps", [None, (3, 9)])
def test_a_message_arrives_as_it_was_sent(steps: tuple[int, int] | None) -> None:
    options = CaptureOptions(level="deep", steps=steps, warmup=7, step_annotation="ü", quiet=True)
    sent = Message(directory="/r", options=options, pythonpath=None, follow=True)
    assert load_message(sent.dump()) == sent


@pytest.mark.parametrize("text", ["", ":", "5", "5:", ":5", "a:b", "-1:3", "1:2:3", "0:3", "4:4", "5:4", "1.5:3"])
def test_steps_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


def test_steps_are_half_open() -> None:
    assert parse_steps("20:25") == (20, 25)


@pytest.mark.parametrize(
    ("options", "first", "plan"),
    [
        ({}, 2, [("timing", 3), ("structure", 1), ("detail", 1)]),
        ({"warmup": 0}, 1, [("timing", 3), ("structure", 1), ("detail", 1)]),
        ({"level": "light", "warmup": 5}, 5, [("timing", 3)]),
        ({"level": "deep"}, 2, [("timing", 5), ("structure", 1), ("detail", 3)]),
        ({"steps": (20, 22)}, 20, [("timing", 2), ("structure", 1), ("detail", 1)]),
        ({"whole": True}, 2, [("timing", 1)]),
    ],
)
def test_levels_plan_their_passes(options: dict[str, Any], first: int, plan: list[tuple[str, int]]) -> None:
    asked = CaptureOptions(**options)
    assert first_step(asked) == first
    assert [(pass_.name, pass_.count) for pass_ in passes(asked)] == plan


def test_the_timing_pass_records_nothing_that_costs_but_in_deep() -> None:
    for level in ("light", "default"):
        timing = passes(CaptureOptions(level=level))[0]  # type: ignore[arg-type]
        assert (timing.shapes, timing.memory, timing.stacks, timing.device_syncs) == (False,) * 4
    deep = passes(CaptureOptions(level="deep"))[0]
    assert deep.shapes
    assert deep.device_syncs
    assert not deep.stacks


def started(runner: PassRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, compiles: bool) -> list[str]:
    """Names of the passes that were started; none of them can be."""
    names: list[str] = []

    def start_pass(due: Pass, *_: Any) -> str:
        names.append(due.name)
        return "not here"

    monkeypatch.setattr(pass_runner, "start_pass", start_pass)
    runner.start(5, tmp_path, None, program_profiles=False, compiles=compiles)
    return names


def test_stacks_are_not_recorded_while_the_program_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner = PassRunner(CaptureOptions(), tmp_path)
    assert started(runner, monkeypatch, tmp_path, compiles=True) == ["timing", "structure"]
    waiting = runner.captures()[-1]
    assert (waiting.pass_name, waiting.state) == ("detail", "missing")
    assert waiting.reason is not None
    assert "torch.compile compiled in each step" in waiting.reason
    assert started(runner, monkeypatch, tmp_path, compiles=False) == ["detail"]
    assert not runner.to_come


class Program:
    """A program whose device is waited for; counts the waits."""

    def __init__(self, *, device: bool = True) -> None:
        self.device, self.waits, self.compiled, self.steps = device, 0, 0, 0
        self.windows = TimedWindows(self.wait, lambda: self.compiled)

    def wait(self) -> bool:
        self.waits += 1
        return self.device

    def run(self, steps: int, *, compiling: bool = False) -> None:
        for _ in range(steps):
            self.windows.before_step()
            self.steps += 1
            self.compiled += compiling
            self.windows.after_step()


def test_a_window_waits_twice_and_not_between_its_steps() -> None:
    program = Program()
    program.run(WINDOW_SIZES[0] - 1)
    assert (program.waits, program.windows.ns) == (1, None), "at its begin alone"
    program.run(1)
    assert program.waits == 2
    assert program.windows.ns is not None
    assert program.windows.ns > 0
    assert (program.windows.steps, program.windows.compiled) == (WINDOW_SIZES[0], 0)


def test_the_longest_complete_window_counts_and_then_nothing_is_waited_for() -> None:
    program = Program()
    program.run(WINDOW_SIZES[0] + 1)
    assert program.windows.steps == WINDOW_SIZES[0], "the next one is not complete"
    program.run(sum(WINDOW_SIZES))
    assert program.windows.steps == WINDOW_SIZES[-1]
    assert program.waits == 2 * len(WINDOW_SIZES)
    assert program.windows.next_size == 0


def test_a_window_in_which_a_program_was_compiled_is_taken_again() -> None:
    program = Program()
    program.run(1, compiling=True)
    program.run(WINDOW_SIZES[0] - 1)
    assert program.windows.ns is None
    program.run(WINDOW_SIZES[0])
    assert (program.windows.steps, program.windows.compiled) == (WINDOW_SIZES[0], 0)


def test_a_program_that_compiles_in_each_step_is_measured_so_and_it_is_counted() -> None:
    program = Program()
    program.run(WINDOW_SIZES[0] * (1 + MOST_RETRIES), compiling=True)
    assert (program.windows.steps, program.windows.compiled) == (WINDOW_SIZES[0], WINDOW_SIZES[0])


def test_a_profiler_that_starts_ends_a_window_without_a_result() -> None:
    program = Program()
    program.run(WINDOW_SIZES[0] - 1)
    program.windows.drop()
    program.run(1)
    assert program.windows.ns is None
    program.run(WINDOW_SIZES[0] - 1)
    assert program.windows.steps == WINDOW_SIZES[0]


def test_without_a_device_of_its_own_there_is_no_window() -> None:
    program = Program(device=False)
    program.run(WINDOW_SIZES[0])
    assert (program.windows.ns, program.windows.steps) == (None, 0)


def cuda(monkeypatch: pytest.MonkeyPatch, *, initialized: bool, capturing: bool = False) -> list[str]:
    """A torch whose CUDA records its calls."""
    told: list[str] = []
    held: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: initialized,
        "is_current_stream_capturing": lambda: capturing,
        "synchronize": lambda: told.append("synchronize"),
    }
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(**held)))
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(_is_profiler_enabled=False))
    return told


def test_cuda_is_waited_for_once_the_program_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = cuda(monkeypatch, initialized=True)
    assert process_state.wait_for_cuda()
    assert told == ["synchronize"]


@pytest.mark.parametrize("state", [{"initialized": False}, {"initialized": True, "capturing": True}])
def test_cuda_is_left_alone_before_and_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, bool]
) -> None:
    told = cuda(monkeypatch, **state)
    assert not process_state.wait_for_cuda()
    assert told == []


def test_steps_of_a_better_source_are_counted_anew_after_one_step_of_rest(tmp_path: Path) -> None:
    """Steps were rows of a Jacobian, 40 per step, until the optimizer stepped."""
    runner = PassRunner(CaptureOptions(), tmp_path)
    runner.active = SimpleNamespace(abort=lambda: None)  # type: ignore[assignment]
    runner.start_over()
    assert [runner.rests(number) for number in (2, 3, 4)] == [True, True, False]
    runner.start_over()
    assert not runner.rests(2)
