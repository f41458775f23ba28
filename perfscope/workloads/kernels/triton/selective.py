"""The selective scan of Mamba in Triton (Gu and Dao 2023): the forward keeps its states in registers.

A program has a block of channels of one sequence. The backward makes the states of a stretch of time again, in a
scratch buffer that each program reuses for every stretch. B batch, L steps of time, D channels, N states of a channel,
S stretches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch

if TYPE_CHECKING:
    import torch

CHANNELS = 32
"""Channels of a program."""


@triton.jit
def scan_forward(
    a, u, read, y, starts, length, D, STRETCH: tl.constexpr, N: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Write y of all steps, and the states before each stretch of them."""
    batch, channel_D = tl.program_id(0), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside_D, place_N = channel_D < D, tl.arange(0, N)
    state = channel_D[:, None] * N + place_N[None, :]
    h_DN = tl.zeros((CHANNELS, N), tl.float32)
    stretches = tl.cdiv(length, STRETCH)
    for step in range(length):
        if step % STRETCH == 0:
            kept = (batch * stretches + step // STRETCH).to(tl.int64) * D * N
            tl.store(starts + kept + state, h_DN, mask=inside_D[:, None])
        row = (batch * length + step).to(tl.int64)
        a_DN = tl.load(a + row * D * N + state, mask=inside_D[:, None], other=0.0).to(tl.float32)
        u_DN = tl.load(u + row * D * N + state, mask=inside_D[:, None], other=0.0).to(tl.float32)
        h_DN = a_DN * h_DN + u_DN
        read_N = tl.load(read + row * N + place_N).to(tl.float32)
        y_D = tl.sum(h_DN * read_N[None, :], 1)
        tl.store(y + row * D + channel_D, y_D.to(y.dtype.element_ty), mask=inside_D)


@triton.jit
def scan_backward(
    dy, a, u, read, starts, before, da, du, dread, length, D, STRETCH: tl.constexpr, N: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write da, du, and this block's part of dread. ``before``: room for the states before each step of a stretch."""
    batch, block = tl.program_id(0), tl.program_id(1)
    channel_D, place_N = block * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, N)
    inside_D = channel_D < D
    state = channel_D[:, None] * N + place_N[None, :]
    room = before + ((batch * tl.num_programs(1) + block).to(tl.int64) * STRETCH) * CHANNELS * N
    spot = tl.arange(0, CHANNELS)[:, None] * N + place_N[None, :]
    stretches = tl.cdiv(length, STRETCH)
    later_DN = tl.zeros((CHANNELS, N), tl.float32)  # what the next step of time hands back: a * dh
    for back in range(stretches):
        stretch = stretches - 1 - back
        first, steps = stretch * STRETCH, tl.minimum(STRETCH, length - stretch * STRETCH)
        kept = (batch * stretches + stretch).to(tl.int64) * D * N
        h_DN = tl.load(starts + kept + state, mask=inside_D[:, None], other=0.0)
        for step in range(steps):
            row = (batch * length + first + step).to(tl.int64)
            tl.store(room + step * CHANNELS * N + spot, h_DN)
            a_DN = tl.load(a + row * D * N + state, mask=inside_D[:, None], other=0.0).to(tl.float32)
            u_DN = tl.load(u + row * D * N + state, mask=inside_D[:, None], other=0.0).to(tl.float32)
            h_DN = a_DN * h_DN + u_DN
        tl.debug_barrier()  # another thread may have written the states that this one reads
        for behind in range(steps):
            step = steps - 1 - behind
            row = (batch * length + first + step).to(tl.int64)
            a_DN = tl.load(a + row * D * N + state, mask=inside_D[:, None], other=0.0).to(tl.float32)
            u_DN = tl.load(u + row * D * N + state, mask=inside_D[:, None], other=0.0).to(tl.float32)
            h_DN = tl.load(room + step * CHANNELS * N + spot)
            dy_D = tl.load(dy + row * D + channel_D, mask=inside_D, other=0.0).to(tl.float32)
            read_N = tl.load(read + row * N + place_N).to(tl.float32)
            dread_N = tl.sum((a_DN * h_DN + u_DN) * dy_D[:, None], 0)
            tl.store(dread + (row * tl.num_programs(1) + block) * N + place_N, dread_N)
            dh_DN = dy_D[:, None] * read_N[None, :] + later_DN
            tl.store(du + row * D * N + state, dh_DN.to(du.dtype.element_ty), mask=inside_D[:, None])
            tl.store(da + row * D * N + state, (dh_DN * h_DN).to(da.dtype.element_ty), mask=inside_D[:, None])
            later_DN = a_DN * dh_DN
        tl.debug_barrier()


def forward(
    a_BLDN: torch.Tensor, u_BLDN: torch.Tensor, read_BLN: torch.Tensor, y_BLD: torch.Tensor, starts_BSDN: torch.Tensor,
    stretch: int,
) -> None:  # fmt: skip
    """Write y_BLD and starts_BSDN."""
    batch, length, channels, states = a_BLDN.shape
    launch(
        scan_forward, (batch, triton.cdiv(channels, CHANNELS)), a_BLDN, u_BLDN, read_BLN, y_BLD, starts_BSDN, length,
        channels, STRETCH=stretch, N=states, CHANNELS=CHANNELS,
    )  # fmt: skip


def backward(
    dy_BLD: torch.Tensor, a_BLDN: torch.Tensor, u_BLDN: torch.Tensor, read_BLN: torch.Tensor, starts_BSDN: torch.Tensor,
    da_BLDN: torch.Tensor, du_BLDN: torch.Tensor, stretch: int,
) -> torch.Tensor:  # fmt: skip
    """Write da_BLDN and du_BLDN; the gradient of ``read`` by blocks of channels, (B, L, blocks, N)."""
    batch, length, channels, states = a_BLDN.shape
    blocks = triton.cdiv(channels, CHANNELS)
    before = starts_BSDN.new_empty(batch, blocks, stretch, CHANNELS, states)
    parts = starts_BSDN.new_empty(batch, length, blocks, states)
    launch(
        scan_backward, (batch, blocks), dy_BLD, a_BLDN, u_BLDN, read_BLN, starts_BSDN, before, da_BLDN, du_BLDN, parts,
        length, channels, STRETCH=stretch, N=states, CHANNELS=CHANNELS,
    )  # fmt: skip
    return parts
