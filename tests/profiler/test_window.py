"""Windows of timed steps: what is waited for, and which of them count."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.model.capture import MOST_RETRIES, WINDOW_SIZES, TimedWindows
from perfscope.profiler.session import process_state


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
    """A torch whose CUDA says what it is asked to do."""
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
