"""Attention of one new position per sequence over a cache in pages, which are read where they are.

Shapes: B sequences, H heads of queries, G heads of keys and values, K features, N pages of P positions (a power of
two), M pages of a sequence. filled_B: positions of each sequence, int32 (ragged lengths).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton


def run(q_BHK: Tensor, k_NPGK: Tensor, v_NPGK: Tensor, table_BM: Tensor, filled_B: Tensor) -> Tensor:
    """o_BHK."""
    q_BHK = q_BHK.contiguous()
    o_BHK = torch.empty_like(q_BHK)
    if k_NPGK.stride() != v_NPGK.stride() or k_NPGK.stride(-1) != 1:
        k_NPGK, v_NPGK = k_NPGK.contiguous(), v_NPGK.contiguous()
    if in_triton(q_BHK):
        from perfscope.workloads.kernels.triton import paged

        paged.decode(q_BHK, k_NPGK, v_NPGK, table_BM, filled_B, o_BHK)
        return o_BHK
    page = k_NPGK.shape[1]
    for row, filled in enumerate(filled_B.tolist()):
        used_M = table_BM[row, : -(-filled // page)]
        k_GTK, v_GTK = (x_NPGK[used_M].flatten(0, 1)[:filled].transpose(0, 1) for x_NPGK in (k_NPGK, v_NPGK))
        o_BHK[row] = F.scaled_dot_product_attention(q_BHK[row, :, None], k_GTK, v_GTK, enable_gqa=True)[:, 0]
    return o_BHK


paged_attention = torch.library.custom_op("perfscope_workloads::paged_attention", run, mutates_args=())
paged_attention.register_fake(lambda q_BHK, *_: q_BHK.new_empty(q_BHK.shape))


@perfscope.kernel_cost(paged_attention)
def _cost(q_BHK: Any, k_NPGK: Any, v_NPGK: Any, table_BM: Any, filled_B: Any) -> perfscope.Cost:
    """All pages of the table are counted, because the lengths are data of the device."""
    (_, heads, features), (_, page, groups, _) = q_BHK.shape, k_NPGK.shape
    positions = table_BM.numel() * page
    item = q_BHK.nbytes // q_BHK.numel()
    moved = 2 * positions * groups * features * item + 2 * q_BHK.nbytes + table_BM.nbytes
    return perfscope.Cost(4 * positions * heads * features, moved)
