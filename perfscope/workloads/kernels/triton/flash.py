"""FlashAttention in Triton, forward and backward (Dao 2023), with masks of causality and of a sliding window.

A program of the forward and of the gradient of the queries has a block of queries; a program of the gradients of keys
and values has a block of keys, and walks over the queries of every head of its group, so that nothing is added up in
memory. Shapes: B batch, H heads, G heads of keys and values, L positions, K features of a head.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch, precision_of

if TYPE_CHECKING:
    import torch

ROWS, COLUMNS = 64, 64
"""Queries and keys of a block."""


@triton.jit
def _visible(row_R, column_C, length, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    seen = (row_R[:, None] < length) & (column_C[None, :] < length)
    if CAUSAL:
        seen = seen & (row_R[:, None] >= column_C[None, :])
    if WINDOW:
        seen = seen & (row_R[:, None] < column_C[None, :] + WINDOW)
    return seen


@triton.jit
def _load(base, place_R, step, length, K: tl.constexpr):
    return tl.load(base + place_R[:, None] * step + tl.arange(0, K)[None, :], mask=place_R[:, None] < length, other=0.0)


@triton.jit
def flash_forward(
    q, k, v, o, lse, scale, heads, length,
    q_B, q_H, q_L, k_B, k_H, k_L, v_B, v_H, v_L, o_B, o_H, o_L,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a block of o and of lse."""
    first, batch, head = tl.program_id(0) * ROWS, tl.program_id(1) // heads, tl.program_id(1) % heads
    k += batch * k_B + head // GROUP * k_H
    v += batch * v_B + head // GROUP * v_H
    row_R = first + tl.arange(0, ROWS)
    q_RK = _load(q + batch * q_B + head * q_H, row_R, q_L, length, K)
    top_R = tl.full((ROWS,), -1e30, tl.float32)  # finite: a row of padding sees no key
    sum_R, o_RK = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, K), tl.float32)
    start, end = 0, length
    if WINDOW:
        start = tl.maximum(0, first - WINDOW + 1) // COLUMNS * COLUMNS
    if CAUSAL:
        end = tl.minimum(length, first + ROWS)
    for column in range(start, end, COLUMNS):
        column_C = column + tl.arange(0, COLUMNS)
        k_CK = _load(k, column_C, k_L, length, K)
        scores_RC = tl.dot(q_RK, tl.trans(k_CK), input_precision=PRECISION) * scale
        seen_RC = _visible(row_R, column_C, length, CAUSAL, WINDOW)
        new_R = tl.maximum(top_R, tl.max(tl.where(seen_RC, scores_RC, -1e30), 1))
        weight_RC = tl.where(seen_RC, tl.exp(scores_RC - new_R[:, None]), 0.0)
        shrink_R = tl.exp(top_R - new_R)
        v_CK = _load(v, column_C, v_L, length, K)
        sum_R = sum_R * shrink_R + tl.sum(weight_RC, 1)
        o_RK = o_RK * shrink_R[:, None] + tl.dot(weight_RC.to(v_CK.dtype), v_CK, input_precision=PRECISION)
        top_R = new_R
    sum_R = tl.where(row_R < length, sum_R, 1.0)
    out = o + batch * o_B + head * o_H + row_R[:, None] * o_L + tl.arange(0, K)[None, :]
    tl.store(out, (o_RK / sum_R[:, None]).to(o.dtype.element_ty), mask=row_R[:, None] < length)
    tl.store(lse + tl.program_id(1) * length + row_R, top_R + tl.log(sum_R), mask=row_R < length)


