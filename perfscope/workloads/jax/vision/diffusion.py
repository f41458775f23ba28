"""The sampler of a diffusion transformer (DiT) in JAX, with classifier-free guidance by a text.

    python -m perfscope.workloads.jax.vision.diffusion
    python -m perfscope.workloads.jax.vision.diffusion --defect cast
    python -m perfscope.workloads.jax.vision.diffusion --defect text --defect two-calls

``--steps`` is the number of steps of the sampler, ``--seq`` the number of patches of a picture, a square number. All
defects draw the same pictures.

Shapes: B pictures, N rows of a call (2 B: with the text and without), L patches, M tokens of the text, D features, H
heads, K features of a head, P numbers of a patch, T steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.data import device_of
from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, uniform
from perfscope.workloads.jax.online import blocked_attention
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.options import Options, Size

SIZES = {
    "tiny": Size(batch=2, seq=16, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=2, seq=64, dim=256, heads=4, layers=3),
    "gpu": Size(batch=16, seq=1024, dim=1152, heads=16, layers=28, vocab=32_000),
}
DEFECTS = {
    "cast": "keep the weights in bfloat16 and convert them in each call",
    "text": "compute the embedding of the text again in each step",
    "two-calls": "call the model twice per step, with the text and without, in place of once with both",
    "retrace": "pass the number of the step as a static Python int: every step traces and compiles again",
}
PATCH, TOKENS, GUIDANCE = 16, 16, 4.0
PLAIN = {"scale_D": np.float32(1), "shift_D": np.float32(0)}
"""A layer norm without weights."""


def linear_weights(generator: np.random.Generator, inputs: int, outputs: int) -> Weights:
    """Weight and bias of a linear layer, float32."""
    return {"weight_DG": uniform(generator, inputs, inputs, outputs), "bias_G": uniform(generator, inputs, outputs)}


def linear(weights: Weights, x_D: jax.Array) -> jax.Array:
    """A linear layer that computes in the dtype of its input, whatever the dtype of its weight: y_G."""
    weight_DG = weights["weight_DG"].astype(x_D.dtype)  # defect: constant_work: all weights
    return x_D @ weight_DG + weights["bias_G"].astype(x_D.dtype)


def attended(heads: int, q_NLD: jax.Array, k_NMD: jax.Array, v_NMD: jax.Array) -> jax.Array:
    """Attention in which every query sees all keys: o_NLD."""
    q_NHLK, k_NHMK, v_NHMK = (x_ND.reshape(*x_ND.shape[:2], heads, -1).swapaxes(1, 2) for x_ND in (q_NLD, k_NMD, v_NMD))
    return blocked_attention(q_NHLK, k_NHMK, v_NHMK, causal=False).swapaxes(1, 2).reshape(q_NLD.shape)


def initial(options: Options) -> tuple[Weights, Weights]:
    """The weights of the encoder of texts and of the denoiser, float32."""
    size, generator = options.size, np.random.default_rng(options.seed)
    dim = size.dim
    make = functools.partial(linear_weights, generator)
    encoder = {
        "embedding_VD": generator.standard_normal((size.vocab, dim)).astype(np.float32),
        "layers": [
            {
                "qkv": make(dim, 3 * dim),
                "out": make(dim, dim),
                "norm1": norm_weights(dim),
                "up": make(dim, 4 * dim),
                "down": make(4 * dim, dim),
                "norm2": norm_weights(dim),
            }
            for _ in range(2)
        ],
    }
    widths = {"time": (dim, 4 * dim), "qkv": (dim, 3 * dim), "out": (dim, dim), "text": (dim, 2 * dim),
              "up": (dim, 4 * dim), "down": (4 * dim, dim)}  # fmt: skip
    denoiser = {
        "enter": make(PATCH, dim),
        "place_LD": (0.02 * generator.standard_normal((size.seq, dim))).astype(np.float32),
        "blocks": [{name: make(*width) for name, width in widths.items()} for _ in range(size.layers)],
        "leave": make(dim, PATCH),
    }
    return encoder, denoiser


@jax.named_scope("encoder")
def encoded(weights: Weights, tokens_NM: jax.Array, heads: int) -> jax.Array:
    """Embeds texts: text_NMD."""
    x_NMD = weights["embedding_VD"][tokens_NM]
    for own in weights["layers"]:
        q, k, v = jnp.split(linear(own["qkv"], x_NMD), 3, axis=-1)
        x_NMD = layer_norm(own["norm1"], x_NMD + linear(own["out"], attended(heads, q, k, v)))
        h_NMF = jax.nn.relu(linear(own["up"], x_NMD))
        x_NMD = layer_norm(own["norm2"], x_NMD + linear(own["down"], h_NMF))
    return x_NMD


@jax.named_scope("denoiser")
def denoised(weights: Weights, x_NLP: jax.Array, time: jax.Array, text_NMD: jax.Array, heads: int) -> jax.Array:
    """Predicts the noise in patches: noise_NLP."""
    dim = text_NMD.shape[-1]
    angle_D = time * jnp.logspace(0, -4, dim // 2, dtype=jnp.float32)
    time_D = jnp.concatenate((jnp.cos(angle_D), jnp.sin(angle_D))).astype(x_NLP.dtype)
    x_NLD = linear(weights["enter"], x_NLP) + weights["place_LD"].astype(x_NLP.dtype)
    for own in weights["blocks"]:
        scale1, shift1, scale2, shift2 = jnp.split(linear(own["time"], time_D), 4)
        q, k, v = jnp.split(linear(own["qkv"], layer_norm(PLAIN, x_NLD) * (1 + scale1) + shift1), 3, axis=-1)
        more_k, more_v = jnp.split(linear(own["text"], text_NMD), 2, axis=-1)
        o_NLD = attended(heads, q, jnp.concatenate((k, more_k), 1), jnp.concatenate((v, more_v), 1))
        x_NLD = x_NLD + linear(own["out"], o_NLD)
        h_NLF = jax.nn.gelu(linear(own["up"], layer_norm(PLAIN, x_NLD) * (1 + scale2) + shift2), approximate=False)
        x_NLD = x_NLD + linear(own["down"], h_NLF)
    return linear(weights["leave"], x_NLD)


def guided(
    weights: Weights, x_BLP: jax.Array, time: jax.Array, text_NMD: jax.Array, heads: int, twice: bool
) -> jax.Array:
    """The noise with guidance: noise_BLP. The first half of ``text_NMD`` is the text, the other is without one."""
    count = len(x_BLP)
    if twice:
        with_BLP = denoised(weights, x_BLP, time, text_NMD[:count], heads)
        without_BLP = denoised(weights, x_BLP, time, text_NMD[count:], heads)  # defect: none: reads all weights again
    else:
        both_NLP = denoised(weights, jnp.concatenate((x_BLP, x_BLP)), time, text_NMD, heads)
        with_BLP, without_BLP = both_NLP[:count], both_NLP[count:]
    return without_BLP + GUIDANCE * (with_BLP - without_BLP)


def sample(options: Options) -> list[float]:
    """Draws pictures in ``options.steps`` steps of DDIM; prints and returns numbers of the first."""
    size, device, generator = options.size, device_of(options), np.random.default_rng(options.seed + 1)
    encoder, denoiser = initial(options)
    denoiser = jax.tree.map(lambda array: array.astype(jnp.bfloat16), denoiser)
    if "cast" not in options.defects:
        denoiser = jax.tree.map(lambda array: array.astype(options.dtype), denoiser)
    encoder = jax.tree.map(lambda array: array.astype(options.dtype), encoder)
    tokens_NM = generator.integers(1, size.vocab, (2 * size.batch, TOKENS))
    tokens_NM[size.batch :] = 0
    noise_BLP = generator.standard_normal((size.batch, size.seq, PATCH)).astype(options.dtype)
    kept_T = np.linspace(0.01, 0.99, options.steps + 1, dtype=np.float32)  # share of the picture, rising
    encoder, weights, tokens_NM, x_BLP, kept = jax.device_put((encoder, denoiser, tokens_NM, noise_BLP, kept_T), device)
    static = ("step",) if "retrace" in options.defects else ()

    @functools.partial(jax.jit, static_argnames=static, donate_argnames="x_BLP")
    def denoise(weights: Weights, x_BLP: jax.Array, text_NMD: jax.Array, kept_T: jax.Array, step: int) -> jax.Array:
        now, later = kept_T[step], kept_T[step + 1]
        noise_BLP = guided(weights, x_BLP, 1000 * (1 - now), text_NMD, size.heads, "two-calls" in options.defects)
        now, later = now.astype(x_BLP.dtype), later.astype(x_BLP.dtype)
        clean_BLP = (x_BLP - jnp.sqrt(1 - now) * noise_BLP) / jnp.sqrt(now)
        return jnp.sqrt(later) * clean_BLP + jnp.sqrt(1 - later) * noise_BLP

    encode = jax.jit(functools.partial(encoded, heads=size.heads))
    text_NMD = encode(encoder, tokens_NM)
    for step in range(options.steps):
        if "text" in options.defects:
            text_NMD = encode(encoder, tokens_NM)  # defect: none: the same in each step
        if "retrace" in options.defects:
            x_BLP = denoise(weights, x_BLP, text_NMD, kept, step=step)  # defect: recompilation: a static int
        else:
            x_BLP = denoise(weights, x_BLP, text_NMD, kept, step)
    numbers = [float(number) for number in jax.device_get(x_BLP[0, 0, :4])]
    print(*(f"{number:.4f}" for number in numbers))
    return numbers


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("dit",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    sample(parsed())
