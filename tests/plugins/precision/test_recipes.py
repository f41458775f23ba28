"""Rounding by recipes: element for element the values of the casts of ml_dtypes and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfscope.plugins.precision.recipes import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    FP16,
    RECIPES,
    Element,
    quantised,
    rounded,
    scaled_by,
)

ml_dtypes = pytest.importorskip("ml_dtypes")
CASTS = {
    "e4m3": (E4M3, ml_dtypes.float8_e4m3fn),
    "e5m2": (E5M2, ml_dtypes.float8_e5m2),
    "e2m1": (E2M1, ml_dtypes.float4_e2m1fn),
    "bf16": (BF16, ml_dtypes.bfloat16),
    "fp16": (FP16, np.float16),
}


def values() -> Any:
    """Every finite float16, every bfloat16 that a float16 cannot hold, ties, and normal values."""
    generator = np.random.default_rng(0)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    brains = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    both = np.concatenate([halves, brains, generator.standard_normal(10_000).astype(np.float32)])
    both = both[np.isfinite(both)]
    return np.concatenate([both, np.nextafter(both, np.inf), np.nextafter(both, -np.inf)]).astype(np.float32)


def cast(array: Any, element: Element, dtype: Any) -> Any:
    """The real cast, of values that saturate before."""
    return np.clip(array, -element.largest, element.largest).astype(dtype).astype(np.float32)


@pytest.mark.parametrize("name", CASTS)
def test_elements_are_those_of_a_real_cast(name: str) -> None:
    element, dtype = CASTS[name]
    given = values()
    given = given[np.abs(given) >= 2.0**-126]
    np.testing.assert_array_equal(rounded(np, given, element), cast(given, element, dtype))


@pytest.mark.torch
def test_torch_gives_the_same_elements_as_its_own_casts() -> None:
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(values())
    given = given[given.abs() >= 2.0**-126]
    for element, dtype in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2), (BF16, torch.bfloat16)):
        real = given.clip(-element.largest, element.largest).to(dtype).float()
        assert torch.equal(rounded(torch, given, element), real)


def real_recipe(array: Any, name: str) -> Any:
    """The recipe with real casts of ml_dtypes, block by block."""
    recipe = RECIPES[name]
    dtype = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2, E2M1: ml_dtypes.float4_e2m1fn}[recipe.element]
    largest = np.float32(recipe.element.largest)
    result = np.empty_like(array)
    if recipe.scaling in ("tensor", "row"):
        for row, out in zip(array, result, strict=True):
            scale = np.abs(array if recipe.scaling == "tensor" else row).max() / largest
            out[:] = cast(row / scale, recipe.element, dtype) * scale
        return result
    outer = np.abs(array).max() / (largest * np.float32(448))
    for row, out in zip(array, result, strict=True):
        for start in range(0, len(row), recipe.block):
            part = row[start : start + recipe.block]
            most = np.abs(part).max()
            if recipe.scaling.startswith("mx"):
                exponent = np.floor(np.log2(most)) - np.floor(np.log2(largest))
                scale = np.float32(2.0 ** (exponent if recipe.scaling == "mx" else np.ceil(np.log2(most / largest))))
                assert np.float32(ml_dtypes.float8_e8m0fnu(scale)) == scale
            else:
                scale = np.float32(ml_dtypes.float8_e4m3fn(most / largest / outer)) * outer
            out[start : start + recipe.block] = cast(part / scale, recipe.element, dtype) * scale
    return result


EXACT = [name for name, one in RECIPES.items() if one.bits < 16 and not one.stochastic and one.scaling != "delayed"]


@pytest.mark.parametrize("name", EXACT)
def test_recipes_are_those_of_real_casts_in_all_libraries(name: str) -> None:
    heavy = np.random.default_rng(1).standard_t(3, (16, 200))  # not whole blocks
    given = (heavy * 0.1).astype(np.float32)
    wanted = real_recipe(given, name)
    np.testing.assert_array_equal(quantised(np, given, RECIPES[name]), wanted)
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(quantised(torch, torch.from_numpy(given), RECIPES[name]).numpy(), wanted)
    jnp = pytest.importorskip("jax.numpy")
    in_jax = np.asarray(quantised(jnp, jnp.asarray(given), RECIPES[name]))
    np.testing.assert_allclose(in_jax, wanted, rtol=3e-7)  # XLA divides by a constant with its reciprocal


def test_stochastic_rounding_has_no_bias_where_rounding_to_nearest_has() -> None:
    given = np.full((1, 1 << 16), 1.1, np.float32)
    amax = np.float32(E5M2.largest)  # the scale is 1
    noise = np.random.default_rng(2)
    nearest = quantised(np, given, RECIPES["e5m2-tensor"], amax=amax)
    random = quantised(
        np, given, RECIPES["e5m2-tensor-sr"], amax=amax, noise=lambda shape: noise.random(shape, np.float32)
    )
    assert set(np.unique(random)) == {np.float32(1.0), np.float32(1.25)}
    assert abs(float(random.mean()) - 1.1) < 0.005
    assert float(nearest.mean()) == 1.0


def test_a_delayed_scale_saturates_values_that_grew() -> None:
    given = np.array([[1.0, 8.0]], np.float32)
    late = quantised(np, given, RECIPES["e4m3-delayed"], before=np.float32(4.0))
    assert late.tolist() == [[1.0, 4.0]]
    scaled, _ = scaled_by(np, np.zeros((1, 20), np.float32), RECIPES["nvfp4"])
    assert not scaled.any()  # zeros have no scale of 0
