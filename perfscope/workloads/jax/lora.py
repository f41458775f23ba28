"""Fine-tuning in JAX with adapters of low rank over a frozen model.

    python -m perfscope.workloads.jax.lora --variant factors
    python -m perfscope.workloads.jax.lora --variant merged
    python -m perfscope.workloads.jax.lora --variant merged --size gpu

Variants of an adapted layer: ``factors`` (two thin products with the input) and ``merged`` (the weight with its adapter
is made in every call). Both train the same. A step gets the adapters and the frozen weights as two arguments.

Shapes: B batch, L sequence, D and F features, R rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np

from perfscope.workloads.jax import attention
from perfscope.workloads.jax.data import device_of
from perfscope.workloads.jax.layers import Weights, layer_norm
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import LanguageModel, State, loop, loss_of, start, updated
from perfscope.workloads.options import Options, Size

VARIANTS = ("factors", "merged")
SIZES = {
    "tiny": Size(batch=4, seq=32, dim=128, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=64, dim=384, heads=4, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=4096, heads=32, layers=8, vocab=32_000),
}
RANK, SCALE = 8, 2.0


class Block(attention.Block):
    """A transformer block whose perceptron has adapters: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__(size, "blocked")
        self.merges = variant == "merged"

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of one layer, float32; those of adapters begin with ``adapter``."""
        return super().initial(generator) | {
            "adapter_up": adapter(generator, self.size.dim, 4 * self.size.dim),
            "adapter_down": adapter(generator, 4 * self.size.dim, self.size.dim),
        }

    @jax.named_scope("feed_forward")
    def feed_forward(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """The term that the hidden layer adds to x_BLD."""
        z_BLD = layer_norm(weights["norm2"], x_BLD)
        h_BLF = self.adapted(z_BLD, weights["up_DF"], weights["adapter_up"]) + weights["up_F"]
        h_BLF = jax.nn.gelu(h_BLF, approximate=False)
        return self.adapted(h_BLF, weights["down_FD"], weights["adapter_down"]) + weights["down_D"]

    def adapted(self, x_BLD: jax.Array, weight_DF: jax.Array, factors: Weights) -> jax.Array:
        """A product with a weight and its adapter: y_BLF."""
        down_DR, up_RF = factors["down_DR"], factors["up_RF"]
        if self.merges:
            return x_BLD @ (weight_DF + SCALE * down_DR @ up_RF)  # defect: constant_work: D * F in each call
        return x_BLD @ weight_DF + SCALE * (x_BLD @ down_DR) @ up_RF


def adapter(generator: np.random.Generator, inputs: int, outputs: int) -> Weights:
    """The two factors of an adapter, of which the second starts at zero, float32."""
    down_DR = generator.standard_normal((inputs, RANK)) / inputs**0.5
    return {"down_DR": down_DR.astype(np.float32), "up_RF": np.zeros((RANK, outputs), np.float32)}


def split(weights: Weights) -> tuple[Weights, Weights]:
    """The adapters of all layers, and all other weights."""
    adapters = {name: value for name, value in weights["blocks"].items() if name.startswith("adapter")}
    rest = {name: value for name, value in weights["blocks"].items() if name not in adapters}
    return adapters, {**weights, "blocks": rest}


def train(options: Options) -> list[float]:
    """Trains the adapters for ``options.steps`` steps, prints the loss of each and returns them."""
    model, device = LanguageModel(Block, options), device_of(options)
    adapters, frozen = split(start(model).weights)
    zeros = jax.tree.map(np.zeros_like, adapters)
    state = jax.device_put(State(adapters, zeros, zeros, np.zeros((), np.int32)), device)

    @functools.partial(jax.jit, donate_argnames="state")
    def step(state: State, tokens_BM: jax.Array, frozen: Weights) -> tuple[State, jax.Array]:
        def loss(adapters: Weights) -> jax.Array:
            return loss_of(model, {**frozen, "blocks": frozen["blocks"] | adapters}, tokens_BM)

        value, slopes = jax.value_and_grad(loss)(state.weights)
        return updated(state, slopes), value

    return loop(functools.partial(step, frozen=jax.device_put(frozen, device)), state, options, device)


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, {}).parse_args(argv), SIZES)


if __name__ == "__main__":
    train(parsed())
