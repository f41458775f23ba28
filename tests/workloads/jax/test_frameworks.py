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


def test_a_classifier_of_pictures() -> None:
    from perfscope.workloads.jax.vision import classifier as in_jax
    from perfscope.workloads.vision import classifier
    from perfscope.workloads.vision.pictures import stored

    size = in_jax.SIZES["tiny"]
    assert size == classifier.SIZES["tiny"]
    model, twin = in_jax.Classifier(size), classifier.Classifier(size)
    (first_BRRC, class_B), weights = stored(size.batch, size.seq, size.vocab, 0), random_weights(model.initial(0))
    side = classifier.side_of(size.seq)
    picture_BCRR = np.ascontiguousarray(first_BRRC[:, :side, :side].transpose(0, 3, 1, 2) / 128, dtype=np.float32)
    of = jax.jit(jax.value_and_grad(in_jax.loss_of, argnums=1, has_aux=True), static_argnums=0)
    (loss, _), slopes = of(model, weights, picture_BCRR, class_B)
    load(twin, pictures(weights))
    twin_loss = torch.nn.functional.cross_entropy(twin(torch.from_numpy(picture_BCRR)), torch.from_numpy(class_B))
    twin_loss.backward()
    assert_same(loss, twin_loss, twin, pictures(jax.device_get(slopes)))


def pictures(weights: Mapping[str, Any]) -> State:
    layers = len(jax.tree.leaves(weights["blocks"])[0])
    return {
        "place_LD": weights["place_LD"],
        **named(
            patch={"weight": weights["patch_DCPP"], "bias": weights["patch_D"]},
            blocks=named(
                **{str(number): attention_block(of_layer(weights["blocks"], number)) for number in range(layers)}
            ),
            norm=norm(weights["norm"]),
            head=linear(weights["head_DV"], weights["head_V"]),
        ),
    }


def test_a_sampler_of_pictures() -> None:
    from perfscope.workloads.jax.vision import diffusion as in_jax
    from perfscope.workloads.vision import diffusion

    size = in_jax.SIZES["tiny"]
    assert size == diffusion.SIZES["tiny"]
    encoder, denoiser = (random_weights(tree) for tree in in_jax.initial(Options(variant="dit", size=size)))
    generator = np.random.default_rng(3)
    tokens_NM = generator.integers(1, size.vocab, (2 * size.batch, in_jax.TOKENS))
    x_NLP = generator.standard_normal((2 * size.batch, size.seq, in_jax.PATCH)).astype(np.float32)
    text_NMD = jax.jit(in_jax.encoded, static_argnums=2)(encoder, tokens_NM, size.heads)
    noise_NLP = jax.jit(in_jax.denoised, static_argnums=4)(denoiser, x_NLP, 300.0, text_NMD, size.heads)
    theirs, model = diffusion.Encoder(size).eval(), diffusion.Denoiser(size).eval()
    load(theirs, text_encoder(encoder))
    load(model, patches(denoiser))
    with torch.inference_mode():
        twin_text_NMD = theirs(torch.from_numpy(tokens_NM))
        twin_NLP = model(torch.from_numpy(x_NLP), torch.full((len(x_NLP),), 300.0), twin_text_NMD)
    np.testing.assert_allclose(twin_text_NMD, text_NMD, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(twin_NLP, noise_NLP, rtol=1e-3, atol=1e-4)


def dense(weights: Mapping[str, Any]) -> State:
    return linear(weights["weight_DG"], weights["bias_G"])


def text_encoder(weights: Mapping[str, Any]) -> State:
    def layer(own: Mapping[str, Any]) -> State:
        joined = dense(own["qkv"])
        attention = {"in_proj_weight": joined["weight"], "in_proj_bias": joined["bias"]}
        return named(
            self_attn={**attention, **named(out_proj=dense(own["out"]))},
            linear1=dense(own["up"]),
            linear2=dense(own["down"]),
            norm1=norm(own["norm1"]),
            norm2=norm(own["norm2"]),
        )

    layers = {str(number): layer(own) for number, own in enumerate(weights["layers"])}
    return named(embedding={"weight": weights["embedding_VD"]}, layers=named(layers=named(**layers)))


def patches(weights: Mapping[str, Any]) -> State:
    blocks = {
        str(number): named(**{name: dense(part) for name, part in own.items()})
        for number, own in enumerate(weights["blocks"])
    }
    ends = named(enter=dense(weights["enter"]), leave=dense(weights["leave"]), blocks=named(**blocks))
    return {"place_LD": weights["place_LD"], **ends}


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
