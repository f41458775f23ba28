"""Products of groups of rows with one matrix each, in Triton. R rows sorted by group, E groups, D and G features.

A program finds its group from the ends of all groups, so that the host needs no sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch, precision_of

if TYPE_CHECKING:
    import torch

ROWS, COLUMNS, DEPTH = 64, 64, 32
"""Rows and columns of a block of the result, and features of one step of its product."""


@triton.jit
def grouped_product(
    x, weight, y, ends, D, G, x_R, weight_E, weight_D, weight_G, E: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a block of y; blocks beyond those of all groups do nothing."""
    block, blocks, begin, group, first, last = tl.program_id(0), 0, 0, -1, 0, 0
    for each in range(E):
        end = tl.load(ends + each)
        mine = tl.cdiv(end - begin, ROWS)
        here = (block >= blocks) & (block < blocks + mine)
        group = tl.where(here, each, group)
        first = tl.where(here, begin + (block - blocks) * ROWS, first)
        last = tl.where(here, end, last)
        blocks += mine
        begin = end
    if group >= 0:
        row_R = first + tl.arange(0, ROWS)
        column_C = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        y_RC = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, D, DEPTH):
            place_D = start + tl.arange(0, DEPTH)
            inside = (row_R[:, None] < last) & (place_D[None, :] < D)
            x_RD = tl.load(x + row_R[:, None].to(tl.int64) * x_R + place_D[None, :], mask=inside, other=0.0)
            places = tl.cast(group, tl.int64) * weight_E + place_D[:, None] * weight_D + column_C[None, :] * weight_G
            weight_DC = tl.load(weight + places, mask=(place_D[:, None] < D) & (column_C[None, :] < G), other=0.0)
            y_RC += tl.dot(x_RD, weight_DC, input_precision=PRECISION)
        places = row_R[:, None].to(tl.int64) * G + column_C[None, :]
        tl.store(y + places, y_RC.to(y.dtype.element_ty), mask=(row_R[:, None] < last) & (column_C[None, :] < G))


@triton.jit
def grouped_gradient(
    x, dy, dweight, ends, D, G, x_R, dy_R, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a block of a group's gradient: x of its rows, transposed, times dy."""
    group = tl.program_id(0)
    begin = tl.load(ends + group - 1, mask=group > 0, other=0)
    end = tl.load(ends + group)
    row_D = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column_C = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    dweight_DC = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(begin, end, DEPTH):
        place_R = (start + tl.arange(0, DEPTH)).to(tl.int64)
        inside_R = place_R < end
        x_DR = tl.load(
            x + place_R[None, :] * x_R + row_D[:, None], mask=inside_R[None, :] & (row_D[:, None] < D), other=0.0
        )
        dy_RC = tl.load(
            dy + place_R[:, None] * dy_R + column_C[None, :],
            mask=inside_R[:, None] & (column_C[None, :] < G),
            other=0.0,
        )
        dweight_DC += tl.dot(x_DR, dy_RC, input_precision=PRECISION)
    places = (group.to(tl.int64) * D + row_D[:, None]) * G + column_C[None, :]
    inside = (row_D[:, None] < D) & (column_C[None, :] < G)
    tl.store(dweight + places, dweight_DC.to(dweight.dtype.element_ty), mask=inside)


def product(x_RD: torch.Tensor, weight_EDG: torch.Tensor, ends_E: torch.Tensor, y_RG: torch.Tensor) -> None:
    """Write y_RG."""
    (rows, depth), (groups, _, columns) = x_RD.shape, weight_EDG.shape
    launch(
        grouped_product, (triton.cdiv(rows, ROWS) + groups, triton.cdiv(columns, COLUMNS)),
        x_RD, weight_EDG, y_RG, ends_E, depth, columns, x_RD.stride(0), *weight_EDG.stride(), E=groups, ROWS=ROWS,
        COLUMNS=COLUMNS, DEPTH=DEPTH, PRECISION=precision_of(x_RD),
    )  # fmt: skip


def gradient(x_RD: torch.Tensor, dy_RG: torch.Tensor, ends_E: torch.Tensor, dweight_EDG: torch.Tensor) -> None:
    """Write dweight_EDG."""
    groups, depth, columns = dweight_EDG.shape
    launch(
        grouped_gradient, (groups, triton.cdiv(depth, ROWS), triton.cdiv(columns, COLUMNS)),
        x_RD, dy_RG, dweight_EDG, ends_E, depth, columns, x_RD.stride(0), dy_RG.stride(0), ROWS=ROWS, COLUMNS=COLUMNS,
        DEPTH=DEPTH, PRECISION=precision_of(x_RD),
    )  # fmt: skip