@triton.jit
def flash_backward_queries(
    q, k, v, do, dq, lse, delta, scale, heads, length,
    q_B, q_H, q_L, k_B, k_H, k_L, v_B, v_H, v_L, do_B, do_H, do_L, dq_B, dq_H, dq_L,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a block of dq."""
    first, batch, head = tl.program_id(0) * ROWS, tl.program_id(1) // heads, tl.program_id(1) % heads
    k += batch * k_B + head // GROUP * k_H
    v += batch * v_B + head // GROUP * v_H
    row_R = first + tl.arange(0, ROWS)
    q_RK = _load(q + batch * q_B + head * q_H, row_R, q_L, length, K)
    do_RK = _load(do + batch * do_B + head * do_H, row_R, do_L, length, K)
    lse_R = tl.load(lse + tl.program_id(1) * length + row_R, mask=row_R < length, other=0.0)
    delta_R = tl.load(delta + tl.program_id(1) * length + row_R, mask=row_R < length, other=0.0)
    dq_RK = tl.zeros((ROWS, K), tl.float32)
    start, end = 0, length
    if WINDOW:
        start = tl.maximum(0, first - WINDOW + 1) // COLUMNS * COLUMNS
    if CAUSAL:
        end = tl.minimum(length, first + ROWS)
    for column in range(start, end, COLUMNS):
        column_C = column + tl.arange(0, COLUMNS)
        k_CK = _load(k, column_C, k_L, length, K)
        v_CK = _load(v, column_C, v_L, length, K)
        scores_RC = tl.dot(q_RK, tl.trans(k_CK), input_precision=PRECISION) * scale
        seen_RC = _visible(row_R, column_C, length, CAUSAL, WINDOW)
        weight_RC = tl.where(seen_RC, tl.exp(scores_RC - lse_R[:, None]), 0.0)
        dweight_RC = tl.dot(do_RK, tl.trans(v_CK), input_precision=PRECISION)
        dscores_RC = weight_RC * (dweight_RC - delta_R[:, None])
        dq_RK += tl.dot(dscores_RC.to(k_CK.dtype), k_CK, input_precision=PRECISION)
    out = dq + batch * dq_B + head * dq_H + row_R[:, None] * dq_L + tl.arange(0, K)[None, :]
    tl.store(out, (dq_RK * scale).to(dq.dtype.element_ty), mask=row_R[:, None] < length)


@triton.jit
def flash_backward_keys(
    q, k, v, do, dk, dv, lse, delta, scale, groups, length,
    q_B, q_H, q_L, k_B, k_H, k_L, v_B, v_H, v_L, do_B, do_H, do_L, dk_B, dk_H, dk_L, dv_B, dv_H, dv_L,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a block of dk and of dv."""
    first, batch, group = tl.program_id(0) * COLUMNS, tl.program_id(1) // groups, tl.program_id(1) % groups
    column_C = first + tl.arange(0, COLUMNS)
    k_CK = _load(k + batch * k_B + group * k_H, column_C, k_L, length, K)
    v_CK = _load(v + batch * v_B + group * v_H, column_C, v_L, length, K)
    dk_CK, dv_CK = tl.zeros((COLUMNS, K), tl.float32), tl.zeros((COLUMNS, K), tl.float32)
    start, end = 0, length
    if CAUSAL:
        start = first // ROWS * ROWS
    if WINDOW:
        end = tl.minimum(length, first + COLUMNS + WINDOW - 1)
    for member in range(GROUP):
        head = group * GROUP + member
        sums = (batch * groups * GROUP + head) * length
        for row in range(start, end, ROWS):
            row_R = row + tl.arange(0, ROWS)
            q_RK = _load(q + batch * q_B + head * q_H, row_R, q_L, length, K)
            do_RK = _load(do + batch * do_B + head * do_H, row_R, do_L, length, K)
            lse_R = tl.load(lse + sums + row_R, mask=row_R < length, other=0.0)
            delta_R = tl.load(delta + sums + row_R, mask=row_R < length, other=0.0)
            scores_RC = tl.dot(q_RK, tl.trans(k_CK), input_precision=PRECISION) * scale
            seen_RC = _visible(row_R, column_C, length, CAUSAL, WINDOW)
            weight_RC = tl.where(seen_RC, tl.exp(scores_RC - lse_R[:, None]), 0.0)
            dv_CK += tl.dot(tl.trans(weight_RC.to(do_RK.dtype)), do_RK, input_precision=PRECISION)
            dweight_RC = tl.dot(do_RK, tl.trans(v_CK), input_precision=PRECISION)
            dscores_RC = weight_RC * (dweight_RC - delta_R[:, None])
            dk_CK += tl.dot(tl.trans(dscores_RC.to(q_RK.dtype)), q_RK, input_precision=PRECISION)
    places = batch * dk_B + group * dk_H + column_C[:, None] * dk_L + tl.arange(0, K)[None, :]
    tl.store(dk + places, (dk_CK * scale).to(dk.dtype.element_ty), mask=column_C[:, None] < length)
    places = batch * dv_B + group * dv_H + column_C[:, None] * dv_L + tl.arange(0, K)[None, :]
    tl.store(dv + places, dv_CK.to(dv.dtype.element_ty), mask=column_C[:, None] < length)


def forward(
    q_BHLK: torch.Tensor, k_BGLK: torch.Tensor, v_BGLK: torch.Tensor, o_BHLK: torch.Tensor, lse_BHL: torch.Tensor,
    causal: bool, window: int,
) -> None:  # fmt: skip
    """Write o_BHLK and lse_BHL."""
    batch, heads, length, features = q_BHLK.shape
    launch(
        flash_forward, (triton.cdiv(length, ROWS), batch * heads),
        q_BHLK, k_BGLK, v_BGLK, o_BHLK, lse_BHL, 1 / math.sqrt(features), heads, length,
        *_strides(q_BHLK, k_BGLK, v_BGLK, o_BHLK), **_constants(q_BHLK, k_BGLK, causal, window),
    )  # fmt: skip


def backward(
    do_BHLK: torch.Tensor, q_BHLK: torch.Tensor, k_BGLK: torch.Tensor, v_BGLK: torch.Tensor, lse_BHL: torch.Tensor,
    delta_BHL: torch.Tensor, dq_BHLK: torch.Tensor, dk_BGLK: torch.Tensor, dv_BGLK: torch.Tensor, causal: bool,
    window: int,
) -> None:  # fmt: skip
    """Write dq_BHLK, dk_BGLK and dv_BGLK. delta_BHL: sum of o * do over the features."""
    batch, heads, length, features = q_BHLK.shape
    groups, scale = k_BGLK.shape[1], 1 / math.sqrt(features)
    constants = _constants(q_BHLK, k_BGLK, causal, window)
    launch(
        flash_backward_queries, (triton.cdiv(length, ROWS), batch * heads),
        q_BHLK, k_BGLK, v_BGLK, do_BHLK, dq_BHLK, lse_BHL, delta_BHL, scale, heads, length,
        *_strides(q_BHLK, k_BGLK, v_BGLK, do_BHLK, dq_BHLK), **constants,
    )  # fmt: skip
    launch(
        flash_backward_keys, (triton.cdiv(length, COLUMNS), batch * groups),
        q_BHLK, k_BGLK, v_BGLK, do_BHLK, dk_BGLK, dv_BGLK, lse_BHL, delta_BHL, scale, groups, length,
        *_strides(q_BHLK, k_BGLK, v_BGLK, do_BHLK, dk_BGLK, dv_BGLK), **constants,
    )  # fmt: skip


def _strides(*tensors: torch.Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _constants(q_BHLK: torch.Tensor, k_BGLK: torch.Tensor, causal: bool, window: int) -> dict[str, Any]:
    return {
        "GROUP": q_BHLK.shape[1] // k_BGLK.shape[1], "CAUSAL": causal, "WINDOW": window, "K": q_BHLK.shape[3],
        "ROWS": ROWS, "COLUMNS": COLUMNS, "PRECISION": precision_of(q_BHLK), "num_warps": 4, "num_stages": 2,
    }  # fmt: skip
