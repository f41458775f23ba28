"""Optimizers for tests: of PyTorch as a function of the module, and Adam in JAX with the interface of Optax."""

from __future__ import annotations

from typing import Any, NamedTuple


def torch_adamw(module: Any) -> Any:
    """With its defaults."""
    import torch

    return torch.optim.AdamW(module.parameters())


class Adam(NamedTuple):
    """``wrong``: what is planted."""

    wrong: str = ""
    epsilon: float = 1e-8
    decay: float = 1e-2

    def init(self, parameters: Any) -> Any:
        """Zeros and a count."""
        import jax

        zeros = jax.tree_util.tree_map(lambda value: value * 0, parameters)
        return zeros, zeros, 0

    def update(self, gradients: Any, state: Any, parameters: Any) -> Any:
        """Changes and the next state."""
        import jax
        import jax.numpy as jnp

        first, second, count = state
        count += 1
        of_first, of_second = (1.0, 1.0) if self.wrong == "correction" else (1 - 0.9**count, 1 - 0.999**count)
        if self.wrong == "coupled":
            gradients = jax.tree_util.tree_map(lambda g, p: g + self.decay * p, gradients, parameters)
        first = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree_util.tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)

        def change(m: Any, v: Any, p: Any) -> Any:
            if self.wrong == "inside":
                step = m / of_first / jnp.sqrt(v / of_second + self.epsilon)
            else:
                step = m / of_first / (jnp.sqrt(v / of_second) + self.epsilon)
            return -1e-3 * (step + (0 if self.wrong == "coupled" else self.decay * p))

        changes = jax.tree_util.tree_map(change, first, second, parameters)
        if self.wrong == "twice":
            changes = {name: value * (2 if name == "embedding" else 1) for name, value in changes.items()}
        return changes, (first, second, count)


def jax_adamw() -> Any:
    """The same rule."""
    return Adam()


def jax_coupled() -> Any:
    """Weight decay is added to the gradient."""
    return Adam("coupled")
