"""A small model in PyTorch and in JAX, as a user writes both. Each function imports its own framework only."""

from __future__ import annotations

from typing import Any

import numpy as np

INPUTS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def in_torch() -> Any:
    """Two linear layers around a norm."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.norm, self.fc2 = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(nn.functional.gelu(self.norm(self.fc1(x))))

    return Model(), (torch.from_numpy(INPUTS),)


def in_jax(epsilon: float = 1e-5) -> Any:
    """The same, with the norm as Flax computes it."""
    import jax

    generator = np.random.default_rng(0)

    def model(weights: Any, x: Any) -> Any:
        x = x @ weights["fc1"]["kernel"] + weights["fc1"]["bias"]
        scale = jax.lax.rsqrt(x.var(-1, keepdims=True) + epsilon) * weights["norm"]["scale"]
        x = (x - x.mean(-1, keepdims=True)) * scale + weights["norm"]["bias"]
        return jax.nn.gelu(x, approximate=False) @ weights["fc2"]["kernel"] + weights["fc2"]["bias"]

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    def linear(*shape: int) -> dict[str, Any]:
        return {"kernel": normal(*shape), "bias": normal(shape[-1])}

    weights = {"fc1": linear(6, 8), "norm": {"scale": normal(8), "bias": normal(8)}, "fc2": linear(8, 8)}
    return model, weights, INPUTS


def rms_torch() -> Any:
    """Two linear layers after an RMS norm each."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.up = nn.RMSNorm(6, eps=1e-5), nn.Linear(6, 8)
            self.norm2, self.down = nn.RMSNorm(8, eps=1e-5), nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.norm2(nn.functional.silu(self.up(self.norm1(x)))))

    model = Model()
    with torch.no_grad():
        for norm in (model.norm1, model.norm2):
            norm.weight.copy_(torch.linspace(0.5, 2, len(norm.weight)))
    return model, (torch.from_numpy(INPUTS),)


def rms_jax() -> Any:
    """The same, with a norm that scales its statistic before it multiplies its input, as Flax does."""
    import jax
    import jax.numpy as jnp

    def norm(scale: Any, x: Any) -> Any:
        return x * (jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale)

    def model(weights: Any, x: Any) -> Any:
        x = jax.nn.silu(norm(weights["norm1"], x) @ weights["up"]["kernel"] + weights["up"]["bias"])
        return norm(weights["norm2"], x) @ weights["down"]["kernel"] + weights["down"]["bias"]

    ones = jnp.ones
    up, down = ({"kernel": ones(shape), "bias": ones(shape[1])} for shape in ((6, 8), (8, 6)))
    return model, {"norm1": ones(6), "norm2": ones(8), "up": up, "down": down}, INPUTS


def wrong_epsilon() -> Any:
    """Flax's default."""
    return in_jax(1e-6)


def converted_wrong() -> Any:
    """The weights of PyTorch's, converted by hand: the square one was not transposed."""
    import torch

    torch.manual_seed(0)
    own = {name: value.numpy() for name, value in in_torch()[0].state_dict().items()}
    model, _, inputs = in_jax()
    weights = {
        "fc1": {"kernel": own["fc1.weight"].T, "bias": own["fc1.bias"]},
        "norm": {"scale": own["norm.weight"], "bias": own["norm.bias"]},
        "fc2": {"kernel": own["fc2.weight"], "bias": own["fc2.bias"]},
    }
    return model, weights, inputs


def one_weight_more() -> Any:
    """With a weight that PyTorch's has not."""
    import jax.numpy as jnp

    model, weights, inputs = in_jax()
    return model, {**weights, "extra": jnp.ones(3)}, inputs


def broken() -> Any:
    """Fails."""
    raise RuntimeError("no such checkpoint")


TOKENS = np.random.default_rng(0).integers(0, 11, (3, 8))


def masked_torch() -> Any:
    """Attention to itself with a mask; positions beyond 16 do not exist."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.position = nn.Embedding(11, 6), nn.Embedding(16, 6)
            self.head = nn.Linear(6, 11)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids) + self.position(torch.arange(ids.shape[1]))
            scores = (x @ x.mT).masked_fill(mask[:, None] == 0, -1e9)
            return self.head(torch.softmax(scores, -1) @ x)

    return Model(), {"ids": torch.from_numpy(TOKENS), "mask": torch.ones(3, 8, dtype=torch.int64)}


def masked_jax() -> Any:
    """The same, with scores of masked places that differ in a row without any other."""
    import jax
    import jax.numpy as jnp

    def model(weights: Any, ids: Any, mask: Any) -> Any:
        x = weights["embedding"][ids] + weights["position"][: ids.shape[1]]
        scores = jnp.where(mask[:, None] == 0, -jnp.inf, x @ x.mT)
        return jax.nn.softmax(scores, -1) @ x @ weights["head"]["kernel"] + weights["head"]["bias"]

    ones = jnp.ones
    weights = {"embedding": ones((11, 6)), "position": ones((16, 6)),
               "head": {"kernel": ones((6, 11)), "bias": ones(11)}}  # fmt: skip
    return model, weights, (TOKENS.astype(np.int32), np.ones((3, 8), np.int32))
