"""Rotary positions (Su et al. 2021) as one kernel. Shapes: B batch, L positions, H heads, K features, F = K / 2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton

BASE = 10_000.0


def angles(length: int, features: int) -> tuple[Tensor, Tensor]:
    """cosine_LF and sine_LF, float32."""
    turns_F = BASE ** -(torch.arange(0, features, 2) / features)
    angle_LF = torch.arange(length)[:, None] * turns_F
    return angle_LF.cos(), angle_LF.sin()


def run(x_BLHK: Tensor, cosine_LF: Tensor, sine_LF: Tensor, sign: int = 1) -> Tensor:
    """The heads rotated by the angle of their position; back with ``sign`` -1."""
    length, features = x_BLHK.shape[1], x_BLHK.shape[3]
    if x_BLHK.stride(3) != 1 or x_BLHK.stride(0) != length * x_BLHK.stride(1):
        x_BLHK = x_BLHK.contiguous()
    y_BLHK = x_BLHK.new_empty(x_BLHK.shape)
    if in_triton(x_BLHK):
        from perfscope.workloads.kernels.triton import rotary

        rotary.rotate(x_BLHK, cosine_LF, sine_LF, y_BLHK, sign)
        return y_BLHK
    cosine_L1F, sine_L1F = cosine_LF[:, None], sign * sine_LF[:, None]
    first_BLHF, second_BLHF = x_BLHK.chunk(2, dim=-1)
    y_BLHK[..., : features // 2] = first_BLHF * cosine_L1F - second_BLHF * sine_L1F
    y_BLHK[..., features // 2 :] = second_BLHF * cosine_L1F + first_BLHF * sine_L1F
    return y_BLHK


rotate = torch.library.custom_op("perfscope_workloads::rotate", run, mutates_args=())
rotate.register_fake(lambda x_BLHK, cosine_LF, sine_LF, sign=1: x_BLHK.new_empty(x_BLHK.shape))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *angles_LF, ctx.sign = inputs
    ctx.save_for_backward(*angles_LF)


rotate.register_autograd(
    lambda ctx, dy_BLHK: (rotate(dy_BLHK, *ctx.saved_tensors, -ctx.sign), None, None, None), setup_context=_keep
)


@perfscope.kernel_cost(rotate)
def _cost(x_BLHK: Any, cosine_LF: Any, sine_LF: Any, sign: int = 1) -> perfscope.Cost:
    return perfscope.Cost(bytes=2 * x_BLHK.nbytes + 2 * cosine_LF.nbytes)
