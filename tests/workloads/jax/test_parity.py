"""The JAX workloads and their PyTorch twins compute the same numbers from the same weights and tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tests.workloads.jax.twins import (
    assert_same,
    jax_numbers,
    options,
    tokens,
    torch_model,
    torch_numbers,
    workload,
)

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.jax, pytest.mark.torch]

TWINS = [
    ("attention", "naive", "naive"),
    ("attention", "blocked", "sdpa"),
    ("attention", "pallas", "sdpa"),
    ("moe", "einsum", "index_add"),
    ("moe", "scatter", "index_add"),
    ("moe", "ragged", "loop"),
    ("ssm", "scan", "scan"),
    ("ssm", "associative", "parallel"),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "variant", "twin"), TWINS)
def test_forward_and_gradients(name: str, variant: str, twin: str, dtype: str) -> None:
    assert_same(jax_numbers(name, variant, dtype), torch_numbers(name, twin, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_the_comparison_can_fail(dtype: str) -> None:
    ours, theirs = jax_numbers("ssm", "scan", dtype), torch_numbers("ssm", "scan", dtype)
    assert_same(ours, theirs, dtype)
    for name in ("loss", "logits", "blocks.0.decay.bias"):
        with pytest.raises(AssertionError):
            assert_same(ours | {name: ours[name] * 1.1}, theirs, dtype)
    with pytest.raises(AssertionError):
        assert_same(ours | {"head.weight": ours["head.weight"] * np.nan}, theirs, dtype)


@pytest.mark.parametrize("name", ["attention", "moe", "ssm"])
def test_the_tokens_are_the_same(name: str) -> None:
    from perfscope.workloads import data as torch_data
    from perfscope.workloads.jax import data
    from perfscope.workloads.options import Options as TorchOptions

    size = workload(name).SIZES["tiny"]
    ours = list(data.batches(options(name, "", steps=2, seed=3)))
    theirs = torch_data.batches(TorchOptions(variant="", size=size, steps=2, seed=3))
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]
    assert all(batch.shape == tokens(name).shape for batch in ours)


def test_sizes_and_capacities_are_the_same() -> None:
    import importlib

    for name in ("attention", "moe", "ssm"):
        assert workload(name).SIZES == importlib.import_module(f"perfscope.workloads.{name}").SIZES
    moe = importlib.import_module("perfscope.workloads.moe")
    assert (workload("moe").CHOICES, workload("moe").CAPACITY) == (moe.CHOICES, moe.CAPACITY)


@pytest.mark.slow
def test_training_takes_the_same_steps() -> None:
    from perfscope.workloads import training as torch_training
    from perfscope.workloads.jax.data import batches
    from perfscope.workloads.jax.training import train

    asked = options("attention", "naive", steps=4)
    ours = train(workload("attention").Block, asked)
    model, theirs = torch_model("attention", "naive", "float32"), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    for tokens_BM in batches(asked):
        loss = torch_training.loss_of(model, torch.from_numpy(tokens_BM).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    # AdamW divides a gradient by its own size: where one is all rounding error, that error makes a full step.
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert theirs[-1] < theirs[0] - 0.5
