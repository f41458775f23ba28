"""Windows of steps whose work is waited for at both ends, and the work of traced steps, in real JAX programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.facts.step_work import steps_work
from perfscope.analyzers.readers.load import load
from tests.profiler.jax_programs import LOOP, run_folder
from tests.profiler.programs import captured, only, plain, write

pytestmark = pytest.mark.jax

AHEAD = """
import jax
import jax.numpy as jnp

@jax.jit
def train_step(state):
    return jax.lax.fori_loop(0, 40, lambda at, x: jnp.tanh(x @ x), state)

state = jnp.full((200, 200), 0.01)
for turn in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=turn):
        state = train_step(state)
"""
"""Reads nothing in its steps: the host is ahead of the device."""


def test_a_program_that_only_dispatches_is_timed_with_the_device_and_prints_the_same_bits(tmp_path: Path) -> None:
    program = write(tmp_path, AHEAD + "print(float(state.sum()).hex())\n")
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.stdout == bare.stdout, "bit for bit"
    assert not (run_folder(tmp_path) / "failures.txt").exists()
    process = only(tmp_path)
    assert process.window_steps == 4, "steps 6 to 9"
    assert process.window_compilations == 0
    assert process.window_ns is not None
    assert process.window_ns > sum(process.untraced_step_ns[:4]), "their dispatch lies in it"
    (trace,) = load(run_folder(tmp_path))
    assert (trace.window_ns, trace.window_steps) == (process.window_ns, 4)
    assert trace.step_times_ns == (), "what it takes to queue a step is no step time"


def test_all_work_of_the_traced_steps_is_in_the_recording(tmp_path: Path) -> None:
    program = write(tmp_path, AHEAD)
    assert captured(program, cwd=tmp_path).returncode == 0
    (trace,) = load(run_folder(tmp_path))
    work = trace.fact(steps_work)
    assert work is not None
    assert work.late, "the host did not wait"
    if trace.frame("hlo_ops")["run_id"].isna().all():
        pytest.skip("this jax does not number the executions of its CPU backend")
    assert [step.number for step in work.steps] == [2, 3, 4]
    assert all(step.busy_ns > 0 for step in work.steps)
    ops = trace.frame("hlo_ops")
    of_each = ops.groupby("run_id").size()
    assert len(of_each) == 3
    assert of_each.nunique() == 1, "each step's work was recorded to its end"
    unmarked = [note for note in trace.source.notes if "without an end mark" in note]
    # XLA of jax 0.7 does not mark every end of what goes on in its thread pool; a reader is told how many.
    assert not unmarked or only(tmp_path).packages["jax"].startswith("0.7.")


def test_a_window_does_not_count_a_compilation_in_it(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(15, rows=lambda turn: 8 if turn < 7 else 4)\n")
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.window_steps, process.window_compilations) == (4, 0), "steps 6 to 9 compiled, 10 to 13 did not"
