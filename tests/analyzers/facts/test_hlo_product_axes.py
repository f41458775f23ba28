"""Convolutions that were matrix products, as XLA for TPU writes them, held against the convolution itself."""

from __future__ import annotations

import re

import numpy as np
import pytest

from perfscope.analyzers.facts.hlo_product_axes import convolution_axes
from perfscope.analyzers.hlo.module import Instruction, Shape
from tests.hlo_build import hlo_module

Dims = tuple[int, ...]

CASES: list[tuple[str, str, Dims, Dims, Dims]] = [
    ("bf_io->bf", "", (3, 5), (5, 7), (3, 7)),
    ("0bf_oi0->0bf", "{size=1}", (2, 3, 5), (7, 5, 1), (2, 3, 7)),
    ("01bf_01oi->01bf", "{size=2x4 stride=1x3 lhs_dilate=2x4}", (2, 4, 3, 5), (2, 4, 6, 5), (2, 4, 3, 6)),
    ("01fb_01oi->01fb", "{size=2x4 stride=2x4 pad=1_1x3_3 lhs_dilate=1x3 rhs_reversal=1x1}",
     (2, 4, 5, 3), (2, 4, 6, 5), (2, 4, 6, 3)),
    ("0fb_0io->bf0", "{size=2}", (2, 5, 3), (2, 5, 6), (3, 6, 1)),
    ("f01b2_2oi01->01b2f", "{size=1x1x2 pad=0_0x0_0x1_1 rhs_reversal=0x0x1}",
     (5, 3, 4, 6, 1), (2, 7, 5, 1, 1), (3, 4, 6, 2, 7)),
    ("02f1b_o02i1->1bf02", "{size=3x1x4}", (3, 4, 6, 5, 2), (7, 3, 4, 6, 1), (5, 2, 7, 1, 1)),
]  # fmt: skip
"""Labels and windows of recorded programs (``fixtures/programs-v5e``), over fewer elements."""


def convolution(labels: str, window: str, left: Dims, right: Dims, result: Dims) -> tuple[Instruction, list[Shape]]:
    def text(dims: Dims) -> str:
        return f"f32[{','.join(map(str, dims))}]"

    module = hlo_module(
        f"ENTRY %main (a: {text(left)}, b: {text(right)}) -> {text(result)} {{\n"
        f"  %a = {text(left)} parameter(0)\n"
        f"  %b = {text(right)} parameter(1)\n"
        f"  ROOT %c = {text(result)} convolution(%a, %b), "
        + (f"window={window}, " if window else "")
        + f"dim_labels={labels}\n}}"
    )
    return module.entry_computation().root, [Shape(dtype="f32", dims=left), Shape(dtype="f32", dims=right)]


def convolved(labels: str, window: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By XLA's own definition, in jax."""
    jax = pytest.importorskip("jax")
    fields = {key: value.split("x") for key, value in re.findall(r"(\w+)=([-\dx_]+)", window)}
    count = len(fields.get("size", []))
    lhs, rhs, out = re.split(r"_|->", labels)
    spatial = [str(at) for at in range(count)]
    specs = (
        tuple(map(lhs.index, ["b", "f", *spatial])),
        tuple(map(rhs.index, ["o", "i", *spatial])),
        tuple(map(out.index, ["b", "f", *spatial])),
    )
    for at, flip in enumerate(fields.get("rhs_reversal", [])):
        b = np.flip(b, rhs.index(str(at))) if flip == "1" else b
    pads = [tuple(map(int, text.split("_"))) for text in fields.get("pad", ["0_0"] * count)]
    return np.asarray(
        jax.lax.conv_general_dilated(
            a,
            b,
            window_strides=[int(text) for text in fields.get("stride", ["1"] * count)],
            padding=pads,
            lhs_dilation=[int(text) for text in fields.get("lhs_dilate", ["1"] * count)],
            dimension_numbers=jax.lax.ConvDimensionNumbers(*specs),
            precision="highest",
        )
    )


@pytest.mark.parametrize(("labels", "window", "left", "right", "result"), CASES, ids=[case[0] for case in CASES])
def test_the_product_by_its_axes_is_the_convolution(
    labels: str, window: str, left: Dims, right: Dims, result: Dims
) -> None:
    axes = convolution_axes(*convolution(labels, window, left, right, result))
    assert axes is not None
    generator = np.random.default_rng(0)
    a = generator.normal(size=left).astype(np.float32)
    b = generator.normal(size=right).astype(np.float32)
    shared = [name for name in axes.result if name in (*axes.left, *axes.right)]
    left_text, right_text, text = (
        "".join(chr(ord("a") + name) for name in part) for part in (axes.left, axes.right, shared)
    )
    product = np.einsum(f"{left_text},{right_text}->{text}", a, b).reshape(result)  # else axes of one element
    np.testing.assert_allclose(convolved(labels, window, a, b), product, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        ("0bf_0io->0bf", "{size=3}", (5, 2, 4), (3, 4, 6), (3, 2, 6)),  # a window that slides
        ("0bf_0io->0bf", "{size=2 stride=2}", (4, 2, 4), (2, 4, 6), (2, 2, 6)),  # patches
        ("0bf_0io->0bf", "{size=2 pad=0_1}", (2, 2, 4), (2, 4, 6), (2, 2, 6)),  # partly padding
        ("bf_io->fb", "", (3, 5), (5, 7), (3, 7)),  # axes of other lengths than the labels say
        ("bf_io", "", (3, 5), (5, 7), (3, 7)),
    ],
)
def test_other_convolutions_are_no_products(case: tuple[str, str, Dims, Dims, Dims]) -> None:
    assert convolution_axes(*convolution(*case)) is None
