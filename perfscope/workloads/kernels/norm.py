"""RMSNorm as one kernel. Shapes: T rows, D features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton

EPSILON = 1e-6


def run(x_TD: Tensor, weight_D: Tensor) -> tuple[Tensor, Tensor]:
    """y_TD, and the factor of each row in float32 or wider, scale_T."""
    x_TD = x_TD.contiguous()
    y_TD, scale_T = _results(x_TD)
    if in_triton(x_TD):
        from perfscope.workloads.kernels.triton import norm

        norm.forward(x_TD, weight_D, y_TD, scale_T, EPSILON)
        return y_TD, scale_T
    wide_TD = x_TD.to(scale_T.dtype)
    torch.rsqrt(wide_TD.square().mean(-1) + EPSILON, out=scale_T)
    return y_TD.copy_(wide_TD * scale_T[:, None] * weight_D), scale_T


def run_backward(dy_TD: Tensor, x_TD: Tensor, weight_D: Tensor, scale_T: Tensor) -> tuple[Tensor, Tensor]:
    """dx_TD, dweight_D."""
    dy_TD, x_TD = dy_TD.contiguous(), x_TD.contiguous()
    dx_TD = torch.empty_like(x_TD)
    if in_triton(x_TD):
        from perfscope.workloads.kernels.triton import norm

        return dx_TD, norm.backward(dy_TD, x_TD, weight_D, scale_T, dx_TD).sum(0).to(weight_D.dtype)
    unit_TD = x_TD * scale_T[:, None]
    scaled_TD = dy_TD.to(scale_T.dtype) * weight_D
    dx_TD.copy_((scaled_TD - unit_TD * (scaled_TD * unit_TD).mean(-1, keepdim=True)) * scale_T[:, None])
    return dx_TD, (dy_TD * unit_TD).sum(0).to(weight_D.dtype)


def _results(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    return x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape[:1], dtype=wide)


rms_norm = torch.library.custom_op("perfscope_workloads::rms_norm", run, mutates_args=())
rms_norm_backward = torch.library.custom_op("perfscope_workloads::rms_norm_backward", run_backward, mutates_args=())
rms_norm.register_fake(lambda x_TD, weight_D: _results(x_TD))
rms_norm_backward.register_fake(lambda dy_TD, x_TD, weight_D, scale_T: (x_TD.new_empty(x_TD.shape), weight_D.clone()))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


rms_norm.register_autograd(
    lambda ctx, dy_TD, dscale_T: rms_norm_backward(dy_TD, *ctx.saved_tensors), setup_context=_keep
)


@perfscope.kernel_cost(rms_norm)
def _forward_cost(x_TD: Any, weight_D: Any) -> perfscope.Cost:
    return perfscope.Cost(bytes=2 * x_TD.nbytes + weight_D.nbytes + 4 * x_TD.shape[0])


@perfscope.kernel_cost(rms_norm_backward)
def _backward_cost(dy_TD: Any, x_TD: Any, weight_D: Any, scale_T: Any) -> perfscope.Cost:
    return perfscope.Cost(bytes=3 * x_TD.nbytes + 2 * weight_D.nbytes + scale_T.nbytes)
