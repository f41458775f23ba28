"""Training loops of libraries, run without data; each test skips where its library is not installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest

from tests.profiler.aot.seen import in_child

AROUND = """
    import json
    import jax, jax.numpy as jnp, numpy as np
    from perfscope.profiler.ahead.jax.discover import seen_programs
    batches = [(np.zeros((8, 64), np.float32), np.zeros(8, np.int32))] * 20

    def run():
        {body}

    counted = []
    told = seen_programs(run, jax.devices())
    assert told.failure is None, told.failure.text
    programs = [[one.function, one.calls] for one in told.programs]
    print(json.dumps([programs, told.complete, counted]))
"""

LINEN = """
        import flax.linen as nn, optax
        from flax.training.train_state import TrainState

        class Net(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                x = nn.Dropout(0.1, deterministic=not train)(nn.gelu(nn.LayerNorm()(nn.Dense(512)(x))))
                return nn.Dense(10)(x)

        net, key = Net(), jax.random.key(0)
        weights = net.init(key, jnp.ones((1, 64)), train=False)["params"]
        state = TrainState.create(apply_fn=net.apply, params=weights, tx=optax.adamw(1e-3))

        @jax.jit
        def step(state, x, y):
            def loss_of(weights):
                dropped = {{"dropout": jax.random.fold_in(key, state.step)}}
                found = state.apply_fn({{"params": weights}}, x, train=True, rngs=dropped)
                return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()
            loss, slopes = jax.value_and_grad(loss_of)(state.params)
            return state.apply_gradients(grads=slopes), loss

        for x, y in batches:
            state, loss = step(state, x, y)
        counted.append(int(state.step))
"""
NNX = """
        import optax
        from flax import nnx

        class Net(nnx.Module):
            def __init__(self, rngs):
                self.inner, self.norm = nnx.Linear(64, 512, rngs=rngs), nnx.BatchNorm(512, rngs=rngs)
                self.outer = nnx.Linear(512, 10, rngs=rngs)
            def __call__(self, x):
                return self.outer(nnx.relu(self.norm(self.inner(x))))

        net = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

        @nnx.jit
        def step(net, optimizer, x, y):
            loss_of = lambda net: optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()
            loss, slopes = nnx.value_and_grad(loss_of)(net)
            optimizer.update(net, slopes)
            return loss

        for x, y in batches:
            step(net, optimizer, x, y)
        counted.append(int(optimizer.step[...]))
"""
EQUINOX = """
        import equinox as eqx, optax
        net, rule = eqx.nn.MLP(64, 10, 512, 2, key=jax.random.key(0)), optax.adamw(1e-3)
        kept = rule.init(eqx.filter(net, eqx.is_array))

        @eqx.filter_jit
        def step(net, kept, x, y):
            loss_of = lambda net: optax.softmax_cross_entropy_with_integer_labels(jax.vmap(net)(x), y).mean()
            loss, slopes = eqx.filter_value_and_grad(loss_of)(net)
            more, kept = rule.update(slopes, kept, eqx.filter(net, eqx.is_array))
            return eqx.apply_updates(net, more), kept, loss

        for x, y in batches:
            net, kept, loss = step(net, kept, x, y)
        counted.append(int(kept[0].count))
"""


def _needs(*modules: str) -> None:
    """Skip where a library is not there; it may also lie on ``PYTHONPATH``."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(
    ("body", "modules"),
    [(LINEN, ("flax", "optax")), (NNX, ("flax", "optax", "treescope")), (EQUINOX, ("equinox", "optax"))],
    ids=["linen", "nnx", "equinox"],
)
def test_a_training_loop_is_one_program_and_its_counter_counts(body: str, modules: tuple[str, ...]) -> None:
    _needs(*modules)
    path = tuple(one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one in sys.path)
    found: Any = in_child(AROUND.format(body=body.strip().replace("{{", "{").replace("}}", "}")), devices=1, path=path)
    programs, complete, counted = found
    assert complete
    assert counted == [20]
    assert programs == [["step", 20]]
