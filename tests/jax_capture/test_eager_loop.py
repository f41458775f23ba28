"""The loop of a program that calls single operations of jax."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.profiler.jax.eager_loop import MIN_OPERATIONS, EagerLoop
from tests.session.programs import captured, only, write


def followed(program: str) -> tuple[EagerLoop, list[tuple[str, int]]]:
    """Runs a program whose ``op()`` is an operation."""
    turns: list[tuple[str, int]] = []
    loop = EagerLoop(lambda path: path == "program.py", lambda name, before: turns.append((name, before)))

    def op() -> None:
        loop.operation(sys._getframe(0))

    def each(function: Callable[[], Any], times: int) -> None:
        for _ in range(times):
            function()

    def library(depth: int, function: Callable[[], Any]) -> None:
        if depth:
            library(depth - 1, function)
        else:
            function()

    exec(compile(program, "program.py", "exec"), {"op": op, "each": each, "library": library})
    return loop, turns


STEP = """
def step():
    for _ in range(10):
        op()
        op()
op()
for turn in range(8):
    step()
"""
INLINE = """
def main():
    for epoch in range(2):
        for turn in range(8):
            for _ in range(4):
                op()
                op()
            each(lambda: op(), 9)
            op()
main()
"""


def test_calls_of_a_function_in_a_loop_are_turns_and_loops_inside_of_it_are_not():
    loop, turns = followed(STEP)
    assert turns == [("step", 2), *[("step", 0)] * 4]
    assert loop.function is not None
    assert (loop.calls, loop.function.co_name, loop.line) == (True, "step", 2)


def test_turns_of_the_inner_loop_with_enough_operations_are_steps_and_a_library_call_is_none():
    loop, turns = followed(INLINE)
    assert loop.function is not None
    assert (loop.calls, loop.function.co_name, loop.line) == (False, "main", 4)
    assert [before for _, before in turns][:1] == [2]
    assert 12 <= len(turns) <= 14  # of 16: the first of each epoch, and those before it was known, are not told


NESTED = """
def step():
    for _ in range(10):
        op()
        op()
def through_a_library(depth):
    library(depth, step)
for turn in range(8):
    through_a_library(DEPTH)
"""


def test_the_loop_is_found_below_the_many_frames_of_nested_transforms():
    loop, turns = followed(NESTED.replace("DEPTH", "200"))
    assert {name for name, _ in turns} == {"through_a_library"}
    assert loop.calls


def test_below_ten_operations_a_turn_is_no_step():
    program = "for turn in range(20):\n    each(op, COUNT)\n    op()\n"
    assert followed(program.replace("COUNT", str(MIN_OPERATIONS)))[1]
    assert not followed(program.replace("COUNT", str(MIN_OPERATIONS - 4)))[1]


LAYERS = """
def layer():
    for _ in range(10):
        op()
layers = [layer() for _ in range(TURNS)]
def main():
    for turn in range(20):
        step()
def step():
    for _ in range(12):
        op()
main()
"""


def test_a_short_loop_that_makes_weights_is_left_for_the_steps():
    loop, turns = followed(LAYERS.replace("TURNS", "6"))
    assert loop.function is not None
    assert loop.function.co_name == "step"
    assert sum(name == "step" for name, _ in turns) >= 16


def test_a_long_loop_stays_the_steps():
    loop, turns = followed(LAYERS.replace("TURNS", "40"))
    assert loop.function is not None
    assert loop.function.co_name == "layer"
    assert {name for name, _ in turns} == {"layer"}


EAGER = """
import jax, jax.numpy as jnp

def step(x):
    for i in range(1, 8):
        x = x.at[i].set(x[i - 1] * 0.5)
    return x

x = jnp.ones((8, 8))
for _ in range(12):
    x = step(x)
print(float(x.sum()))
"""


@pytest.mark.jax
@pytest.mark.parametrize("whole", [False, True])
def test_a_program_that_jits_nothing_is_captured_and_its_function_noted(tmp_path: Path, whole: bool) -> None:
    program = write(tmp_path, EAGER)
    done = captured(*(["--whole"] if whole else []), program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    process = only(tmp_path)
    (fact,) = [fact for fact in process.facts if fact.name == "unjitted_step"]
    assert (fact.value, fact.line) == ("step", 1 + EAGER.splitlines().index("def step(x):"))
    assert fact.count > 100
    assert process.step_source == ("whole program" if whole else "calls of step")
    assert whole or process.steps_seen == 11


DISABLED = """
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    for i in range(1, 12):
        x = x * 0.5 + i
    return x

with jax.disable_jit():
    x = jnp.ones((8, 8))
    for _ in range(12):
        x = step(x)
print(float(x.sum()))
"""


@pytest.mark.jax
def test_jit_that_is_off_in_the_loop_alone_is_noted(tmp_path: Path) -> None:
    done = captured(write(tmp_path, DISABLED), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (fact,) = [fact for fact in only(tmp_path).facts if fact.name == "jax_disable_jit"]
    assert fact.file is not None
    assert fact.line == 1 + DISABLED.splitlines().index("with jax.disable_jit():")
