"""The JAX twin of ``perfscope.workloads.generate``: writes tokens one after the other.

    python -m perfscope.workloads.jax.generate --defect item

Shapes: B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.layers import Weights
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.ssm import SIZES, Block
from perfscope.workloads.jax.training import LanguageModel, start
from perfscope.workloads.options import Options

VARIANTS = ("associative", "scan")
DEFECTS = {"item": "read every token, to see whether it ends the text"}
END = -1
"""The token that ends a text: it never occurs, so that all variants write as many tokens."""


def generate(options: Options) -> list[int]:
    """Writes ``options.steps`` tokens after a prompt, each the likeliest, prints and returns the first sequence's."""
    model, device = LanguageModel(Block, options), device_of(options)
    weights = jax.device_put(start(model).weights, device)

    @jax.jit
    def extended(weights: Weights, tokens_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
        token_B = model(weights, tokens_BL)[:, -1].argmax(-1)
        return jnp.concatenate((tokens_BL[:, 1:], token_B[:, None]), axis=1), token_B[0]

    tokens_BL = jax.device_put(next(iter(batches(options)))[:, :-1], device)
    written = []
    for _ in range(options.steps):
        tokens_BL, token = extended(weights, tokens_BL)
        written.append(token)
        if "item" in options.defects and int(token) == END:  # defect: host_sync: waits for every token
            break
    tokens = [int(token) for token in jax.device_get(written)]
    print(*tokens)
    return tokens


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    generate(parsed())
