"""Attention that keeps its scores on chip: FlashAttention with causality, a sliding window, and shared keys (GQA).

Shapes: B batch, H heads of queries, G heads of keys and values (H is a multiple of G), L positions, K features of a
head (a power of two, 16 or more), R queries of a block, P heads of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton

BLOCK = 128
"""Queries of a block of the plain version."""


def run(q_BHLK: Tensor, k_BGLK: Tensor, v_BGLK: Tensor, causal: bool = True, window: int = 0) -> tuple[Tensor, Tensor]:
    """o_BHLK and the logarithm of each row's sum of weights, lse_BHL in float32.

    With ``window`` a query sees the last ``window`` keys, itself included (0: all).
    """
    o_BHLK, lse_BHL = _results(q_BHLK)
    q_BHLK, k_BGLK, v_BGLK = map(_dense, (q_BHLK, k_BGLK, v_BGLK))
    if in_triton(q_BHLK):
        from perfscope.workloads.kernels.triton import flash

        flash.forward(q_BHLK, k_BGLK, v_BGLK, o_BHLK, lse_BHL, causal, window)
        return o_BHLK, lse_BHL
    groups = k_BGLK.shape[1]
    for rows, scores_BGPRL in _scores(q_BHLK, k_BGLK, causal, window):
        lse_BGPR1 = scores_BGPRL.logsumexp(-1, keepdim=True)
        weights_BGPRL = (scores_BGPRL - lse_BGPR1).exp().to(v_BGLK.dtype)
        o_BHLK.unflatten(1, (groups, -1))[:, :, :, rows] = weights_BGPRL @ v_BGLK.unsqueeze(2)
        lse_BHL.unflatten(1, (groups, -1))[:, :, :, rows] = lse_BGPR1.squeeze(-1)
    return o_BHLK, lse_BHL


def run_backward(
    do_BHLK: Tensor, q_BHLK: Tensor, k_BGLK: Tensor, v_BGLK: Tensor, o_BHLK: Tensor, lse_BHL: Tensor, causal: bool,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq_BHLK, dk_BGLK, dv_BGLK."""
    dq_BHLK, dk_BGLK, dv_BGLK = (_empty(x_BHLK) for x_BHLK in (q_BHLK, k_BGLK, v_BGLK))
    do_BHLK, q_BHLK, k_BGLK, v_BGLK = map(_dense, (do_BHLK, q_BHLK, k_BGLK, v_BGLK))
    delta_BHL = (do_BHLK.to(lse_BHL.dtype) * o_BHLK).sum(-1)
    if in_triton(q_BHLK):
        from perfscope.workloads.kernels.triton import flash

        flash.backward(do_BHLK, q_BHLK, k_BGLK, v_BGLK, lse_BHL, delta_BHL, dq_BHLK, dk_BGLK, dv_BGLK, causal, window)
        return dq_BHLK, dk_BGLK, dv_BGLK
    split = (k_BGLK.shape[1], -1)
    dk_BGLK.zero_()
    dv_BGLK.zero_()
    for rows, scores_BGPRL in _scores(q_BHLK, k_BGLK, causal, window):
        q_BGPRK, do_BGPRK = (x_BHLK.unflatten(1, split)[:, :, :, rows] for x_BHLK in (q_BHLK, do_BHLK))
        lse_BGPR, delta_BGPR = (x_BHL.unflatten(1, split)[:, :, :, rows] for x_BHL in (lse_BHL, delta_BHL))
        weights_BGPRL = (scores_BGPRL - lse_BGPR.unsqueeze(-1)).exp()
        dv_BGLK += (weights_BGPRL.to(q_BHLK.dtype).transpose(-2, -1) @ do_BGPRK).sum(2)
        dweights_BGPRL = do_BGPRK @ v_BGLK.unsqueeze(2).transpose(-2, -1)
        dscores_BGPRL = weights_BGPRL * (dweights_BGPRL - delta_BGPR.unsqueeze(-1)) / math.sqrt(q_BHLK.shape[-1])
        dscores_BGPRL = dscores_BGPRL.to(q_BHLK.dtype)
        dq_BHLK.unflatten(1, split)[:, :, :, rows] = dscores_BGPRL @ k_BGLK.unsqueeze(2)
        dk_BGLK += (dscores_BGPRL.transpose(-2, -1) @ q_BGPRK).sum(2)
    return dq_BHLK, dk_BGLK, dv_BGLK


