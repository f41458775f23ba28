"""Cross-entropy of a linear head without its logits: one part of the vocabulary at a time, made again in the backward.

Shapes: T tokens, D features, V vocabulary, C columns of a part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton

PART = 8192
"""Columns of a part: logits of 8,192 tokens take 128 MiB in bfloat16."""


def run(x_TD: Tensor, weight_VD: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss in nats, and the logarithm of each row's sum of exponentials, lse_T; float32 or wider."""
    loss, lse_T = _results(x_TD)
    top_T, total_T, chosen_T = torch.full_like(lse_T, -math.inf), torch.zeros_like(lse_T), torch.zeros_like(lse_T)
    for first, part_CD in _parts(weight_VD):
        logits_TC = x_TD @ part_CD.T
        if in_triton(x_TD):
            from perfscope.workloads.kernels.triton import loss as kernels

            kernels.absorb(logits_TC, target_T, top_T, total_T, chosen_T, first)
            continue
        wide_TC = logits_TC.to(lse_T.dtype)
        new_T = torch.maximum(top_T, wide_TC.amax(-1))
        total_T = total_T * (top_T - new_T).exp() + (wide_TC - new_T[:, None]).exp().sum(-1)
        place_T = target_T - first
        inside_T = (place_T >= 0) & (place_T < len(part_CD))
        picked_T = wide_TC.gather(1, place_T.clamp(0, len(part_CD) - 1)[:, None])[:, 0]
        top_T, chosen_T = new_T, torch.where(inside_T, picked_T, chosen_T)
    torch.add(top_T, total_T.log(), out=lse_T)
    return loss.copy_((lse_T - chosen_T).mean()), lse_T


def run_backward(
    dloss: Tensor, x_TD: Tensor, weight_VD: Tensor, target_T: Tensor, lse_T: Tensor
) -> tuple[Tensor, Tensor]:
    """dx_TD, dweight_VD."""
    dx_TD, dweight_VD = x_TD.new_zeros(x_TD.shape, dtype=lse_T.dtype), torch.empty_like(weight_VD)
    scale = (dloss / len(x_TD)).to(lse_T.dtype)
    for first, part_CD in _parts(weight_VD):
        logits_TC = x_TD @ part_CD.T
        if in_triton(x_TD):
            from perfscope.workloads.kernels.triton import loss as kernels

            kernels.to_gradient(logits_TC, target_T, lse_T, scale, first)
        else:
            columns_C = torch.arange(first, first + len(part_CD), device=x_TD.device)
            weights_TC = (logits_TC.to(lse_T.dtype) - lse_T[:, None]).exp()
            logits_TC = ((weights_TC - (columns_C == target_T[:, None]).to(lse_T.dtype)) * scale).to(x_TD.dtype)
        dx_TD += logits_TC @ part_CD
        torch.mm(logits_TC.T, x_TD, out=dweight_VD[first : first + len(part_CD)])
    return dx_TD.to(x_TD.dtype), dweight_VD


def _parts(weight_VD: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, len(weight_VD), PART):
        yield first, weight_VD[first : first + PART]


def _results(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    return x_TD.new_empty((), dtype=wide), x_TD.new_empty(x_TD.shape[:1], dtype=wide)


linear_cross_entropy = torch.library.custom_op("perfscope_workloads::linear_cross_entropy", run, mutates_args=())
linear_cross_entropy_backward = torch.library.custom_op(
    "perfscope_workloads::linear_cross_entropy_backward", run_backward, mutates_args=()
)
linear_cross_entropy.register_fake(lambda x_TD, weight_VD, target_T: _results(x_TD))
linear_cross_entropy_backward.register_fake(
    lambda dloss, x_TD, weight_VD, target_T, lse_T: (torch.empty_like(x_TD), torch.empty_like(weight_VD))
)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


linear_cross_entropy.register_autograd(
    lambda ctx, dloss, dlse_T: (*linear_cross_entropy_backward(dloss, *ctx.saved_tensors), None), setup_context=_keep
)


@perfscope.kernel_cost(linear_cross_entropy)
def _forward_cost(x_TD: Any, weight_VD: Any, target_T: Any) -> perfscope.Cost:
    """Logits are written and read once, a part at a time."""
    (tokens, features), vocabulary = x_TD.shape, weight_VD.shape[0]
    logits = tokens * vocabulary * x_TD.nbytes // x_TD.numel()
    return perfscope.Cost(2 * tokens * features * vocabulary, x_TD.nbytes + weight_VD.nbytes + 2 * logits)


@perfscope.kernel_cost(linear_cross_entropy_backward)
def _backward_cost(dloss: Any, x_TD: Any, weight_VD: Any, target_T: Any, lse_T: Any) -> perfscope.Cost:
    """Logits are written, read, overwritten by their gradient, and read twice; three products."""
    (tokens, features), vocabulary = x_TD.shape, weight_VD.shape[0]
    logits = tokens * vocabulary * x_TD.nbytes // x_TD.numel()
    flops = {str(x_TD.dtype).removeprefix("torch."): 6 * tokens * features * vocabulary}
    return perfscope.Cost(flops, 3 * x_TD.nbytes + 3 * weight_VD.nbytes + 5 * logits)
