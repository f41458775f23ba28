"""Regimes of inputs, and `assert_parity` on them: differences that the example inputs do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import perfscope
from perfscope.__main__ import main
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.inputs import EXAMPLE, REGIMES, derived, regime_names
from perfscope.plugins.parity.inputs.regimes import example_of
from perfscope.plugins.parity.side import Input

pytestmark = [pytest.mark.torch, pytest.mark.jax]

ROWS, LENGTH, WIDTH = 3, 8, 4
IDS = np.random.default_rng(0).integers(3, 50, (ROWS, LENGTH))
FLOATS = np.random.default_rng(1).standard_normal((ROWS, LENGTH, WIDTH)).astype(np.float32)


def inputs() -> list[Input]:
    return [
        Input("input_ids", IDS),
        Input("attention_mask", np.ones_like(IDS)),
        Input("causal", np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))),
        Input("position_ids", np.broadcast_to(np.arange(LENGTH), IDS.shape).copy()),
        Input("x", FLOATS),
        Input("rate", np.float32(0.5)),
    ]


def test_inputs_are_known_by_their_values() -> None:
    assert example_of(inputs()).kinds == ("ids", "mask", "mask", "positions", "float", "float")
    assert example_of([Input("0", np.arange(6)[None])]).kinds == ("ids",)
    named = [Input("0", IDS), Input("1", np.ones_like(IDS)), Input("token_type_ids", np.ones_like(IDS))]
    assert example_of(named).kinds == ("ids", "mask", "ids")


@pytest.mark.parametrize("name", sorted(REGIMES))
def test_a_regime_keeps_dtypes_and_valid_ids_and_is_the_same_every_time(name: str) -> None:
    made = derived(name, inputs())
    assert made is not None
    for before, value in zip(inputs(), made, strict=True):
        assert (value.dtype, value.ndim) == (before.value.dtype, before.value.ndim)
    assert set(made[0].ravel()) <= set(IDS.ravel())
    assert np.array_equal(made[3], np.broadcast_to(np.arange(made[0].shape[1]), made[0].shape))
    assert all(np.array_equal(one, other) for one, other in zip(made, derived(name, inputs()) or [], strict=True))
    lengths = {made[0].shape[1], made[1].shape[1], made[2].shape[2], made[2].shape[3], made[4].shape[1]}
    assert lengths == {{"ragged": 7, "long": 32}.get(name, LENGTH)}


def test_regimes_are_what_their_names_say() -> None:
    of = {name: derived(name, inputs()) or [] for name in REGIMES}
    assert not of["zeros"][4].any()
    assert (of["zeros"][0] == IDS.min()).all()
    assert np.abs(of["heavy-tails"][4]).max() > 10 * np.median(np.abs(of["heavy-tails"][4]))
    pairs = of["cancellation"][4].reshape(-1, 2).astype(np.float64)
    assert (np.abs(pairs.sum(1)) < 2e-3 * np.abs(pairs).max(1)).all()
    assert of["offset"][4].mean() > 1000 * of["offset"][4].std()
    assert list(of["ragged"][1].sum(1)) == [3, 5, 7]
    assert np.array_equal(of["long"][2][0, 0], np.tril(np.ones((32, 32), bool)))
    assert of["masks"][1].any(1).all()
    assert not of["masks"][1][0, : LENGTH // 2].any()
    assert not of["masked-out"][1][-1].any()
    assert of["masked-out"][1][0].all()


def test_a_regime_without_its_kind_of_input_does_not_apply() -> None:
    def applying(*given: Input) -> set[str]:
        return {name for name in REGIMES if derived(name, given) is not None}

    assert applying(Input("0", IDS)) == {EXAMPLE, "zeros", "random", "heavy-tails", "ragged", "long"}
    assert applying(Input("0", FLOATS[0])) == {EXAMPLE, "zeros", "random", "heavy-tails", "cancellation", "offset"}
    assert applying(Input("0", np.ones((2, 4), bool))) == {EXAMPLE, "masks", "masked-out"}
    assert regime_names("long, zeros") == ["zeros", "long"]
    assert regime_names("adversarial") == list(REGIMES)
    for text in ("zeroes", "", "long,nothing"):
        with pytest.raises(UsageError, match="must be one of adversarial, example, zeros"):
            regime_names(text)


def torch_norm(x: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def two_passes(x: Any) -> Any:
    import jax

    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def one_pass(x: Any) -> Any:
    """The variance as the mean of squares minus the square of the mean."""
    import jax
    import jax.numpy as jnp

    variance = jnp.square(x).mean(-1, keepdims=True) - jnp.square(x.mean(-1, keepdims=True))
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(variance + 1e-5)


def test_a_variance_in_one_pass_is_wrong_for_inputs_with_an_offset_alone() -> None:
    perfscope.assert_parity(torch_norm, two_passes, inputs=FLOATS, regimes="adversarial")
    perfscope.assert_parity(torch_norm, one_pass, inputs=FLOATS)
    with pytest.raises(AssertionError) as failed:
        perfscope.assert_parity(torch_norm, one_pass, inputs=FLOATS, regimes="adversarial")
    text = str(failed.value)
    assert "rounding explains" in text
    assert "on inputs of the regime offset" in text
    assert "test_inputs.py:" in text


def torch_attention(x: Any, mask: Any) -> Any:
    import torch

    scores = (x @ x.mT).masked_fill(mask[:, None] == 0, float("-inf"))
    return torch.softmax(scores, -1) @ x


def jax_attention(x: Any, mask: Any) -> Any:
    """Masked scores are a large number, so that a row without any place is the mean of all."""
    import jax
    import jax.numpy as jnp

    return jax.nn.softmax(jnp.where(mask[:, None] == 0, -1e9, x @ x.mT), -1) @ x


def test_a_row_that_is_masked_out_tells_fillings_apart() -> None:
    masked = {"x": FLOATS, "mask": np.ones((ROWS, LENGTH), np.int32)}
    perfscope.assert_parity(torch_attention, jax_attention, inputs=masked, regimes="masks,long")
    with pytest.raises(AssertionError, match=r"not finite on the one side|not finite"):
        perfscope.assert_parity(torch_attention, jax_attention, inputs=masked, regimes="masked-out")


@settings(max_examples=25, deadline=None)
@given(perfscope.inputs_like({"x": FLOATS, "mask": np.ones((ROWS, LENGTH), bool)}))
def test_a_strategy_draws_inputs_of_a_signature(drawn: dict[str, np.ndarray]) -> None:
    assert [(value.dtype, value.ndim) for value in drawn.values()] == [(np.float32, 3), (np.bool_, 2)]
    assert drawn["x"].shape[:2] == drawn["mask"].shape
    assert np.isfinite(drawn["x"]).all()


def test_a_strategy_may_keep_shapes_and_needs_a_regime_that_applies() -> None:
    @settings(max_examples=10, deadline=None)
    @given(perfscope.inputs_like((IDS,), lengths=False))
    def keeps(drawn: tuple[np.ndarray]) -> None:
        assert drawn[0].shape == IDS.shape

    keeps()
    with pytest.raises(DataError, match="no regime of masks applies"):
        perfscope.inputs_like((IDS,), of="masks")


def test_weights_are_translated_and_a_wrong_one_is_named() -> None:
    import torch

    from tests.plugins.parity import models

    module, (x,) = models.in_torch()
    function, parameters, _ = models.in_jax()
    assert perfscope.assert_parity(module, (function, parameters), inputs=x).verdict == "same"
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(AssertionError, match=r"A and B part at norm: its output differs .*\n(.*\n)*.*models\.py:"):
        perfscope.assert_parity(module, models.in_jax(1e-6)[:2], inputs=x)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with pytest.raises(AssertionError, match="A and B part at fc1"):
        perfscope.assert_parity(module, (function, parameters), inputs=x, keep_weights=True)
    with pytest.raises(DataError, match="weights without a counterpart"):
        perfscope.assert_parity(module, models.one_weight_more()[:2], inputs=x)


@pytest.mark.slow
def test_a_row_per_regime_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = Path(__file__).with_name("models.py")
    told = tmp_path / "cases.json"
    with pytest.raises(SystemExit) as ended:
        main(["parity", f"{models}:masked_torch", f"{models}:masked_jax", "--inputs", "adversarial", "-q",
              "--json", str(told), "-o", str(tmp_path), "--fail-on", "divergence"])  # fmt: skip
    assert ended.value.code == 1
    document = json.loads(told.read_text())
    verdicts = {case["name"]: case["verdict"] for case in document["cases"]}
    assert verdicts == {
        **dict.fromkeys(REGIMES, "same"), "masked-out": "diverges", "cancellation": "does not apply",
        "offset": "does not apply", "long": "not run",
    }  # fmt: skip
    long = next(case for case in document["cases"] if case["name"] == "long")
    assert "IndexError" in long["reason"] or "index out of range" in long["reason"]
    assert "A and B part in 1 of 7 regimes of inputs: masked-out" in capsys.readouterr().out
    assert not list(tmp_path.glob("parity-*/*/zeros-*"))
    assert list(tmp_path.glob("parity-*/*/masked-out-*"))
