"""Attention of one new position per sequence over pages of a cache, in Triton. The pages are read where they are.

A program has the heads of queries that share a head of keys. B sequences, H heads, G heads of keys, R = H / G, K
features, N pages of P positions, M pages of a sequence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch

if TYPE_CHECKING:
    import torch


@triton.jit
def paged_decode(
    q, k, v, table, filled, o, scale, groups, table_B, page_N, page_P, page_G, GROUP: tl.constexpr, HEADS: tl.constexpr,
    P: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Write the heads of one group of one sequence."""
    batch, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    head_R, place_P, place_K = tl.arange(0, HEADS), tl.arange(0, P), tl.arange(0, K)
    spot = (tl.program_id(0) * GROUP + head_R[:, None]) * K + place_K[None, :]
    inside = head_R[:, None] < GROUP
    q_RK = tl.load(q + spot, mask=inside, other=0.0).to(tl.float32) * scale
    top_R, sum_R = tl.full((HEADS,), -1e30, tl.float32), tl.zeros((HEADS,), tl.float32)
    o_RK = tl.zeros((HEADS, K), tl.float32)
    length = tl.load(filled + batch)
    for page in range(tl.cdiv(length, P)):
        number = tl.load(table + batch * table_B + page).to(tl.int64)
        seen_P = page * P + place_P < length
        places = number * page_N + place_P[:, None] * page_P + group * page_G + place_K[None, :]
        k_PK = tl.load(k + places, mask=seen_P[:, None], other=0.0).to(tl.float32)
        v_PK = tl.load(v + places, mask=seen_P[:, None], other=0.0).to(tl.float32)
        scores_RP = tl.sum(q_RK[:, None, :] * k_PK[None, :, :], 2)
        scores_RP = tl.where(seen_P[None, :], scores_RP, -1e30)
        new_R = tl.maximum(top_R, tl.max(scores_RP, 1))
        weight_RP, shrink_R = tl.exp(scores_RP - new_R[:, None]), tl.exp(top_R - new_R)
        sum_R = sum_R * shrink_R + tl.sum(weight_RP, 1)
        o_RK = o_RK * shrink_R[:, None] + tl.sum(weight_RP[:, :, None] * v_PK[None, :, :], 1)
        top_R = new_R
    tl.store(o + spot, (o_RK / sum_R[:, None]).to(o.dtype.element_ty), mask=inside)


def decode(
    q_BHK: torch.Tensor, k_NPGK: torch.Tensor, v_NPGK: torch.Tensor, table_BM: torch.Tensor, filled_B: torch.Tensor,
    o_BHK: torch.Tensor,
) -> None:  # fmt: skip
    """Write o_BHK."""
    (batch, heads, features), (_, page, groups, _) = q_BHK.shape, k_NPGK.shape
    launch(
        paged_decode, (batch * groups,), q_BHK, k_NPGK, v_NPGK, table_BM, filled_B, o_BHK, 1 / math.sqrt(features),
        groups, table_BM.stride(0), *k_NPGK.stride()[:3], GROUP=heads // groups,
        HEADS=triton.next_power_of_2(heads // groups), P=page, K=features,
    )  # fmt: skip
