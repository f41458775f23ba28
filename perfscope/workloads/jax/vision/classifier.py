"""Training of a vision transformer (ViT) in JAX: patches of 16 x 16 pixels, blocks of `attention`, a mean of patches.

    python -m perfscope.workloads.jax.vision.classifier
    python -m perfscope.workloads.jax.vision.classifier --defect augment
    python -m perfscope.workloads.jax.vision.classifier --size gpu --defect accuracy

``--seq`` is the number of patches of a picture, a square number, ``--vocab`` the number of classes. All defects see the
same pictures.

Shapes: B pictures, C colours, R pixels of a side, L patches, D features, V classes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.attention import Block
from perfscope.workloads.jax.data import device_of
from perfscope.workloads.jax.layers import Weights, layer_norm, norm_weights, stacked, uniform
from perfscope.workloads.jax.online import blocked_attention
from perfscope.workloads.jax.options import options_of, parser_of
from perfscope.workloads.jax.training import State, report, updated
from perfscope.workloads.options import Options, Size
from perfscope.workloads.vision.pictures import (
    CHANNELS,
    SIDE,
    augmented,
    crops,
    positions,
    resized,
    side_of,
    stored,
)

SIZES = {
    "tiny": Size(batch=4, seq=4, dim=64, heads=2, layers=1, vocab=8),
    "cpu": Size(batch=32, seq=36, dim=64, heads=4, layers=2, vocab=16),
    "gpu": Size(batch=256, seq=196, dim=768, heads=12, layers=12, vocab=1000),
}
DEFECTS = {
    "augment": "crop, resize, normalise and mirror picture by picture in every step",
    "accuracy": "read the number of right answers in every step",
}


class Classifier:
    """Patches, blocks and a linear head: picture_BCRR -> logits_BV."""

    def __init__(self, size: Size) -> None:
        self.size, self.block = size, Block(size, "blocked")
        self.block.attend = functools.partial(blocked_attention, causal=False)

    def initial(self, seed: int) -> Weights:
        """The weights in numpy, float32."""
        size, generator, pixels = self.size, np.random.default_rng(seed), CHANNELS * SIDE * SIDE
        return {
            "patch_DCPP": uniform(generator, pixels, size.dim, CHANNELS, SIDE, SIDE),
            "patch_D": uniform(generator, pixels, size.dim),
            "place_LD": (0.02 * generator.standard_normal((size.seq, size.dim))).astype(np.float32),
            "blocks": stacked([self.block.initial(generator) for _ in range(size.layers)]),
            "norm": norm_weights(size.dim),
            "head_DV": uniform(generator, size.dim, size.dim, size.vocab),
            "head_V": uniform(generator, size.dim, size.vocab),
        }

    def __call__(self, weights: Weights, picture_BCRR: jax.Array) -> jax.Array:
        """logits_BV."""
        with jax.named_scope("patches"):
            strides = (SIDE, SIDE)
            x_BDLL = jax.lax.conv_general_dilated(picture_BCRR, weights["patch_DCPP"], strides, "VALID")
            x_BLD = jnp.moveaxis(x_BDLL.reshape(*x_BDLL.shape[:2], -1), 1, 2) + weights["patch_D"] + weights["place_LD"]
        with jax.named_scope("blocks"):
            x_BLD, _ = jax.lax.scan(lambda x_BLD, own: (self.block(own, x_BLD), None), x_BLD, weights["blocks"])
        with jax.named_scope("head"):
            return layer_norm(weights["norm"], x_BLD).mean(1) @ weights["head_DV"] + weights["head_V"]


def loss_of(
    model: Classifier, weights: Weights, picture_BCRR: jax.Array, class_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy in nats, and the number of right answers."""
    logits_BV = model(weights, picture_BCRR).astype(jnp.float32)
    with jax.named_scope("loss"):
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits_BV), class_B[:, None], axis=-1).mean()
        return loss, (logits_BV.argmax(-1) == class_B).sum()


def batches(options: Options, device: jax.Device) -> Iterator[jax.Array]:
    """Pictures of each step, on the device: picture_BCRR."""
    size, side, dtype = options.size, side_of(options.size.seq), jnp.dtype(options.dtype)
    picture_BSSC, _ = stored(size.batch, size.seq, size.vocab, options.seed)
    normal_BRRC = jax.device_put(np.stack([resized(one) for one in picture_BSSC]).astype(dtype), device)

    @jax.jit
    def cut(normal_BRRC: jax.Array, row_BR: jax.Array, column_BR: jax.Array) -> jax.Array:
        batch_B11 = jnp.arange(size.batch)[:, None, None]
        return jnp.moveaxis(normal_BRRC[batch_B11, row_BR[:, :, None], column_BR[:, None, :]], 3, 1)

    for crop_B3 in crops(size.batch, size.seq, options.steps, options.seed):
        if "augment" in options.defects:
            pairs = zip(picture_BSSC, crop_B3, strict=True)
            host_BCRR = np.stack([augmented(picture, crop, side) for picture, crop in pairs]).astype(dtype)
            yield jax.device_put(host_BCRR, device)
        else:
            yield cut(normal_BRRC, *jax.device_put(positions(crop_B3, side), device))


def train(options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    model, device, size = Classifier(options.size), device_of(options), options.size
    weights = jax.tree.map(lambda array: array.astype(jnp.dtype(options.dtype)), model.initial(options.seed))
    zeros = jax.tree.map(np.zeros_like, weights)
    state = jax.device_put(State(weights, zeros, zeros, np.zeros((), np.int32)), device)
    class_B = jax.device_put(stored(size.batch, size.seq, size.vocab, options.seed)[1].astype(np.int32), device)

    @functools.partial(jax.jit, donate_argnames="state")
    def step(state: State, picture_BCRR: jax.Array, class_B: jax.Array) -> tuple[State, jax.Array, jax.Array]:
        of = jax.value_and_grad(loss_of, argnums=1, has_aux=True)
        (loss, right), slopes = of(model, state.weights, picture_BCRR, class_B)
        return updated(state, slopes), loss, right

    losses, total = [], 0
    for number, picture_BCRR in enumerate(batches(options, device)):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            state, loss, right = step(state, picture_BCRR, class_B)
            if "accuracy" in options.defects:
                total += int(right)  # defect: host_sync: waits for the step
        losses.append(loss)
    if "accuracy" in options.defects:
        print(f"accuracy {total / options.steps / size.batch:.3f}")
    return report(losses)


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("vit",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    train(parsed())
