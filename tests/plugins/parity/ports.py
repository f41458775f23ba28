"""One small network in PyTorch, Flax, Equinox and Keras, and a Llama of transformers with a port to JAX.

Each function imports its own framework only.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

IMAGES = np.linspace(-1, 1, 2 * 6 * 6 * 3, dtype=np.float32).reshape(2, 6, 6, 3)
IDS = np.arange(24).reshape(2, 12) * 7 % 61
EPSILON = 1e-5


def net_torch() -> Any:
    """A convolution, its mean over the image, a norm between two linear layers."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc1 = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 16)
            self.norm, self.fc2 = nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x).relu().mean((2, 3))
            return self.fc2(self.norm(self.fc1(x)).relu())

    return Net(), (torch.from_numpy(IMAGES).permute(0, 3, 1, 2).contiguous(),)


def net_linen() -> Any:
    """The same in Flax linen."""
    import jax
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.Conv(8, (3, 3), name="conv")(x)).mean((1, 2))
            x = nn.LayerNorm(epsilon=EPSILON, use_fast_variance=False, name="norm")(nn.Dense(16, name="fc1")(x))
            return nn.Dense(16, name="fc2")(nn.relu(x))

    return Net(), Net().init(jax.random.key(0), IMAGES), (IMAGES,)


def net_nnx() -> Any:
    """The same in Flax nnx."""
    import jax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
            self.fc1, self.fc2 = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)
            self.norm = nnx.LayerNorm(16, epsilon=EPSILON, use_fast_variance=False, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = jax.nn.relu(self.conv(x)).mean((1, 2))
            return self.fc2(jax.nn.relu(self.norm(self.fc1(x))))

    return Net(nnx.Rngs(0)), (IMAGES,)


def net_equinox() -> Any:
    """The same in Equinox, whose arrays have PyTorch's layout."""
    import equinox as eqx
    import jax

    class Net(eqx.Module):
        conv: Any
        fc1: Any
        norm: Any
        fc2: Any

        def __call__(self, x: Any) -> Any:
            return jax.vmap(self.one)(x)

        def one(self, x: Any) -> Any:
            x = jax.nn.relu(self.conv(x)).mean((1, 2))
            return self.fc2(jax.nn.relu(self.norm(self.fc1(x))))

    keys = jax.random.split(jax.random.key(0), 3)
    net = Net(
        eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0]),
        eqx.nn.Linear(8, 16, key=keys[1]),
        eqx.nn.LayerNorm(16, eps=EPSILON),
        eqx.nn.Linear(16, 16, key=keys[2]),
    )
    return net, (IMAGES.transpose(0, 3, 1, 2).copy(),)


def net_keras() -> Any:
    """The same in Keras on JAX."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    layers = keras.layers
    image = keras.Input((6, 6, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="conv")(image)
    x = layers.Dense(16, name="fc1")(layers.GlobalAveragePooling2D()(x))
    x = layers.ReLU()(layers.LayerNormalization(epsilon=EPSILON, name="norm")(x))
    return keras.Model(image, layers.Dense(16, name="fc2")(x)), (IMAGES,)


def llama_torch() -> Any:
    """A Llama of transformers: grouped queries, rotary positions, RMS norms, a gated feed-forward, random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, max_position_embeddings=32, attn_implementation="eager",
        tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), {"input_ids": torch.from_numpy(IDS)}


def llama_jax() -> Any:
    """Its port to JAX: a pytree whose layers are stacked on the second axis, as MaxText has them, and a scan."""
    import jax
    import jax.numpy as jnp

    dim, heads, groups, width, hidden, layers = 32, 4, 2, 8, 48, 3

    def norm(x: Any, scale: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale

    def rotary(x: Any) -> Any:
        angles = jnp.outer(jnp.arange(x.shape[1]), 10000.0 ** (-jnp.arange(0, width, 2) / width))[None, :, None]
        low, high = x[..., : width // 2], x[..., width // 2 :]
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def layer(x: Any, weights: Any) -> Any:
        attention, mlp = weights["self_attention"], weights["mlp"]
        y = norm(x, weights["input_layernorm"]["scale"])
        q, k, v = (jnp.einsum("bld,dhk->blhk", y, attention[name]["kernel"]) for name in ("query", "key", "value"))
        q, k = rotary(q), jnp.repeat(rotary(k), heads // groups, 2)
        scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / width**0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, jnp.finfo(scores.dtype).min)
        mixed = jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), jnp.repeat(v, heads // groups, 2))
        x = x + jnp.einsum("blhk,hkd->bld", mixed, attention["out"]["kernel"])
        y = norm(x, weights["post_attention_layernorm"]["scale"])
        return x + (jax.nn.silu(y @ mlp["wi_0"]["kernel"]) * (y @ mlp["wi_1"]["kernel"])) @ mlp["wo"]["kernel"], None

    def model(weights: Any, ids: Any) -> Any:
        stacked = jax.tree.map(lambda array: jnp.moveaxis(array, 1, 0), weights["layers"])
        x, _ = jax.lax.scan(layer, weights["token_embedder"]["embedding"][ids], stacked)
        return norm(x, weights["norm"]["scale"]) @ weights["lm_head"]["kernel"]

    def array(first: int, *rest: int) -> Any:
        return jax.ShapeDtypeStruct((first, layers, *rest), jnp.float32)

    def single(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    projections = {"query": (heads, width), "key": (groups, width), "value": (groups, width)}
    attention = {name: {"kernel": array(dim, *shape)} for name, shape in projections.items()}
    weights = {
        "token_embedder": {"embedding": single(61, dim)},
        "norm": {"scale": single(dim)},
        "lm_head": {"kernel": single(dim, 61)},
        "layers": {
            "self_attention": {**attention, "out": {"kernel": array(heads, width, dim)}},
            "mlp": {
                "wi_0": {"kernel": array(dim, hidden)},
                "wi_1": {"kernel": array(dim, hidden)},
                "wo": {"kernel": array(hidden, dim)},
            },
            "input_layernorm": {"scale": array(dim)},
            "post_attention_layernorm": {"scale": array(dim)},
        },
    }
    return model, weights, (IDS,)
