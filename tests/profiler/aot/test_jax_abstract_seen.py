"""What counts as a program, when a program is followed no further, and how it may end."""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from perfscope.model.errors import DataError
from perfscope.profiler.ahead.jax import compat
from perfscope.profiler.ahead.jax.child import eager_operation_notes
from perfscope.profiler.ahead.jax.discover import RunLimits, discover_programs
from tests.profiler.aot.seen import seen

BATCH = np.ones((64, 64), np.float32)


def test_a_program_has_the_name_place_arguments_and_donation_of_its_function() -> None:
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Any) -> Any:
        return {"w": state["w"] - batch}, batch.sum()

    def run() -> None:
        state = {"w": jnp.ones((64, 64))}
        for _ in range(4):
            state, _ = step(state, BATCH)

    (program,) = seen(run).programs
    assert (program.name, program.function, program.calls, program.traces) == ("jit_step", "step", 4, 1)
    assert str(program.place).startswith("tests/profiler/aot/test_jax_abstract_seen.py:")
    assert program.argument_names == ("state['w']", "batch")
    assert [(one.shape, one.dtype) for one in program.arguments] == [((64, 64), np.float32)] * 2
    assert program.donated == (True, False)
    assert program.mesh is None
    text = program.lower().as_text("hlo")
    assert text.startswith("HloModule jit_step")
    assert "input_output_alias={ {0}: (0, {}" in text.replace("may-alias", "")


def test_shapes_and_static_arguments_make_programs_and_the_same_again_does_not() -> None:
    @functools.partial(jax.jit, static_argnums=1)
    def scaled(x: Any, by: int) -> Any:
        return x * by

    def run() -> None:
        for size in (64, 64, 128):
            scaled(jnp.ones((size, 64)), 2)
        scaled(BATCH, 2)
        scaled(BATCH, 3)

    assert [program.calls for program in seen(run).programs] == [3, 1, 1]


def test_a_function_that_is_wrapped_anew_in_every_step_is_one_program_traced_again() -> None:
    def run() -> None:
        for _ in range(5):
            jax.jit(lambda x: x * 2)(BATCH)

    (program,) = seen(run).programs
    assert (program.calls, program.traces) == (5, 5)


def test_a_number_of_the_host_and_the_one_that_comes_back_are_the_same_argument() -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def step(count: Any, w: Any) -> Any:
        return count + 1, w * 2

    def run() -> None:
        count, w = 0, jnp.ones((64, 64))
        for _ in range(3):
            count, w = step(count, w)

    assert [program.calls for program in seen(run).programs] == [3]


def test_jit_inside_of_jit_is_part_of_the_outer_program() -> None:
    @jax.jit  # type: ignore[untyped-decorator]
    def inner(x: Any) -> Any:
        return x + 1

    @jax.jit  # type: ignore[untyped-decorator]
    def outer(x: Any) -> Any:
        return inner(inner(x)).sum()

    assert [program.name for program in seen(lambda: outer(BATCH)).programs] == ["jit_outer"]


def test_operations_outside_of_jit_are_counted_by_line() -> None:
    def run() -> None:
        w = jnp.ones((64, 64))
        for _ in range(7):
            w = w * 2 + 1
        jnp.sum(w)

    told = seen(run)
    assert told.programs == []
    worst = told.operations[0]
    assert (worst.calls, worst.names, worst.programs) == (14, ("add", "multiply"), 2)
    line = test_operations_outside_of_jit_are_counted_by_line.__code__.co_firstlineno + 4
    assert str(worst.place) == f"tests/profiler/aot/test_jax_abstract_seen.py:{line}"
    assert worst.bytes == 14 * (2 * 64 * 64 + 1) * 4  # a matrix in and one out, and a number
    (note,) = eager_operation_notes(told.operations)
    assert note.startswith("ran op by op: 1")
    assert f"14 at {worst.place} (add, multiply; 448.1 KiB)" in note


def test_more_lines_with_operations_are_counted() -> None:
    def run() -> None:
        w = jnp.ones((64, 64))
        w = jnp.sin(w)
        w = jnp.cos(w)
        w = jnp.tan(w)
        w = jnp.exp(w)

    (note,) = eager_operation_notes(seen(run).operations)
    assert note.endswith(" and at 2 more lines")


def test_compiling_ahead_counts_and_calls_are_answered() -> None:
    def run() -> None:
        compiled = jax.jit(lambda x: {"y": x * 2}).lower(jax.ShapeDtypeStruct((64, 64), np.float32)).compile()
        assert compiled(BATCH)["y"].shape == (64, 64)
        assert compiled.cost_analysis()["flops"] == 0.0
        assert "stablehlo.multiply" in jax.jit(lambda x: x * 2).lower(BATCH).as_text()
        with pytest.raises(TypeError, match="called with"):
            compiled(BATCH, BATCH)

    told = seen(run)
    assert [program.calls for program in told.programs] == [1]
    assert any("cost_analysis" in note for note in told.notes)


