"""Products of quantized factors, for inference: 8 bits on both sides (int8, fp8), or weights of 4 bits alone.

Shapes: T rows, D features, V columns of the result, Q = D / GROUP groups of features, H = D / 2 bytes of a packed row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton

GROUP = 128
"""Features that share a scale, for weights of 4 bits."""


def quantized(x_TD: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows as int8 or float8_e4m3fn, and the scale of each row in float32."""
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 127.0
    scale_T = x_TD.float().abs().amax(-1).clamp_min(1e-12) / largest
    unit_TD = x_TD / scale_T[:, None]
    return (unit_TD if dtype.is_floating_point else unit_TD.round()).to(dtype), scale_T


def packed(weight_VD: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Weights of 4 bits, two in a byte: packed_VH and scale_VQ.

    Byte j of a group holds features j and j + GROUP / 2.
    """
    groups_VQG = weight_VD.float().unflatten(-1, (-1, group))
    scale_VQ = groups_VQG.abs().amax(-1).clamp_min(1e-12) / 7
    whole_VQG = (groups_VQG / scale_VQ.unsqueeze(-1)).round().to(torch.int32) + 8
    low_VQH, high_VQH = whole_VQG.chunk(2, dim=-1)
    return (low_VQH | high_VQH << 4).to(torch.uint8).flatten(1), scale_VQ


def unpacked(packed_VH: Tensor, scale_VQ: Tensor) -> Tensor:
    """The weights in float32, weight_VD."""
    bytes_VQH = packed_VH.to(torch.int32).unflatten(-1, (scale_VQ.shape[1], -1))
    whole_VQG = torch.cat((bytes_VQH & 15, bytes_VQH >> 4), dim=-1) - 8
    return (whole_VQG * scale_VQ.unsqueeze(-1)).flatten(1)  # defect: constant_work: 8 times the bytes


def run(x_TD: Tensor, x_scale_T: Tensor, weight_VD: Tensor, scale_V: Tensor) -> Tensor:
    """y_TV in bfloat16."""
    x_TD, weight_VD = x_TD.contiguous(), weight_VD.contiguous()
    y_TV = x_scale_T.new_empty(x_TD.shape[0], weight_VD.shape[0], dtype=torch.bfloat16)
    if in_triton(x_TD):
        from perfscope.workloads.kernels.triton import quantized as kernels

        kernels.scaled(x_TD, x_scale_T, weight_VD, scale_V, y_TV)
        return y_TV
    return y_TV.copy_((x_TD.float() @ weight_VD.float().T) * x_scale_T[:, None] * scale_V)


def run_int4(x_TD: Tensor, packed_VH: Tensor, scale_VQ: Tensor) -> Tensor:
    """y_TV in the dtype of x."""
    x_TD, packed_VH, scale_VQ = x_TD.contiguous(), packed_VH.contiguous(), scale_VQ.contiguous()
    if in_triton(x_TD):
        from perfscope.workloads.kernels.triton import quantized as kernels

        y_TV = x_TD.new_empty(x_TD.shape[0], packed_VH.shape[0])
        kernels.int4(x_TD, packed_VH, scale_VQ, y_TV, 2 * packed_VH.shape[1] // scale_VQ.shape[1])
        return y_TV
    return (x_TD.float() @ unpacked(packed_VH, scale_VQ).T).to(x_TD.dtype)


scaled_product = torch.library.custom_op("perfscope_workloads::scaled_product", run, mutates_args=())
int4_product = torch.library.custom_op("perfscope_workloads::int4_product", run_int4, mutates_args=())
scaled_product.register_fake(
    lambda x_TD, x_scale_T, weight_VD, scale_V: x_scale_T.new_empty(
        x_TD.shape[0], weight_VD.shape[0], dtype=torch.bfloat16
    )
)
int4_product.register_fake(lambda x_TD, packed_VH, scale_VQ: x_TD.new_empty(x_TD.shape[0], packed_VH.shape[0]))


@perfscope.kernel_cost(scaled_product)
def _scaled_cost(x_TD: Any, x_scale_T: Any, weight_VD: Any, scale_V: Any) -> perfscope.Cost:
    (rows, depth), columns = x_TD.shape, weight_VD.shape[0]
    moved = x_TD.nbytes + weight_VD.nbytes + x_scale_T.nbytes + scale_V.nbytes + 2 * rows * columns
    return perfscope.Cost(2 * rows * depth * columns, moved)


@perfscope.kernel_cost(int4_product)
def _int4_cost(x_TD: Any, packed_VH: Any, scale_VQ: Any) -> perfscope.Cost:
    """Products run in the dtype of x; weights move as 4 bits."""
    (rows, depth), columns = x_TD.shape, packed_VH.shape[0]
    results = rows * columns * x_TD.nbytes // x_TD.numel()
    return perfscope.Cost(2 * rows * depth * columns, x_TD.nbytes + packed_VH.nbytes + scale_VQ.nbytes + results)
