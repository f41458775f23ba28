"""Products with rounded factors, in models that parity runs: forward and backward, in both frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfscope.plugins.precision.recipes import RECIPES, quantised

RECIPE = RECIPES["e4m3-row"]
GENERATOR = np.random.default_rng(0)
X, W, G = (GENERATOR.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 5), (6, 5)))


def along(array: Any, axis: int) -> Any:
    """The array rounded with a sum along ``axis``."""
    moved = np.ascontiguousarray(np.moveaxis(array, axis, -1))
    return np.moveaxis(quantised(np, moved, RECIPE), -1, axis)


WANTED = {
    "output": along(X, 1) @ along(W, 0),
    "of x": along(G, 1) @ along(W, 1).T,
    "of w": along(X, 0).T @ along(G, 0),
}


@pytest.mark.jax
def test_three_products_of_jax_round_their_factors() -> None:
    jax = pytest.importorskip("jax")
    from perfscope.plugins.precision.jax_products import rounded_products

    def function(x: Any, w: Any) -> Any:
        rows, _ = jax.lax.scan(lambda carry, one: (carry, one @ w), 0.0, x[None])[::-1]
        return jax.checkpoint(lambda y: y * 1.0)(rows[0])

    rounded = rounded_products(function, RECIPE)
    output, backward = jax.vjp(rounded, X, W)
    of_x, of_w = backward(jax.numpy.asarray(G))
    for name, made in (("output", output), ("of x", of_x), ("of w", of_w)):
        np.testing.assert_allclose(made, WANTED[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert not np.allclose(output, X @ W, rtol=1e-3)
    np.testing.assert_allclose(rounded_products(lambda x: x + 1, RECIPE)(X), X + 1)


@pytest.mark.torch
def test_three_products_of_torch_round_their_factors() -> None:
    torch = pytest.importorskip("torch")
    from perfscope.plugins.parity.side import RunRequest
    from perfscope.plugins.parity.torch_side import TorchSide

    def make() -> Any:
        layer = torch.nn.Linear(8, 5, bias=False)
        layer.weight = torch.nn.Parameter(torch.from_numpy(W.T.copy()))
        return torch.nn.Sequential(layer), torch.from_numpy(X)

    recording, arrays = TorchSide(make, None).run(RunRequest(recipe="e4m3-row"))
    assert recording.dtype == "float8_e4m3fn"
    np.testing.assert_allclose(arrays["layer:0"], WANTED["output"], rtol=1e-5, atol=1e-5)
    (start,) = [arrays[name] for name in arrays if name == "gradient:0"]
    wanted = along(X, 0).T @ along(start, 0)
    np.testing.assert_allclose(arrays["weight_gradient:0.weight"], wanted.T, rtol=1e-5, atol=1e-5)