def test_an_endless_loop_is_left_and_what_comes_every_fiftieth_step_is_seen() -> None:
    train, evaluate = jax.jit(lambda w, x: w - x), jax.jit(lambda w: w.sum())
    ended: list[int] = []

    def run() -> None:
        w, count = jnp.ones((64, 64)), 0
        try:
            while True:
                w = train(w, BATCH)
                count += 1
                if count % 50 == 0:
                    evaluate(w)
        finally:
            ended.append(count)

    told = seen(run)
    assert len(told.programs) == 2
    assert not told.complete
    assert told.stopped.startswith("nothing new in ")
    assert ended[0] < 400


def test_until_exit_follows_it_to_its_end() -> None:
    step = jax.jit(lambda w: w + 1)

    def run() -> None:
        w = jnp.ones((64, 64))
        for _ in range(300):
            w = step(w)

    assert not seen(run).complete
    told = seen(run, RunLimits(until_exit=True))
    assert told.complete
    assert told.programs[0].calls == 300


def test_a_function_that_is_traced_in_every_step_ends_at_the_limit() -> None:
    step = jax.jit(lambda w, count: w + count, static_argnums=1)

    def run() -> None:
        for count in range(1000):
            step(BATCH, count)

    told = seen(run, RunLimits(programs=6))
    assert len(told.programs) == 6
    assert told.stopped.startswith("6 different programs: the limit")


def test_a_program_that_catches_everything_is_ended_all_the_same() -> None:
    step = jax.jit(lambda w: w + 1)
    caught: list[str] = []

    def run() -> None:
        while True:
            try:
                step(BATCH)
            except BaseException as error:
                caught.append(str(error))

    told = seen(run, RunLimits(quiet=5))
    assert told.stopped.startswith("nothing new in 5 calls")
    assert 0 < len(caught) < 10
    assert sys.gettrace() is None or "coverage" in type(sys.gettrace()).__module__


def test_a_program_that_calls_nothing_is_ended_by_the_clock() -> None:
    def run() -> None:
        jax.jit(lambda x: x)(BATCH)
        while True:
            time.sleep(0.001)

    told = seen(run, RunLimits(seconds=0.2))
    assert told.stopped == "it ran for more than 0.2 s"
    assert len(told.programs) == 1
    assert all(one.name != "ring" for one in threading.enumerate())


def test_what_was_seen_is_kept_when_the_program_fails() -> None:
    def run() -> None:
        jax.jit(lambda x: x)(BATCH)
        raise LookupError("no such file\nnor that one")

    told = discover_programs(run, jax.devices("cpu")[:1])
    assert len(told.programs) == 1
    assert told.failure is not None
    assert (told.failure.kind, told.failure.message) == ("LookupError", "no such file")
    line = test_what_was_seen_is_kept_when_the_program_fails.__code__.co_firstlineno + 3
    assert str(told.failure.place) == f"tests/profiler/aot/test_jax_abstract_seen.py:{line}"
    assert "jax_seen" not in told.failure.text
    assert told.stopped == "it raised LookupError: no such file"


@pytest.mark.parametrize(("code", "complete"), [(0, True), (None, True), (3, False)])
def test_leaving_is_an_end(code: int | None, complete: bool) -> None:
    told = seen(lambda: sys.exit(code))
    assert told.complete is complete
    assert told.failure is None


def test_marks_of_a_program_do_not_matter() -> None:
    import perfscope

    def run() -> None:
        step = jax.jit(lambda x: x * 2)
        for number in range(3):
            with jax.named_scope("part"), jax.profiler.StepTraceAnnotation("train", step_num=number):
                step(BATCH)
            perfscope.step()
        with perfscope.region("part"):
            jax.debug.print("{}", jnp.ones(5000))
            jax.debug.callback(lambda _: 1 / 0, jnp.ones(5000))

    assert [program.calls for program in seen(run).programs] == [3]


def test_settings_and_jobs_of_real_machines_are_answered() -> None:
    def run() -> None:
        jax.config.update("jax_num_cpu_devices", 8)
        jax.distributed.initialize()
        assert str(jax.random.key(0)).startswith("Array((), dtype=key")
        with pytest.raises(AttributeError):
            jax.config.update("jax_no_such_setting", 8)

    told = seen(run)
    assert any("asked for jax.distributed.initialize (once)" in note for note in told.notes)


def test_an_array_that_a_program_closes_over_is_part_of_it() -> None:
    def run() -> None:
        here, there = jnp.arange(4.0), jnp.ones((1 << 14, 1 << 14))
        jax.jit(lambda x: x + here)(np.ones(4, np.float32))
        jax.jit(lambda x: x + there[0])(np.ones(1 << 14, np.float32))

    told = seen(run)
    first, second = told.programs
    assert (first.stand_ins, second.stand_ins) == (0, 1 << 30)
    assert any(note.startswith("jit_<lambda>: it closes over 1,073,741,824 bytes") for note in told.notes)
    assert "constant({0, 1, 2, 3})" in first.lower().as_text("hlo")
    with pytest.raises(ValueError, match="closes over an array of 1,073,741,824 bytes"):
        second.lower()


def test_a_jax_that_is_not_known_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (*compat.NEEDED, ("jax._src.core", "gone"), ("jax._src.gone", "gone"))
    monkeypatch.setattr(compat, "NEEDED", needed)
    with pytest.raises(
        DataError, match=r"^this jax \([\d.]+\) is not one .* no jax\._src\.core\.gone and 1 more; jax 0"
    ):
        discover_programs(lambda: None, jax.devices("cpu"))
