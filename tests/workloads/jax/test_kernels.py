"""Pallas kernels of the JAX workloads: numbers and gradients of their plain versions, at sizes that fit no block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.workloads.jax.numbers import options, workload

jax = pytest.importorskip("jax")
pytestmark = [pytest.mark.jax, pytest.mark.slow]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def assert_equal_with_gradients(
    kernel: Callable[..., Any], plain: Callable[..., Any], arguments: tuple[Any, ...], allowed: float
) -> None:
    """Results and gradients of every argument, by a random cotangent; ``allowed``: relative to their largest value."""
    found = []
    for function in (kernel, plain):
        result, gradients_of = jax.vjp(jax.jit(function), *arguments)
        seeds = jax.tree.map(lambda array: normal(9, *array.shape).astype(array.dtype), result)
        found.append(jax.device_get((result, gradients_of(seeds))))
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.abs(ours - theirs).max() <= allowed * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize(
    ("length", "heads", "groups", "window"), [(100, 2, 2, None), (1, 1, 1, None), (130, 4, 2, 40), (70, 2, 1, 1)]
)
def test_attention_with_windows_and_shared_heads(length: int, heads: int, groups: int, window: int | None) -> None:
    attention = workload("attention")
    q = normal(0, 2, heads, length, 8)
    k, v = normal(1, 2, groups, length, 8), normal(2, 2, groups, length, 8)

    def plain(q: Any, k: Any, v: Any) -> Any:
        repeats = heads // groups
        return attention.naive_attention(q, jax.numpy.repeat(k, repeats, 1), jax.numpy.repeat(v, repeats, 1), window)

    def kernel(q: Any, k: Any, v: Any) -> Any:
        return attention.pallas_attention(q, k, v, window)

    # Sums of 130 float32 terms in another order: sqrt(130) * 6e-8 is 7e-7; a gradient is three of them.
    assert_equal_with_gradients(kernel, plain, (q, k, v), 5e-6)


def test_parts_of_keys_are_attention_to_all() -> None:
    from perfscope.workloads.jax.kernels import flash, ring

    q, k, v = (normal(seed, 1, 2, 70, 8) for seed in range(3))
    own, before = flash.part(q, k, v, causal=True), flash.part(q, normal(3, *k.shape), v, causal=False)
    merged, log = ring._merged(*own, before)
    scores = np.concatenate([q @ normal(3, *k.shape).mT, np.where(np.tri(70) > 0, q @ k.mT, -np.inf)], -1) / 8**0.5
    weights = jax.nn.softmax(scores)
    assert np.abs(merged - weights @ np.concatenate([v, v], 2)).max() < 5e-6
    assert np.abs(log - jax.nn.logsumexp(scores, -1)).max() < 5e-6


def test_kernels_declare_their_work() -> None:
    from perfscope.workloads.jax.kernels import flash
    from perfscope.workloads.jax.kernels.quantized import scaled_matmul

    q = normal(0, 1, 2, 64, 16)
    scales = np.ones((32, 1), np.float32), np.ones((1, 40), np.float32)
    small = [np.zeros(shape, jax.numpy.float8_e4m3fn) for shape in ((32, 256), (256, 40))]
    assert declared(lambda q: flash.part(q, q, q, causal=True), q) == [
        (4 * 2 * (64 * 65 // 2) * 16, 2 * 64 * (16 * 4 + 1) * 4)
    ]
    assert declared(lambda q: flash.part(q, q, q, causal=False), q)[0][0] == 4 * 2 * 64 * 64 * 16
    assert declared(lambda x, w: scaled_matmul(x, w, *scales, "bfloat16"), *small) == [
        (2 * 32 * 256 * 40, 32 * 256 + 256 * 40 + (32 + 40) * 4 + 32 * 40 * 2)
    ]


def declared(function: Callable[..., Any], *arguments: Any) -> list[tuple[int, int]]:
    """FLOPs and bytes of each kernel of a function, once for all platforms."""
    found: set[tuple[int, int]] = set()

    def look(value: Any) -> None:
        for inner in value if isinstance(value, tuple | list) else ():
            look(inner)
        for equation in getattr(getattr(value, "jaxpr", value), "eqns", ()):
            if (cost := equation.params.get("cost_estimate")) is not None:
                found.add((cost.flops, cost.bytes_accessed))
            look(list(equation.params.values()))

    look(jax.make_jaxpr(function)(*arguments))
    return sorted(found)


@pytest.mark.parametrize("vocabulary", [64, 60])
def test_a_loss_by_parts_of_the_vocabulary(vocabulary: int) -> None:
    from perfscope.workloads.jax.chunked_loss import chunked_loss

    target_T = np.random.default_rng(3).integers(vocabulary, size=100)

    def plain(x_TD: Any, head_DV: Any) -> Any:
        log_TV = jax.nn.log_softmax(x_TD @ head_DV)
        return -jax.numpy.take_along_axis(log_TV, target_T[:, None], 1).mean()

    arguments = 3 * normal(0, 100, 16), normal(1, 16, vocabulary)
    assert_equal_with_gradients(lambda x, head: chunked_loss(x, head, target_T), plain, arguments, 1e-6)


def test_the_loss_of_the_model_is_the_same() -> None:
    from perfscope.workloads.jax.training import train

    losses = [
        train(workload("attention").Block, options("attention", "blocked", steps=2, **{flag: "logits"}))
        for flag in ("kernel_defect", "kernel_twin")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_selective_scan_of_several_blocks_of_channels() -> None:
    from perfscope.workloads.jax.kernels.selective import selective_scan

    def plain(a: Any, u: Any, c: Any) -> Any:
        return jax.numpy.einsum("bldn,bln->bld", workload("ssm").scan(a, u), c)

    a = 1 / (1 + np.exp(-normal(0, 2, 33, 48, 4)))
    assert_equal_with_gradients(selective_scan, plain, (a, normal(1, 2, 33, 48, 4), normal(2, 2, 33, 4)), 5e-6)


@pytest.mark.parametrize("variant", ["chunked", "ssd"])
def test_chunks_of_a_state_space(variant: str) -> None:
    from perfscope.workloads.jax import ssd as plain
    from perfscope.workloads.jax.kernels import ssd

    x, log = normal(0, 2, 150, 3, 8), -np.abs(normal(1, 2, 150, 3))
    arguments = (x, log, normal(2, 2, 150, 5), normal(3, 2, 150, 5))
    # A decay of a chunk is the exponential of a sum of 64 numbers of order 1, right to 64 * 6e-8.
    assert_equal_with_gradients(getattr(ssd, variant), plain.scan, arguments, 2e-5)


def test_products_of_groups_of_rows() -> None:
    from perfscope.workloads.jax.kernels.grouped import grouped_matmul, layout

    rows_E = np.array([40, 0, 3, 85, 0], np.int32)
    first_E, expert_S, block = layout(jax.numpy.asarray(rows_E), 128)
    expert_R = np.repeat(np.arange(5), rows_E)
    slot_R = np.asarray(first_E)[expert_R] + np.concatenate([np.arange(count) for count in rows_E])
    x, weights = normal(0, 128, 24), normal(1, 5, 24, 40)

    def kernel(x: Any, weights: Any) -> Any:
        room = jax.numpy.zeros((len(expert_S) * block, 24), "float32").at[slot_R].set(x)
        return grouped_matmul(room, weights, expert_S)[slot_R]

    def plain(x: Any, weights: Any) -> Any:
        return jax.numpy.einsum("rd,rdg->rg", x, weights[expert_R])

    assert_equal_with_gradients(kernel, plain, (x, weights), 5e-6)


@pytest.mark.parametrize("shape", [(5, 256, 40), (33, 64, 128)])
def test_products_with_quantized_weights(shape: tuple[int, int, int]) -> None:
    from perfscope.workloads.jax import quantized
    from perfscope.workloads.jax.options import parse

    rows, inputs, outputs = shape
    x, scale = normal(0, rows, inputs), np.abs(normal(1, 1, outputs))
    generator = np.random.default_rng(2)
    for kernel, plain, height, dtype in (
        ("int8", "int8-widened", inputs, "int8"),
        ("fp8", "fp8-widened", inputs, jax.numpy.float8_e4m3fn),
        ("int4", "int4-unpacked", inputs // 2, "int8"),
    ):
        weights = generator.integers(-127, 128, (height, outputs), dtype=np.int8).astype(dtype)
        layer = {"weights": weights, "scale_1D": scale}
        ours, theirs = (jax.jit(lambda x, v=v, layer=layer: quantized.linear(layer, x, v))(x) for v in (kernel, plain))
        # Sums of integers are exact; those of 256 products in float32 are right to 16 * 6e-8.
        assert np.abs(ours - theirs).max() <= 2e-6 * np.abs(theirs).max()
    asked = parse("", quantized.VARIANTS, quantized.SIZES, ["--size", "tiny", "--variant", "int4", "--steps", "1"])
    assert np.isfinite(quantized.infer(asked)).all()
