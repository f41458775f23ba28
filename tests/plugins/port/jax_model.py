"""A small Llama in JAX with changes that can be planted: the twin of ``torch_model``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

B, T, D, H, KV, L, V, FF = 4, 64, 64, 4, 2, 2, 160, 192
HD = D // H


def norm(x: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w


def attention(p: Any, x: Any) -> Any:
    length = x.shape[1]
    q = (x @ p["q_proj"]).reshape(B, length, KV, H // KV, HD)
    k = (x @ p["k_proj"]).reshape(B, length, KV, HD)
    v = (x @ p["v_proj"]).reshape(B, length, KV, HD)
    s = jnp.einsum("btkgd,bskd->bkgts", q, k) / HD**0.5
    s = jnp.where(jnp.tril(jnp.ones((length, length), bool)), s, jnp.finfo(s.dtype).min)
    o = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(s, -1), v)
    return o.reshape(B, length, D) @ p["o_proj"]


def mlp(p: Any, x: Any) -> Any:
    h = jax.nn.silu(x @ p["gate_proj"]) * (x @ p["up_proj"])
    return h @ p["down_proj"]


def layer(x: Any, p: Any) -> Any:
    x = x + attention(p["self_attn"], norm(x, p["input_layernorm"]))
    return x + mlp(p["mlp"], norm(x, p["post_attention_layernorm"]))


def loss_of(params: Any, ids: Any, changes: frozenset[str]) -> Any:
    x = params["embed_tokens"][ids[:, :-1]]
    if "constant" in changes:
        table = np.random.default_rng(0).standard_normal((4096, D), np.float32)
        x = x + jnp.asarray(table)[ids[:, :-1]]  # planted: constant
    block = jax.checkpoint(layer) if "checkpoint" in changes else layer
    if "unroll" in changes:
        for number in range(len(params["layers"])):
            x = block(x, params["layers"][number])  # planted: unroll
    else:
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])  # planted: checkpoint
    logits = norm(x, params["norm"]) @ params["lm_head"]
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs, ids[:, 1:, None], -1).mean()


def initial(layers: int, unrolled: bool, dtype: Any) -> Any:
    generator = np.random.default_rng(0)

    def new(*shape: int) -> Any:
        return jnp.asarray(0.1 * generator.standard_normal(shape), dtype)

    def one() -> Any:
        attn = {"q_proj": new(D, D), "k_proj": new(D, KV * HD), "v_proj": new(D, KV * HD), "o_proj": new(D, D)}
        feed = {"gate_proj": new(D, FF), "up_proj": new(D, FF), "down_proj": new(FF, D)}
        return {"self_attn": attn, "mlp": feed, "input_layernorm": new(D), "post_attention_layernorm": new(D)}

    each = [one() for _ in range(layers)]
    stack = each if unrolled else jax.tree.map(lambda *arrays: jnp.stack(arrays), *each)
    return {"embed_tokens": new(V, D), "layers": stack, "norm": new(D), "lm_head": new(D, V)}


def step_of(*changes: str, layers: int = L, dtype: Any = jnp.float32) -> tuple[Any, tuple[Any, ...]]:
    """A jitted training step and its arguments."""
    planted = frozenset(changes)
    params = initial(layers, "unroll" in planted, dtype)
    state = {
        "params": params,
        "mean": jax.tree.map(jnp.zeros_like, params),
        "square": jax.tree.map(jnp.zeros_like, params),
    }
    ids = jnp.arange(B * (T + 1)).reshape(B, T + 1) * 7 % V

    def adam(w: Any, g: Any, m: Any, s: Any) -> tuple[Any, Any, Any]:
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
        return (w * 0.99 - 1e-3 * m / (jnp.sqrt(s) + 1e-8)).astype(w.dtype), m.astype(w.dtype), s.astype(w.dtype)

    def step(state: Any, ids: Any) -> tuple[Any, Any]:
        loss, grads = jax.value_and_grad(loss_of)(state["params"], ids, planted)
        new = jax.tree.map(adam, state["params"], grads, state["mean"], state["square"])
        params, mean, square = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0, 0)), new)
        return {"params": params, "mean": mean, "square": square}, loss

    donated = () if "keep" in planted else (0,)
    return jax.jit(step, donate_argnums=donated), (state, ids)
