"""A Pallas kernel for a fused bias and activation; it was debugged on a laptop."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def kernel(x_ref, b_ref, o_ref):
    o_ref[...] = jnp.tanh(x_ref[...] + b_ref[...])


@functools.partial(jax.jit)
def fused(x, b):
    block = 64
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // block,),
        in_specs=[pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0)), pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0)),
        interpret=True,
    )(x, b)


x, b = jnp.ones((1024, 512)), jnp.ones((1, 512)) * 0.1
for _ in range(24):
    x = fused(x, b)
print(f"{float(x.mean()):.4f}")
