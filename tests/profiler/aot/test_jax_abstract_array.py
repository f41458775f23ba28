"""Arrays without data: what they answer, what is known of them, what a program may do with them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from tests.profiler.aot.seen import seen

HUGE = (1 << 20, 1 << 20)
"""Four TiB in float32: nothing here could hold it."""


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

    told = seen(run)
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

    assert len(seen(run).notes) == 1


def test_numpy_arrays_are_not_copied() -> None:
    virtual = np.broadcast_to(np.float32(1), HUGE)

    def run() -> None:
        assert jax.device_put(virtual).shape == HUGE
        assert jnp.asarray(virtual).devices() == {jax.devices()[0]}
        assert jax.jit(lambda x: x[0])(virtual).shape == HUGE[1:]

    seen(run)


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

    seen(run)


def test_reads_of_what_nobody_knows_are_zeros_and_told_with_their_line() -> None:
    found: list[Any] = []

    def run() -> None:
        loss = jnp.ones((300, 300)).mean()
        found.extend(float(loss) for _ in range(3))
        found.append(f"{loss:.2f}")
        found.append(bool(jnp.isfinite(loss)))  # of the zero
        found.append(loss.item())

    told = seen(run)
    assert found == [0.0, 0.0, 0.0, "0.00", True, 0.0]
    line = test_reads_of_what_nobody_knows_are_zeros_and_told_with_their_line.__code__.co_firstlineno + 5
    said = f"float32[] on the host (float, 3 times) at tests/profiler/aot/test_jax_abstract_array.py:{line}"
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

    told = seen(run)
    assert found == [(0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0), (1.0, 0.0)]
    assert told.complete
    assert [program.calls for program in told.programs] == [6]
    assert len(told.notes) == 1  # the loss; neither the counter nor the rate


def test_a_value_that_follows_from_a_made_up_one_is_made_up() -> None:
    def run() -> None:
        doubtful = jnp.ones((300, 300)).sum() * 0 + 3
        assert float(doubtful) == 3.0

    assert len(seen(run).notes) == 1


def test_threads_of_the_program_get_them_too() -> None:
    from concurrent.futures import ThreadPoolExecutor

    virtual = np.broadcast_to(np.float32(1), HUGE)

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            shapes = [one.shape for one in pool.map(jax.device_put, [virtual] * 4)]
        assert shapes == [HUGE] * 4

    seen(run)


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

    told = seen(run)
    assert [program.name for program in told.programs] == ["jit_scan", "jit_cond"]  # a loop and a branch of the user's


def test_jax_works_as_before_afterwards() -> None:
    def run() -> None:
        jnp.ones((300, 300)).sum()

    seen(run)
    assert float(jnp.ones((300, 300)).sum()) == 90_000.0
    assert float(jax.jit(lambda x: x * 2)(jnp.float32(2))) == 4.0
    assert float(jax.device_put(np.float32(3))) == 3.0
    assert type(jnp.zeros(3)).__name__ == "ArrayImpl"
