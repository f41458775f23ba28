"""The training loop of all JAX workloads: a small language model around the block under study, and AdamW.

Shapes: B batch, L sequence, M = L + 1, D model features, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.workloads.jax.chunked_loss import chunked_loss
from perfscope.workloads.jax.data import batches, device_of
from perfscope.workloads.jax.layers import Weights, adapted, adapter_weights, layer_norm, norm_weights, stacked, uniform
from perfscope.workloads.options import Options, Size

RATE, BETA1, BETA2, EPSILON, DECAY = 3e-3, 0.9, 0.999, 1e-8, 0.01
"""AdamW (Loshchilov and Hutter 2019), with the numbers of the PyTorch workloads."""

NAMED = ("qkv", "middle", "hidden")
"""Values that blocks name (``jax.ad_checkpoint.checkpoint_name``) for the policy ``names``."""
POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "names": jax.checkpoint_policies.save_only_these_names(*NAMED),
}
"""Policy of ``jax.checkpoint`` for a block, by the name on the command line; ``None`` keeps its input only."""


class Block(Protocol):
    """The block under study."""

    def initial(self, generator: np.random.Generator) -> Weights:
        """The weights of one layer, float32."""

    def __call__(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        """x_BLD."""


class State(NamedTuple):
    """Input and output of a step: weights, AdamW's two moments (trees like the weights), number of steps so far."""

    weights: Weights
    mean: Weights
    square: Weights
    count: jax.Array


class LanguageModel:
    """Embedding, ``size.layers`` blocks (x_BLD -> x_BLD) and a linear head: tokens_BL -> logits_BLV."""

    def __init__(self, block: Callable[[Size, str], Block], options: Options) -> None:
        self.options, self.defects = options, options.defects
        recomputes = "checkpoint" in self.defects or "checkpoint-nested" in self.defects
        self.policy = "full" if options.policy == "none" and recomputes else options.policy
        self.has_adapter = "order" in (options.kernel_defect, options.kernel_twin)
        self.block = block(options.size, options.variant)

    def initial(self) -> Weights:
        """The weights in numpy, float32. The same seed gives every variant the same."""
        size, generator = self.options.size, np.random.default_rng(self.options.seed)
        weights = {
            "embedding_VD": generator.standard_normal((size.vocab, size.dim), np.float32),
            "blocks": stacked([self.block.initial(generator) for _ in range(size.layers)]),
            "norm": norm_weights(size.dim),
            "head_DV": uniform(generator, size.dim, size.dim, size.vocab),
        }
        if self.has_adapter:
            weights["adapter"] = adapter_weights(generator, size.dim)
        return weights

    def __call__(self, weights: Weights, tokens_BL: jax.Array) -> jax.Array:
        """logits_BLV."""
        return self._head(weights, self.features(weights, tokens_BL))

    def features(self, weights: Weights, tokens_BL: jax.Array) -> jax.Array:
        """x_BLD of which the head makes logits."""
        with jax.named_scope("embedding"):
            x_BLD = weights["embedding_VD"][tokens_BL]
        if "checkpoint-nested" in self.defects:
            x_BLD = jax.checkpoint(self._layers)(x_BLD, weights["blocks"])  # defect: excess_remat: and a third forward
        else:
            x_BLD = self._layers(x_BLD, weights["blocks"])
        if self.has_adapter:
            x_BLD = adapted(weights["adapter"], x_BLD, self.options.kernel_defect is not None)
        return layer_norm(weights["norm"], x_BLD)

    @jax.named_scope("head")
    def _head(self, weights: Weights, x_BLD: jax.Array) -> jax.Array:
        if "fp32" in self.defects:
            return jnp.matmul(x_BLD, weights["head_DV"], precision="highest")  # defect: full_precision_matmul: no TF32
        return x_BLD @ weights["head_DV"]

    @jax.named_scope("blocks")
    def _layers(self, x_BLD: jax.Array, weights: Weights) -> jax.Array:
        return jax.lax.scan(self._layer, x_BLD, weights)[0]

    def _layer(self, x_BLD: jax.Array, weights: Weights) -> tuple[jax.Array, None]:
        if self.policy != "none":
            kept = POLICIES[self.policy]
            return jax.checkpoint(self.block, policy=kept)(weights, x_BLD), None  # defect: excess_remat
        return self.block(weights, x_BLD), None


def loss_of(model: LanguageModel, weights: Weights, tokens_BM: jax.Array) -> jax.Array:
    """Cross-entropy of the next token in nats, a float32 scalar."""
    if isinstance(model, LanguageModel) and model.options.kernel_twin == "logits":
        x_TD = model.features(weights, tokens_BM[:, :-1]).reshape(-1, weights["head_DV"].shape[0])
        with jax.named_scope("loss"):
            return chunked_loss(x_TD, weights["head_DV"], tokens_BM[:, 1:].ravel())
    return loss_and_logits(model, weights, tokens_BM)[0]