def _scores(q_BHLK: Tensor, k_BGLK: Tensor, causal: bool, window: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of queries with their masked scores."""
    length, device = q_BHLK.shape[2], q_BHLK.device
    q_BGPLK, column_L = q_BHLK.unflatten(1, (k_BGLK.shape[1], -1)), torch.arange(length, device=device)
    for start in range(0, length, BLOCK):
        rows = slice(start, min(start + BLOCK, length))
        scores_BGPRL = q_BGPLK[:, :, :, rows] @ k_BGLK.unsqueeze(2).transpose(-2, -1) / math.sqrt(q_BHLK.shape[-1])
        hidden_RL = torch.zeros((), dtype=torch.bool, device=device)
        if causal:
            hidden_RL = hidden_RL | (column_L > column_L[rows, None])
        if window:
            hidden_RL = hidden_RL | (column_L <= column_L[rows, None] - window)
        yield rows, scores_BGPRL.masked_fill(hidden_RL, -math.inf)


def _empty(x_BHLK: Tensor) -> Tensor:
    """A result of this shape whose heads of a position are neighbours, as the next product reads them."""
    batch, heads, length, features = x_BHLK.shape
    return x_BHLK.new_empty(batch, length, heads, features).transpose(1, 2)


def _results(q_BHLK: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(q_BHLK.dtype, torch.float32)
    return _empty(q_BHLK), q_BHLK.new_empty(q_BHLK.shape[:3], dtype=dtype)


def _dense(x_BHLK: Tensor) -> Tensor:
    return x_BHLK if x_BHLK.stride(-1) == 1 else x_BHLK.contiguous()


flash_attention = torch.library.custom_op("perfscope_workloads::flash_attention", run, mutates_args=())
flash_attention_backward = torch.library.custom_op(
    "perfscope_workloads::flash_attention_backward", run_backward, mutates_args=()
)
flash_attention.register_fake(lambda q_BHLK, k_BGLK, v_BGLK, causal=True, window=0: _results(q_BHLK))
flash_attention_backward.register_fake(
    lambda do_BHLK, q_BHLK, k_BGLK, v_BGLK, *_: (_empty(q_BHLK), _empty(k_BGLK), _empty(v_BGLK))
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *qkv, ctx.causal, ctx.window = inputs
    ctx.save_for_backward(*qkv, *output)


def _backward(ctx: Any, do_BHLK: Tensor, dlse_BHL: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*flash_attention_backward(do_BHLK, *ctx.saved_tensors, ctx.causal, ctx.window), None, None)


flash_attention.register_autograd(_backward, setup_context=_keep)


def visible_pairs(length: int, causal: bool, window: int) -> int:
    """Pairs of a query and a key that it sees."""
    if causal:
        reach = min(window or length, length)
        return reach * (reach + 1) // 2 + (length - reach) * reach
    later = sum(max(0, length - row - 1) for row in range(length)) if window else 0
    return visible_pairs(length, True, window) + later if window else length * length


def _attention_flops(q_BHLK: Any, causal: bool, window: int) -> int:
    """The two products of the forward."""
    batch, heads, length, features = q_BHLK.shape
    return int(4 * batch * heads * features * visible_pairs(length, causal, window))


@perfscope.kernel_cost(flash_attention)
def _forward_cost(q_BHLK: Any, k_BGLK: Any, v_BGLK: Any, causal: bool = True, window: int = 0) -> perfscope.Cost:
    sums = 4 * math.prod(q_BHLK.shape[:3])
    moved = 2 * q_BHLK.nbytes + k_BGLK.nbytes + v_BGLK.nbytes + sums
    return perfscope.Cost(_attention_flops(q_BHLK, causal, window), moved)


@perfscope.kernel_cost(flash_attention_backward)
def _backward_cost(
    do_BHLK: Any, q_BHLK: Any, k_BGLK: Any, v_BGLK: Any, o_BHLK: Any, lse_BHL: Any, causal: bool, window: int
) -> perfscope.Cost:
    """Five products, as FlashAttention counts them; the two kernels here compute scores and their gradient twice."""
    forward = _attention_flops(q_BHLK, causal, window)
    moved = 4 * q_BHLK.nbytes + 2 * (k_BGLK.nbytes + v_BGLK.nbytes) + lse_BHL.nbytes
    return perfscope.Cost(forward * 5 // 2, moved)
