"""A model with a plain layer, one whose inputs have a feature far beyond the others, and one whose products cancel."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS, WIDTH, COLUMNS = 16, 1024, 16
OUTLIER = 1e5


def arrays() -> tuple[dict[str, Any], Any]:
    """Weights (columns, terms) by name, and the input."""
    generator = np.random.default_rng(0)
    plain, outlier, cancels = (generator.standard_normal((COLUMNS, WIDTH)).astype(np.float32) for _ in range(3))
    outlier[:, 0] /= OUTLIER  # the feature is large, and its weights small
    cancels[:, 1::2] = -cancels[:, ::2] + 1e-3 * cancels[:, 1::2]
    x = generator.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return {"plain": plain, "outlier": outlier, "cancels": cancels}, x


def cotangent() -> Any:
    """What the gradient of the output is."""
    return np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def make() -> tuple[Any, Any]:
    """The model in PyTorch."""
    import torch

    weights, x = arrays()
    scale = torch.ones(WIDTH)
    scale[0] = OUTLIER

    class Planted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(WIDTH))
            for name, weight in weights.items():
                layer = torch.nn.Linear(WIDTH, COLUMNS, bias=False)
                layer.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))
                setattr(self, name, layer)

        def forward(self, x: Any) -> Any:
            again = x * self.gain
            pairs = again[:, ::2].repeat_interleave(2, 1)
            return self.plain(x) + self.outlier(again * scale) + self.cancels(pairs)

    return Planted(), (torch.from_numpy(x),)


def make_jax() -> tuple[Any, Any, Any]:
    """The model in JAX."""
    import jax.numpy as jnp

    weights, x = arrays()
    scale = jnp.ones(WIDTH).at[0].set(OUTLIER)

    def function(weights: Any, x: Any) -> Any:
        again = x * weights["gain"]
        pairs = jnp.repeat(again[:, ::2], 2, 1)
        return x @ weights["plain"].T + (again * scale) @ weights["outlier"].T + pairs @ weights["cancels"].T

    return (
        function,
        {**{name: jnp.asarray(w) for name, w in weights.items()}, "gain": jnp.ones(WIDTH)},
        (jnp.asarray(x),),
    )