def loss_and_logits(model: LanguageModel, weights: Weights, tokens_BM: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss, and the logits_BLV in float32 that it was computed from."""
    logits_BLV = model(weights, tokens_BM[:, :-1]).astype(jnp.float32)
    with jax.named_scope("loss"):
        log_BLV = jax.nn.log_softmax(logits_BLV)
        return -jnp.take_along_axis(log_BLV, tokens_BM[:, 1:, None], axis=-1).mean(), logits_BLV


def adamw(weight: jax.Array, gradient: jax.Array, mean: jax.Array, square: jax.Array, count: Any) -> tuple[Any, ...]:
    """The new weight and moments of one array after step ``count`` (from 1), computed in float32, kept in its dtype."""
    gradient, wide, dtype = gradient.astype(jnp.float32), weight.astype(jnp.float32), weight.dtype
    mean = BETA1 * mean.astype(jnp.float32) + (1 - BETA1) * gradient
    square = BETA2 * square.astype(jnp.float32) + (1 - BETA2) * jnp.square(gradient)
    # 1 - beta**count; expm1 keeps the digits that float32 loses to 1 - 0.999.
    unbiased_mean = mean / -jnp.expm1(count * math.log(BETA1))
    unbiased_square = square / -jnp.expm1(count * math.log(BETA2))
    wide = wide * (1 - RATE * DECAY) - RATE * unbiased_mean / (jnp.sqrt(unbiased_square) + EPSILON)
    return wide.astype(dtype), mean.astype(dtype), square.astype(dtype)


def start(model: LanguageModel) -> State:
    """The state before the first step, in numpy, in the dtype asked for."""
    dtype = jnp.dtype(model.options.dtype)
    weights = jax.tree.map(lambda array: array.astype(dtype), model.initial())
    zeros = jax.tree.map(np.zeros_like, weights)
    return State(weights, zeros, zeros, np.zeros((), np.int32))


def step_of(model: LanguageModel) -> Callable[..., tuple[State, Any]]:
    """One step of training, to be compiled: (state, tokens_BM) -> (state, loss), or (state, (loss, logits)) to leak."""

    def step(state: State, tokens_BM: jax.Array, count: int | None = None) -> tuple[State, Any]:
        loss, gradients = slopes_of(model, state, tokens_BM)
        return updated(state, gradients, count), loss

    return step


def slopes_of(model: LanguageModel, state: State, tokens_BM: jax.Array) -> tuple[Any, Weights]:
    """(loss, gradients), or ((loss, logits), gradients) to leak."""
    leaks = "leak" in model.defects
    of = loss_and_logits if leaks else loss_of
    found: tuple[Any, Weights] = jax.value_and_grad(of, argnums=1, has_aux=leaks)(model, state.weights, tokens_BM)
    return found


@jax.named_scope("optimizer")
def updated(state: State, gradients: Weights, count: int | None = None) -> State:
    """The state after a step of AdamW; ``count``: its number, if it is not counted on the device."""
    taken = state.count + 1 if count is None else count
    tree = jax.tree.structure(state.weights)
    leaves, slopes, means, squares = map(jax.tree.leaves, (state.weights, gradients, state.mean, state.square))
    new = [adamw(*leaf, taken) for leaf in zip(leaves, slopes, means, squares, strict=True)]
    weights, mean, square = (tree.unflatten(column) for column in zip(*new, strict=True))
    return State(weights, mean, square, state.count + 1)


def apart(model: LanguageModel) -> Callable[..., tuple[State, Any]]:
    """The same step with only its gradients compiled: every operation of AdamW is a separate program."""
    slopes = jax.jit(functools.partial(slopes_of, model))

    def step(state: State, tokens_BM: jax.Array) -> tuple[State, Any]:
        loss, gradients = slopes(state, tokens_BM)
        return updated(state, gradients), loss  # defect: unfused_optimizer: outside of jit, where nothing is fused

    return step


def train(block: Callable[[Size, str], Block], options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    model, device = LanguageModel(block, options), device_of(options)
    if "eager-update" in options.defects:
        return loop(apart(model), jax.device_put(start(model), device), options, device)
    donated = () if "no-donation" in options.defects else 0  # defect: donation_missed: old and new state at once
    update = jax.jit(step_of(model), static_argnums=2, donate_argnums=donated)
    return loop(update, jax.device_put(start(model), device), options, device)


def loop(update: Callable[..., tuple[State, Any]], state: State, options: Options, place: Any) -> list[float]:
    """Runs a compiled step over all batches, which go to ``place`` (a device or a sharding); prints the losses."""
    losses, kept, total = [], [], 0.0
    for number, tokens_BM in enumerate(batches(options)):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            batch_BM = jax.device_put(tokens_BM, place)
            if "retrace" in options.defects:
                state, loss = update(state, batch_BM, number + 1)  # defect: recompilation: a static int
            else:
                state, loss = update(state, batch_BM)
            if "leak" in options.defects:
                loss, logits_BLV = loss
                kept.append(logits_BLV)  # defect: memory_leak: grows by a step's logits with every step
            if "float" in options.defects:
                total += float(loss)  # defect: host_sync: the host waits for the step it has just queued
        losses.append(loss)
    if "float" in options.defects:
        print(f"mean loss {total / options.steps:.4f}")
    return report(losses)


def report(losses: list[jax.Array]) -> list[float]:
    """Prints and returns the losses, read from the device once, after the last step."""
    values = [float(loss) for loss in jax.device_get(losses)]
    for step, value in enumerate(values):
        print(f"step {step:3d}  loss {value:.4f}")
    return values
