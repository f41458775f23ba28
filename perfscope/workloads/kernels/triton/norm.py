"""RMSNorm in Triton (Zhang and Sennrich 2019): a row in one pass, its gradient in another. T rows, D features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch

if TYPE_CHECKING:
    import torch

ROWS = 16
"""Rows of a program of the backward: it adds up their gradients of the weight."""


@triton.jit
def rms_norm_forward(x, weight, y, scale, D: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr):
    """Write a row of y, and its scale."""
    row, place_D = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside_D = place_D < D
    x_D = tl.load(x + row * D + place_D, mask=inside_D, other=0.0).to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(x_D * x_D, 0) / D + EPSILON)
    weight_D = tl.load(weight + place_D, mask=inside_D, other=0.0).to(tl.float32)
    tl.store(y + row * D + place_D, (x_D * factor * weight_D).to(y.dtype.element_ty), mask=inside_D)
    tl.store(scale + row, factor)


@triton.jit
def rms_norm_backward(
    dy, x, weight, scale, dx, dweight, rows, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Write rows of dx, and their part of the weight's gradient."""
    place_D = tl.arange(0, BLOCK)
    inside_D = place_D < D
    weight_D = tl.load(weight + place_D, mask=inside_D, other=0.0).to(tl.float32)
    dweight_D = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for row in range(first, tl.minimum(first + ROWS, rows)):
        factor = tl.load(scale + row)
        x_D = tl.load(x + row * D + place_D, mask=inside_D, other=0.0).to(tl.float32) * factor
        dy_D = tl.load(dy + row * D + place_D, mask=inside_D, other=0.0).to(tl.float32)
        dweight_D += dy_D * x_D
        dy_D = dy_D * weight_D
        dx_D = (dy_D - x_D * (tl.sum(dy_D * x_D, 0) / D)) * factor
        tl.store(dx + row * D + place_D, dx_D.to(dx.dtype.element_ty), mask=inside_D)
    tl.store(dweight + tl.program_id(0) * D + place_D, dweight_D, mask=inside_D)


def forward(x_TD: torch.Tensor, weight_D: torch.Tensor, y_TD: torch.Tensor, scale_T: torch.Tensor, eps: float) -> None:
    """Write y_TD and scale_T."""
    rows, features = x_TD.shape
    block = triton.next_power_of_2(features)
    launch(rms_norm_forward, (rows,), x_TD, weight_D, y_TD, scale_T, D=features, BLOCK=block, EPSILON=eps)


def backward(
    dy_TD: torch.Tensor, x_TD: torch.Tensor, weight_D: torch.Tensor, scale_T: torch.Tensor, dx_TD: torch.Tensor
) -> torch.Tensor:
    """Write dx_TD; the gradient of the weight by groups of rows, (groups, D)."""
    rows, features = x_TD.shape
    groups, block = triton.cdiv(rows, ROWS), triton.next_power_of_2(features)
    parts = scale_T.new_empty(groups, features)
    launch(
        rms_norm_backward, (groups,), dy_TD, x_TD, weight_D, scale_T, dx_TD, parts, rows, D=features, BLOCK=block,
        ROWS=ROWS,
    )  # fmt: skip
    return parts
