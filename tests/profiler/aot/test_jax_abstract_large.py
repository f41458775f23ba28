"""A model that no machine here could hold is seen in little memory."""

from __future__ import annotations

import pytest

from tests.profiler.aot.seen import in_child

LARGE = """
    import functools, json, pathlib, re
    import jax, jax.numpy as jnp, numpy as np
    from perfscope.profiler.ahead.jax.discover import seen_programs

    D, F, V = 8192, 28672, 128256

    def layer(key):
        up, gate, down, q, out = jax.random.split(key, 5)
        normal = lambda key, *shape: (jax.random.normal(key, shape) * 0.02).astype(jnp.bfloat16)
        return {{"up": normal(up, D, F), "gate": normal(gate, D, F), "down": normal(down, F, D),
                "q": normal(q, D, D), "out": normal(out, D, D)}}

    def block(x, w):
        x = x + jax.nn.silu(x @ w["q"]) @ w["out"]
        return x + (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]

    def loss_of(weights, tokens):
        x = weights["embedding"][tokens]
        for one in weights["layers"]:
            x = jax.checkpoint(block)(x, one)
        return jax.nn.logsumexp((x @ weights["embedding"].T).astype(jnp.float32), axis=-1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights, tokens):
        loss, slopes = jax.value_and_grad(loss_of)(weights, tokens)
        return jax.tree.map(lambda w, s: w - 1e-3 * s, weights, slopes), loss

    def run():
        keys = jax.random.split(jax.random.key(0), {layers} + 1)
        embedding = jax.random.normal(keys[-1], (V, D), jnp.bfloat16)
        weights = {{"embedding": embedding, "layers": [layer(key) for key in keys[:-1]]}}
        facts.append(sum(w.size for w in jax.tree.leaves(weights)))
        while True:
            weights, loss = step(weights, np.zeros((4, 4096), np.int32))

    def most_held():  # KiB; of this program alone: ru_maxrss begins with what the parent held
        status = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status).group(1))

    facts = []
    told = seen_programs(run, jax.devices())
    assert told.failure is None, told.failure.text
    (program,) = told.programs
    text = program.lower().as_text()
    facts += [program.calls, len(program.arguments), most_held() >> 10]
    print(json.dumps([*facts, text.count("stablehlo.dot_general")]))
"""


@pytest.mark.parametrize("layers", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_model(layers: int) -> None:
    parameters, calls, arguments, mebibytes, products = in_child(LARGE.format(layers=layers), devices=1)
    assert parameters == 128256 * 8192 + layers * (3 * 8192 * 28672 + 2 * 8192 * 8192)  # 68 billion with 80
    assert (calls, arguments) == (101, 5 * layers + 2)
    assert mebibytes < 1024
    assert products > 8  # the lowering is a whole one
