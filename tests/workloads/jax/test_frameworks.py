"""Programs of both frameworks compute the same loss and gradients from the same weights (float32)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from perfscope.workloads.options import Options
from tests.workloads.jax.numbers import tokens, workload

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.jax, pytest.mark.torch]

LOSS, GRADIENT = 1e-5, 1e-4
"""Relative distances: the same arithmetic in another order, see `numbers.TOLERANCE`; a gradient is a longer sum."""

State = dict[str, Any]


def linear(weight: Any, bias: Any = None) -> State:
    """Arrays of a linear layer by their names in PyTorch; ``weight``: inputs first."""
    return {"weight": np.transpose(weight), **({} if bias is None else {"bias": bias})}


def norm(weights: Mapping[str, Any]) -> State:
    return {"weight": weights["scale_D"], "bias": weights["shift_D"]}


def named(**parts: State) -> State:
    """``layer={"weight": w}`` -> ``{"layer.weight": w}``."""
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}


def attention_block(weights: Mapping[str, Any]) -> State:
    dim = len(weights["norm1"]["scale_D"])
    attention = named(qkv=linear(weights["qkv_DCHK"].reshape(dim, -1)), out=linear(weights["out_HKD"].reshape(-1, dim)))
    return named(
        norm1=norm(weights["norm1"]),
        norm2=norm(weights["norm2"]),
        attention=attention,
        up=linear(weights["up_DF"], weights["up_F"]),
        down=linear(weights["down_FD"], weights["down_D"]),
    )


def ssm_block(weights: Mapping[str, Any]) -> State:
    return named(
        norm=norm(weights["norm"]),
        decay=linear(weights["decay_DG"], weights["decay_G"]),
        write=linear(weights["write_DG"], weights["write_G"]),
        read=linear(weights["read_DN"], weights["read_N"]),
        out=linear(weights["out_DD"], weights["out_D"]),
    )


def hybrid_block(weights: Mapping[str, Any]) -> State:
    count = len(weights["ssm"]["out_D"])
    parts = {str(number): ssm_block(of_layer(weights["ssm"], number)) for number in range(count)}
    return named(**parts, **{str(count): attention_block(weights["attention"])})


def adapted_block(weights: Mapping[str, Any]) -> State:
    state = attention_block(weights)
    for name in ("up", "down"):
        factors = weights[f"adapter_{name}"]
        for key in ("weight", "bias"):
            state[f"{name}.base.{key}"] = state.pop(f"{name}.{key}")
        state |= named(**{name: {"down_RD": factors["down_DR"].T, "up_GR": factors["up_RF"].T}})
    return state


def of_layer(stack: Any, number: int) -> Any:
    return jax.tree.map(lambda array: np.asarray(array)[number], stack)


def language_model(weights: Mapping[str, Any], block: Any) -> State:
    layers = len(jax.tree.leaves(weights["blocks"])[0])
    blocks = {str(number): block(of_layer(weights["blocks"], number)) for number in range(layers)}
    return named(
        embedding={"weight": weights["embedding_VD"]},
        blocks=named(**blocks),
        norm=norm(weights["norm"]),
        head=linear(weights["head_DV"]),
    )


LANGUAGE = [
    ("hybrid", "Group", "fused", "group", "fused", hybrid_block),
    pytest.param("hybrid", "Group", "scan", "group", "scan", hybrid_block, marks=pytest.mark.slow),
    pytest.param("hybrid", "Group", "naive", "group", "naive", hybrid_block, marks=pytest.mark.slow),
    pytest.param("lora", "Block", "merged", "adapted_block", "merged", adapted_block, marks=pytest.mark.slow),
    pytest.param("lora", "Block", "factors", "adapted_block", "factors", adapted_block, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "ours", "variant", "theirs", "torch_variant", "block"), LANGUAGE)
def test_a_language_model(name: str, ours: str, variant: str, theirs: str, torch_variant: str, block: Any) -> None:
    from perfscope.workloads import training
    from perfscope.workloads.jax import training as in_jax

    size = workload(name).SIZES["tiny"]
    model = in_jax.LanguageModel(getattr(workload(name), ours), Options(variant=variant, size=size))
    weights, tokens_BM = random_weights(model.initial()), tokens(name)
    loss, slopes = jax.jit(jax.value_and_grad(in_jax.loss_of, argnums=1), static_argnums=0)(model, weights, tokens_BM)
    module = importlib.import_module(f"perfscope.workloads.{name}")
    twin = training.build(getattr(module, theirs), Options(variant=torch_variant, size=size))
    load(twin, language_model(weights, block))
    twin_loss = training.loss_of(twin, torch.from_numpy(tokens_BM).long())
    twin_loss.backward()
    assert_same(loss, twin_loss, twin, language_model(jax.device_get(slopes), block))


def random_weights(weights: Any) -> Any:
    """Weights of which none is zero, as the second factor of an adapter is at first."""
    generator = np.random.default_rng(2)
    return jax.tree.map(
        lambda array: array + 0.02 * generator.standard_normal(array.shape).astype(array.dtype), weights
    )


def load(module: Any, state: State) -> None:
    module.load_state_dict({name: torch.tensor(np.array(array)) for name, array in state.items()})


def assert_same(loss: Any, twin_loss: Any, twin: Any, slopes: State) -> None:
    assert float(twin_loss.detach()) == pytest.approx(float(loss), rel=LOSS)
    gradients = {name: parameter.grad.numpy() for name, parameter in twin.named_parameters()}
    assert set(gradients) == set(slopes)
    far = {
        name: float(np.linalg.norm(gradients[name] - slope) / np.linalg.norm(slope)) for name, slope in slopes.items()
    }
    assert {name: distance for name, distance in far.items() if not distance <= GRADIENT} == {}
