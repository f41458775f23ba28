"""The selective scan of a state space model, with its states on chip: y[t] = read[t] . h[t], h[t] = a[t] h[t-1] + u[t].

Shapes: B batch, L steps of time, D channels, N states of a channel (a power of two), S stretches of ``STRETCH`` steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton

STRETCH = 32
"""Steps whose states are made again from one kept state."""


def run(a_BLDN: Tensor, u_BLDN: Tensor, read_BLN: Tensor) -> tuple[Tensor, Tensor]:
    """y_BLD, and the states before each stretch, starts_BSDN."""
    a_BLDN, u_BLDN, read_BLN = a_BLDN.contiguous(), u_BLDN.contiguous(), read_BLN.contiguous()
    y_BLD, starts_BSDN = _results(a_BLDN)
    if in_triton(a_BLDN):
        from perfscope.workloads.kernels.triton import selective

        selective.forward(a_BLDN, u_BLDN, read_BLN, y_BLD, starts_BSDN, STRETCH)
        return y_BLD, starts_BSDN
    h_BDN = torch.zeros_like(starts_BSDN[:, 0])
    for step in range(a_BLDN.shape[1]):
        if step % STRETCH == 0:
            starts_BSDN[:, step // STRETCH] = h_BDN
        h_BDN = a_BLDN[:, step] * h_BDN + u_BLDN[:, step]
        y_BLD[:, step] = (h_BDN @ read_BLN[:, step, :, None].to(h_BDN.dtype)).squeeze(-1)
    return y_BLD, starts_BSDN


def run_backward(
    dy_BLD: Tensor, a_BLDN: Tensor, u_BLDN: Tensor, read_BLN: Tensor, starts_BSDN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """da_BLDN, du_BLDN, dread_BLN."""
    dy_BLD, a_BLDN, u_BLDN, read_BLN = (x.contiguous() for x in (dy_BLD, a_BLDN, u_BLDN, read_BLN))
    da_BLDN, du_BLDN, dread_BLN = (torch.empty_like(x) for x in (a_BLDN, u_BLDN, read_BLN))
    if in_triton(a_BLDN):
        from perfscope.workloads.kernels.triton import selective

        parts = selective.backward(dy_BLD, a_BLDN, u_BLDN, read_BLN, starts_BSDN, da_BLDN, du_BLDN, STRETCH)
        return da_BLDN, du_BLDN, parts.sum(2).to(read_BLN.dtype)
    later_BDN = torch.zeros_like(starts_BSDN[:, 0])
    for stretch in reversed(range(starts_BSDN.shape[1])):
        states = [starts_BSDN[:, stretch]]
        steps = range(stretch * STRETCH, min((stretch + 1) * STRETCH, a_BLDN.shape[1]))
        for step in steps:
            states.append(a_BLDN[:, step] * states[-1] + u_BLDN[:, step])
        for step in reversed(steps):
            h_BDN = states.pop()
            dread_BLN[:, step] = (dy_BLD[:, step, None].to(h_BDN.dtype) @ h_BDN).squeeze(1)
            dh_BDN = dy_BLD[:, step, :, None] * read_BLN[:, step, None] + later_BDN
            du_BLDN[:, step], da_BLDN[:, step] = dh_BDN, dh_BDN * states[-1]
            later_BDN = a_BLDN[:, step] * dh_BDN
    return da_BLDN, du_BLDN, dread_BLN


def _results(a_BLDN: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, channels, states = a_BLDN.shape
    wide = torch.promote_types(a_BLDN.dtype, torch.float32)
    starts = (batch, -(-length // STRETCH), channels, states)
    return a_BLDN.new_empty(batch, length, channels), a_BLDN.new_empty(starts, dtype=wide)


selective_scan = torch.library.custom_op("perfscope_workloads::selective_scan", run, mutates_args=())
selective_scan_backward = torch.library.custom_op(
    "perfscope_workloads::selective_scan_backward", run_backward, mutates_args=()
)
selective_scan.register_fake(lambda a_BLDN, u_BLDN, read_BLN: _results(a_BLDN))
selective_scan_backward.register_fake(
    lambda dy_BLD, a_BLDN, u_BLDN, read_BLN, starts_BSDN: tuple(
        x.new_empty(x.shape) for x in (a_BLDN, u_BLDN, read_BLN)
    )
)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


selective_scan.register_autograd(
    lambda ctx, dy_BLD, dstarts: selective_scan_backward(dy_BLD, *ctx.saved_tensors), setup_context=_keep
)


@perfscope.kernel_cost(selective_scan)
def _forward_cost(a_BLDN: Any, u_BLDN: Any, read_BLN: Any) -> perfscope.Cost:
    """Arithmetic outside of matrix products counts no FLOPs; the scan is limited by memory."""
    batch, length, channels, states = a_BLDN.shape
    starts = 4 * batch * -(-length // STRETCH) * channels * states
    return perfscope.Cost(bytes=2 * a_BLDN.nbytes + read_BLN.nbytes + a_BLDN.nbytes // states + starts)


@perfscope.kernel_cost(selective_scan_backward)
def _backward_cost(dy_BLD: Any, a_BLDN: Any, u_BLDN: Any, read_BLN: Any, starts_BSDN: Any) -> perfscope.Cost:
    """a and u are read twice, because a stretch is run again before its gradient.

    Not counted: the states of a stretch, which a program writes to its scratch buffer and reads back from a cache.
    """
    return perfscope.Cost(bytes=6 * a_BLDN.nbytes + dy_BLD.nbytes + 2 * read_BLN.nbytes + starts_BSDN.nbytes)
