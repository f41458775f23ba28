"""Colours of kinds of work: told apart by people who see fewer colours, and seen on either ground."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, COLORS, MAIN, Category, op_category

Float64 = npt.NDArray[np.float64]

SEEN = {
    "all": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""Remaining linear sRGB: Machado, Oliveira and Fernandes (2009), severity 1."""

_CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip
"""OKLab, in which equal distances look about equally far apart (Ottosson 2020)."""

APART = 0.1
"""In OKLab. A difference that is just seen is 0.02; swatches of a legend and bars far from it need a clear one."""
GROUNDS = {"light": "#ffffff", "dark": "#1a2029"}
LEAST_CONTRAST = 2.2
"""Least contrast of a bar with its background; bars are large, have an edge and their name inside or in a tip."""


def _linear(color: str) -> Float64:
    held = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(held <= 0.04045, held / 12.92, ((held + 0.055) / 1.055) ** 2.4)


def _lab(linear: Float64) -> Float64:
    found: Float64 = np.cbrt(np.clip(linear, 0, 1) @ _CONES.T) @ _LAB.T
    return found


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("ground", GROUNDS)
def test_the_main_kinds_are_told_apart_by_anyone(ground: str, eyes: str) -> None:
    for one, other in itertools.combinations(MAIN, 2):
        seen = [_lab(np.clip(SEEN[eyes] @ _linear(COLORS[ground][kind]), 0, 1)) for kind in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) >= APART, (one.name, other.name)


@pytest.mark.parametrize("ground", GROUNDS)
def test_the_main_kinds_stand_out_from_the_ground(ground: str) -> None:
    light = np.array([0.2126, 0.7152, 0.0722])
    below = float(_linear(GROUNDS[ground]) @ light)
    for kind in MAIN:
        above = float(_linear(COLORS[ground][kind]) @ light)
        assert (max(above, below) + 0.05) / (min(above, below) + 0.05) >= LEAST_CONTRAST, kind.name


def test_every_category_has_a_word_and_a_colour() -> None:
    assert len(CATEGORY_WORDS) == len(set(CATEGORY_WORDS)) == len(Category)
    for held in COLORS.values():
        assert len(held) == len(set(held)) == len(Category)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", Category.MATRIX),
        ("autograd::engine::evaluate_function: AddmmBackward0", Category.MATRIX),
        ("aten::cudnn_convolution", Category.MATRIX),
        ("dot.5", Category.MATRIX),
        ("aten::_scaled_dot_product_flash_attention", Category.ATTENTION),
        ("aten::native_layer_norm", Category.NORM),
        ("SoftmaxBackward0", Category.NORM),
        ("aten::add_", Category.ELEMENTWISE),
        ("GeluBackward0", Category.ELEMENTWISE),
        ("aten::sum", Category.REDUCTION),
        ("aten::linalg_vector_norm", Category.REDUCTION),
        ("aten::transpose", Category.COPY),
        ("aten::copy_", Category.COPY),
        ("nccl:all_reduce", Category.COLLECTIVE),
        ("all-reduce.1", Category.COLLECTIVE),
        ("aten::_foreach_add_", Category.OPTIMIZER),
        ("Optimizer.step#AdamW.step", Category.OPTIMIZER),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Category.INPUT),
        ("nn.Module: Linear_0", Category.MODULE),
        ("aten::item", Category.OP),
        ("aten::empty", Category.OP),
        ("while.3", Category.OP),
        ("train_loop", Category.OP),
    ],
)
def test_ops_and_instructions_by_name(name: str, kind: Category) -> None:
    assert op_category(name, Category.OP) == kind
