"""The recording of a JAX model: layers where weights are used, scans over layers, scopes, gradients, wide runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfscope.plugins.parity.document import Arrays, Recording
from perfscope.plugins.parity.side import RunRequest, SideError

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax
jnp = jax.numpy
RNG = np.random.default_rng(0)


def record(make: Callable[[], Any], **request: Any) -> tuple[Recording, Arrays]:
    from perfscope.plugins.parity.jax_side import JaxSide

    return JaxSide(make, None).run(RunRequest(**request))


def weights() -> Any:
    generator = np.random.default_rng(1)
    return {
        "first": {"w": generator.normal(size=(4, 8)).astype("f"), "b": generator.normal(size=8).astype("f")},
        "blocks": {"w": generator.normal(size=(3, 8, 8)).astype("f")},
    }


def network(weights: Any, x: Any) -> Any:
    x = jax.nn.gelu(x @ weights["first"]["w"] + weights["first"]["b"])

    def layer(x: Any, block: Any) -> Any:
        return x + jnp.tanh(x @ block["w"]), None

    return jax.lax.scan(layer, x, weights["blocks"])[0]


def stacked() -> Any:
    return network, weights(), (np.linspace(-1, 1, 8, dtype="f").reshape(2, 4),)


def test_uses_of_weights_are_layers_and_a_scan_is_walked_layer_by_layer() -> None:
    recording, arrays = record(stacked)
    assert [(layer.name, layer.op) for layer in recording.layers] == [
        ("first/w", "dot_general"),
        ("first/b", "add"),
        ("blocks/w[0]", "dot_general"),
        ("blocks/w[1]", "dot_general"),
        ("blocks/w[2]", "dot_general"),
        ("output", ""),
    ]
    assert recording.layers[0].line.startswith("tests/plugins/parity/test_jax_side.py:")
    assert [layer.terms for layer in recording.layers[:2]] == [4, 5]
    x = arrays["input:0"] @ arrays["weight:first/w"] + arrays["weight:first/b"]
    np.testing.assert_allclose(arrays["layer:1"], x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(arrays["layer:5"], network(weights(), arrays["input:0"]), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_jax() -> None:
    _, arrays = record(stacked)
    signs = np.random.default_rng(0).integers(0, 2, (2, 8)) * 2.0 - 1.0
    wanted = jax.grad(lambda weights: (network(weights, arrays["input:0"]) * signs).sum())(weights())
    np.testing.assert_allclose(arrays["weight_gradient:blocks/w"], wanted["blocks"]["w"], rtol=1e-4, atol=1e-5)
    # of the layer that the bias is added in: summed over the batch it is that of the bias
    np.testing.assert_allclose(arrays["gradient:1"].sum(0), wanted["first"]["b"], rtol=1e-4, atol=1e-5)


def test_weights_are_in_the_order_of_their_use() -> None:
    from perfscope.plugins.parity.jax_side import JaxSide

    found, values = JaxSide(stacked, None).describe()
    assert [(each.name, each.shape) for each in found] == [
        ("first/w", (4, 8)),
        ("first/b", (8,)),
        ("blocks/w", (3, 8, 8)),
    ]
    np.testing.assert_array_equal(values["first/b"], weights()["first"]["b"])


def test_named_scopes_are_layers_and_rows_of_a_stack_are_told_apart() -> None:
    def function(weights: Any, x: Any) -> Any:
        for index in range(2):
            with jax.named_scope(f"block_{index}"):
                x = jnp.sin(x @ weights["stack"][index]) * 2
        return x - 1

    recording, arrays = record(lambda: (function, {"stack": RNG.normal(size=(2, 3, 3))}, np.ones((1, 3), "f")))
    assert [layer.name for layer in recording.layers] == ["stack[0]", "block_0", "stack[1]", "block_1", "output"]
    np.testing.assert_allclose(arrays["layer:1"], 2 * np.sin(arrays["layer:0"]), rtol=1e-5)
    assert "gradient:1" in arrays


def test_features_of_a_product_are_last_wherever_einsum_puts_them() -> None:
    def function(weights: Any, x: Any) -> Any:
        return jnp.einsum("bld,dchk->cbhlk", x, weights["qkv"]).sum(0)

    made = (function, {"qkv": RNG.normal(size=(4, 3, 2, 5)).astype("f")}, RNG.normal(size=(2, 6, 4)).astype("f"))
    _, arrays = record(lambda: made)
    wanted = np.einsum("bld,dchk->blchk", made[2], made[1]["qkv"])
    np.testing.assert_allclose(arrays["layer:0"], wanted, rtol=1e-4, atol=1e-5)


def casts(weights: Any, x: Any) -> Any:
    """Casts to float32, control flow and custom derivatives on the way."""
    x = jax.nn.relu((x.astype(jnp.float32) @ weights["w"].astype(jnp.float32)) * 0.3)
    x, _ = jax.lax.scan(lambda carry, _: (carry + jnp.float32(0.1) * jnp.sin(carry), None), x, None, length=3)
    return jax.lax.cond(x.shape[0] > 1, lambda x: x / 3, lambda x: x, x)


def test_a_wide_run_makes_no_narrowing_cast_and_leaves_x64_as_it_was() -> None:
    made = (casts, {"w": RNG.normal(size=(4, 4)).astype("f")}, RNG.normal(size=(3, 4)).astype("f"))
    recording, arrays = record(lambda: made, dtype="float64", wide=True)
    x = np.maximum(made[2].astype("d") @ made[1]["w"].astype("d") * np.float32(0.3), 0)
    for _ in range(3):
        x = x + np.float32(0.1) * np.sin(x)
    np.testing.assert_allclose(arrays[f"layer:{len(recording.layers) - 1}"], x / 3, rtol=1e-14)
    assert not jax.config.jax_enable_x64
    assert record(lambda: made)[0].layers[-1].dtype == "float32"


def test_a_loop_that_has_no_gradient_is_recorded_forward_and_a_note_says_so() -> None:
    def function(weights: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 10, lambda x: x * 2, x * weights["w"])

    recording, arrays = record(lambda: (function, {"w": np.float32(2.0)}, np.ones(2, "f")))
    assert recording.notes[0].startswith("no gradients: ")
    np.testing.assert_array_equal(arrays["layer:1"], [8.0, 8.0])
    assert not any(name.startswith("gradient:") for name in arrays)


def test_lines_of_an_op_inside_of_a_function_of_jax_are_where_it_is_called() -> None:
    def function(weights: Any, x: Any) -> Any:
        first = jnp.where(x > 0, x, 0.0) @ weights["w"]
        return jnp.where(first > 0, first, 1.0)

    recording, _ = record(lambda: (function, {"w": np.ones((2, 2), "f")}, np.ones((1, 2), "f")))
    lines = [op.line for op in recording.ops if op.name == "select_n"]
    assert len(lines) == len(set(lines)) == 2
    assert all(line.startswith("tests/plugins/parity/test_jax_side.py:") for line in lines)


def test_a_callable_pytree_is_a_model_as_equinox_has_them() -> None:
    @jax.tree_util.register_pytree_with_keys_class
    class Scale:
        def __init__(self, factor: Any) -> None:
            self.factor = factor

        def __call__(self, x: Any) -> Any:
            return x * self.factor

        def tree_flatten_with_keys(self) -> Any:
            return ((jax.tree_util.GetAttrKey("factor"), self.factor),), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            return cls(*children)

    recording, arrays = record(lambda: (Scale(np.float32(3.0)), np.ones(2, "f")))
    assert recording.layers[0].weights == ("factor",)
    np.testing.assert_array_equal(arrays["layer:0"], [3.0, 3.0])
    with pytest.raises(SideError, match="is not a model"):
        record(lambda: ({"a": 1}, np.ones(2)))
