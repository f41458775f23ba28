"""Products of quantized factors in Triton. T rows, D features, V columns of the result, Q = D / GROUP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch, precision_of

if TYPE_CHECKING:
    import torch

ROWS, COLUMNS, DEPTH = 64, 64, 64


@triton.jit
def scaled_product(
    x, x_scale, weight, weight_scale, y, T, V, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Write a block of y from factors of 8 bits: integers (``WHOLE``) or floats, with a scale per row and column."""
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column_C = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    y_RC = tl.zeros((ROWS, COLUMNS), tl.int32 if WHOLE else tl.float32)
    for start in range(0, D, DEPTH):
        place_D = start + tl.arange(0, DEPTH)
        x_RD = tl.load(
            x + row_R[:, None] * D + place_D[None, :], mask=(row_R[:, None] < T) & (place_D[None, :] < D), other=0.0
        )
        weight_DC = tl.load(
            weight + column_C[None, :] * D + place_D[:, None], mask=(column_C[None, :] < V) & (place_D[:, None] < D),
            other=0.0,
        )  # fmt: skip
        y_RC += tl.dot(x_RD, weight_DC, out_dtype=tl.int32 if WHOLE else tl.float32)
    x_scale_R = tl.load(x_scale + row_R, mask=row_R < T, other=0.0)
    weight_scale_C = tl.load(weight_scale + column_C, mask=column_C < V, other=0.0)
    result_RC = y_RC.to(tl.float32) * x_scale_R[:, None] * weight_scale_C[None, :]
    inside = (row_R[:, None] < T) & (column_C[None, :] < V)
    tl.store(y + row_R[:, None] * V + column_C[None, :], result_RC.to(y.dtype.element_ty), mask=inside)


@triton.jit
def int4_product(
    x, packed, scale, y, T, V, D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a block of y; weights of 4 bits become numbers of x's dtype on chip, a group of features at a time."""
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column_C = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place_H = tl.arange(0, GROUP // 2)
    y_RC = tl.zeros((ROWS, COLUMNS), tl.float32)
    for group in range(D // GROUP):
        places = row_R[:, None] * D + group * GROUP + place_H[None, :]
        first_RH = tl.load(x + places, mask=row_R[:, None] < T, other=0.0)
        second_RH = tl.load(x + places + GROUP // 2, mask=row_R[:, None] < T, other=0.0)
        places = column_C[None, :] * (D // 2) + group * (GROUP // 2) + place_H[:, None]
        packed_HC = tl.load(packed + places, mask=column_C[None, :] < V, other=0).to(tl.int32)
        low_HC, high_HC = (packed_HC & 15) - 8, (packed_HC >> 4) - 8
        part_RC = tl.dot(first_RH, low_HC.to(first_RH.dtype), input_precision=PRECISION)
        part_RC += tl.dot(second_RH, high_HC.to(first_RH.dtype), input_precision=PRECISION)
        scale_C = tl.load(scale + column_C * (D // GROUP) + group, mask=column_C < V, other=0.0).to(tl.float32)
        y_RC += part_RC * scale_C[None, :]
    inside = (row_R[:, None] < T) & (column_C[None, :] < V)
    tl.store(y + row_R[:, None] * V + column_C[None, :], y_RC.to(y.dtype.element_ty), mask=inside)


def scaled(
    x_TD: torch.Tensor, x_scale_T: torch.Tensor, weight_VD: torch.Tensor, scale_V: torch.Tensor, y_TV: torch.Tensor
) -> None:
    """Write y_TV."""
    (rows, depth), columns = x_TD.shape, weight_VD.shape[0]
    launch(
        scaled_product, (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)), x_TD, x_scale_T, weight_VD, scale_V,
        y_TV, rows, columns, D=depth, ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, WHOLE=not x_TD.dtype.is_floating_point,
    )  # fmt: skip


def int4(x_TD: torch.Tensor, packed_VH: torch.Tensor, scale_VQ: torch.Tensor, y_TV: torch.Tensor, group: int) -> None:
    """Write y_TV."""
    (rows, depth), columns = x_TD.shape, packed_VH.shape[0]
    launch(
        int4_product, (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)), x_TD, packed_VH, scale_VQ, y_TV, rows,
        columns, D=depth, GROUP=group, ROWS=ROWS, COLUMNS=COLUMNS, PRECISION=precision_of(x_TD),
    )  # fmt: skip
