"""Operations outside of the steps' jitted function."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfscope.profiler.jax.single_operations import SingleOperations
from tests.session.programs import captured, only, write


def counted(program: str) -> SingleOperations:
    """Runs a program whose ``step()`` is the jitted function and whose ``op()`` is an operation."""
    found = SingleOperations(lambda path: path == "program.py")
    names = {"op": lambda: found.operation(sys._getframe(1)), "step": lambda: found.step(sys._getframe(1))}
    exec(compile(program, "program.py", "exec"), names)
    return found


IN_A_FUNCTION = """
def update():
    for _ in range(11):
        op()
for _ in range(20):
    op()
for _ in range(6):
    step()
    update()
    op()
for _ in range(50):
    op()
"""


def test_operations_of_a_step_are_those_between_its_calls():
    found = counted(IN_A_FUNCTION)
    assert found.per_step == 12
    assert found.place() == ("update", "program.py", 2)


def test_operations_in_the_loop_itself_have_their_line():
    found = counted("def main():\n    for _ in range(6):\n        step()\n        [op() for _ in range(12)]\nmain()\n")
    assert found.per_step == 12
    assert found.place() == ("", "program.py", 4)


def test_operations_are_found_below_the_many_frames_of_nested_transforms():
    found = counted(
        "def library(depth):\n    library(depth - 1) if depth else op()\n"
        "def update():\n    [library(100) for _ in range(12)]\n"
        "for _ in range(6):\n    step()\n    update()\n"
    )
    assert found.place() == ("update", "program.py", 3)


def test_after_a_mistake_nothing_is_counted():
    found = counted(IN_A_FUNCTION)
    found.start_over()
    assert (found.per_step, found.place()) == (0, ("", None, None))


OPTIMIZER = """
import jax, jax.numpy as jnp

@jax.jit
def gradients(p):
    return jax.grad(lambda p: jnp.sum(jnp.tanh(p) ** 2))(p)

def update(p, m, g):
    m = [0.9 * a + b for a, b in zip(m, [g] * 6)]
    for a in m:
        p = p - 0.1 * a
    return p, m

p, m = jnp.ones((8, 8)), [jnp.zeros((8, 8))] * 6
for _ in range(12):
    p, m = update(p, m, gradients(p))
print(float(p.sum()))
"""


@pytest.mark.jax
def test_an_optimizer_outside_of_jit_is_noted(tmp_path: Path) -> None:
    program = write(tmp_path, OPTIMIZER)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (fact,) = [fact for fact in only(tmp_path).facts if fact.name == "single_operations"]
    assert (fact.value, fact.line) == ("update", 1 + OPTIMIZER.splitlines().index("def update(p, m, g):"))
    assert fact.count == 24
