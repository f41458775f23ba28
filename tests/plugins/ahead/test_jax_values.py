"""Arrays without data: what they answer, what is known of them, what a program may do with them."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from perfscope.model.errors import DataError
from perfscope.plugins.ahead.jax import compat
from perfscope.plugins.ahead.jax.child import eager_operation_notes
from perfscope.plugins.ahead.jax.discover import RunLimits
from perfscope.plugins.ahead.jax.discover import discover_programs as discover_programs_jax_abstract_seen
from tests.plugins.ahead.discovery import discover_programs
from tests.plugins.ahead.discovery import discover_programs as seen

HUGE = (1 << 20, 1 << 20)
"""Four TiB in float32: nothing here could hold it."""


@pytest.mark.slow
def test_small_values_that_the_program_wrote_down_are_computed() -> None:
    key = jax.random.key(7)
    expected = [int(one) for one in jax.random.randint(jax.random.split(key)[1], (4,), 0, 100)]
    found: list[Any] = []

    def run() -> None:
        again = jax.random.split(jax.random.key(7))[1]
        found.append(jax.random.randint(again, (4,), 0, 100).tolist())
        found.append(float(jnp.sum(jnp.arange(10)) / 4))
        found.append(int(jax.random.permutation(jax.random.key(0), 5).sum()))
        found.append(bool(jnp.allclose(jnp.eye(3) @ jnp.eye(3), jnp.eye(3))))

    told = discover_programs(run)
    assert found == [expected, 11.25, 10, True]
    assert told.notes == []


def test_large_arrays_have_a_shape_and_take_no_memory() -> None:
    def run() -> None:
        huge = jax.random.normal(jax.random.key(0), HUGE)
        more = (huge @ huge.T).astype(jnp.bfloat16)[:, :5].sum(axis=0)
        assert more.shape == (5,)
        assert more.dtype == jnp.bfloat16
        assert huge.nbytes == 4 << 40
        assert len(huge) == HUGE[0]
        assert huge.at[0].set(1.0).reshape(-1).shape == (1 << 40,)
        assert jax.tree.map(jnp.zeros_like, {"a": huge})["a"].shape == HUGE
        assert np.asarray(huge).shape == HUGE  # read by the host: zeros that are one number

    assert len(discover_programs(run).notes) == 1


def test_numpy_arrays_are_not_copied() -> None:
    virtual = np.broadcast_to(np.float32(1), HUGE)

    def run() -> None:
        assert jax.device_put(virtual).shape == HUGE
        assert jnp.asarray(virtual).devices() == {jax.devices()[0]}
        assert jax.jit(lambda x: x[0])(virtual).shape == HUGE[1:]

    discover_programs(run)


def test_they_are_arrays_and_no_tracers() -> None:
    def run() -> None:
        array = jnp.ones(5000)
        assert isinstance(array, jax.Array)
        assert not isinstance(array, jax.core.Tracer)
        assert isinstance(np.float32(2) * array, jax.Array)
        assert isinstance(array * np.ones(5000), jax.Array)
        assert array.block_until_ready() is array
        assert jax.block_until_ready(array) is array
        assert array.is_fully_addressable
        assert array.sharding.device_set == {array.device} == array.devices()
        (part,) = array.addressable_shards
        assert part.data.shape == (5000,)
        with pytest.raises(TypeError, match="unsized"):
            len(array.sum())
        with pytest.raises(TypeError, match="scalar"):
            float(array)
        with pytest.raises(ValueError, match="ambiguous"):
            bool(array > 0)
        assert [one.shape for one in jnp.ones((3, 5000))] == [(5000,)] * 3

    discover_programs(run)


def test_reads_of_what_nobody_knows_are_zeros_and_told_with_their_line() -> None:
    found: list[Any] = []

    def run() -> None:
        loss = jnp.ones((300, 300)).mean()
        found.extend(float(loss) for _ in range(3))
        found.append(f"{loss:.2f}")
        found.append(bool(jnp.isfinite(loss)))  # of the zero
        found.append(loss.item())

    told = discover_programs(run)
    assert found == [0.0, 0.0, 0.0, "0.00", True, 0.0]
    line = test_reads_of_what_nobody_knows_are_zeros_and_told_with_their_line.__code__.co_firstlineno + 5
    said = f"float32[] on the host (float, 3 times) at tests/plugins/ahead/test_jax_values.py:{line}"
    assert any(said in note for note in told.notes), told.notes
    assert len(told.notes) == 4


def test_counters_inside_of_compiled_functions_are_followed() -> None:
    found: list[Any] = []

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Any) -> Any:
        rate = jnp.minimum(1.0, state["step"] / 4)
        new = {"step": state["step"] + 1, "w": state["w"] - rate * batch.mean(), "key": state["key"]}
        return new, {"loss": (state["w"] * batch).sum(), "rate": rate}

    def run() -> None:
        state = {"step": jnp.int32(0), "w": jnp.ones((200, 200)), "key": jax.random.key(3)}
        while int(state["step"]) < 6:
            state, told = step(state, np.ones((200, 200), np.float32))
            found.append((float(told["rate"]), float(told["loss"])))

    told = discover_programs(run)
    assert found == [(0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0), (1.0, 0.0)]
    assert told.complete
    assert [program.calls for program in told.programs] == [6]
    assert len(told.notes) == 1  # the loss; neither the counter nor the rate


def test_a_value_that_follows_from_a_made_up_one_is_made_up() -> None:
    def run() -> None:
        doubtful = jnp.ones((300, 300)).sum() * 0 + 3
        assert float(doubtful) == 3.0

    assert len(discover_programs(run).notes) == 1


def test_threads_of_the_program_get_them_too() -> None:
    from concurrent.futures import ThreadPoolExecutor

    virtual = np.broadcast_to(np.float32(1), HUGE)

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            shapes = [one.shape for one in pool.map(jax.device_put, [virtual] * 4)]
        assert shapes == [HUGE] * 4

    discover_programs(run)


def test_transformations_outside_of_jit() -> None:
    def run() -> None:
        weights, batch = jnp.ones((300, 300)), jnp.ones((10, 300))
        loss, slope = jax.value_and_grad(lambda w: ((batch @ w) ** 2).sum())(weights)
        assert (loss.shape, slope.shape) == ((), (300, 300))
        assert jax.vmap(lambda row: row @ weights)(batch).shape == (10, 300)
        assert jax.grad(jax.checkpoint(lambda w: jnp.sin(w).sum()))(weights).shape == (300, 300)
        assert jax.eval_shape(lambda w: w @ w, weights).shape == (300, 300)
        carried, rows = jax.lax.scan(lambda c, row: (c + row.sum(), row), 0.0, batch)
        assert (carried.shape, rows.shape) == ((), (10, 300))
        assert jax.lax.cond(weights.sum() > 0, lambda w: w, lambda w: w * 2, weights).shape == (300, 300)

    told = discover_programs(run)
    assert [program.name for program in told.programs] == ["jit_scan", "jit_cond"]  # a loop and a branch of the user's


def test_jax_works_as_before_afterwards() -> None:
    def run() -> None:
        jnp.ones((300, 300)).sum()

    discover_programs(run)
    assert float(jnp.ones((300, 300)).sum()) == 90_000.0
    assert float(jax.jit(lambda x: x * 2)(jnp.float32(2))) == 4.0
    assert float(jax.device_put(np.float32(3))) == 3.0
    assert type(jnp.zeros(3)).__name__ == "ArrayImpl"


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
    assert str(program.place).startswith("tests/plugins/ahead/test_jax_values.py:")
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
    assert str(worst.place) == f"tests/plugins/ahead/test_jax_values.py:{line}"
    assert worst.bytes == 14 * (2 * 64 * 64 + 1) * 4  # a matrix in and one out, and a number
    (note,) = eager_operation_notes(told.operations)
    assert note.startswith("ran op by op: 1")
    assert f"14 at {worst.place} (add, multiply; 448 KiB)" in note


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


def test_what_was_seen_is_kept_when_the_program_fails() -> None:
    def run() -> None:
        jax.jit(lambda x: x)(BATCH)
        raise LookupError("no such file\nnor that one")

    told = discover_programs_jax_abstract_seen(run, jax.devices("cpu")[:1])
    assert len(told.programs) == 1
    assert told.failure is not None
    assert (told.failure.kind, told.failure.message) == ("LookupError", "no such file")
    line = test_what_was_seen_is_kept_when_the_program_fails.__code__.co_firstlineno + 3
    assert str(told.failure.place) == f"tests/plugins/ahead/test_jax_values.py:{line}"
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
    monkeypatch.setitem(compat.RUN_INTERFACES, "gone", ("jax._src.core", "gone"))
    monkeypatch.setitem(compat.RUN_INTERFACES, "module gone", ("jax._src.gone", "gone"))
    with pytest.raises(
        DataError, match=r"^this jax \([\d.]+\) is not one .* no jax\._src\.core\.gone and 1 more; jax 0"
    ):
        discover_programs_jax_abstract_seen(lambda: None, jax.devices("cpu"))
