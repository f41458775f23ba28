"""Rotary positions in Triton: both halves of every head of a position in one pass. T positions, H heads, K features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch

if TYPE_CHECKING:
    import torch


@triton.jit
def rotate_heads(
    x, cosine, sine, y, x_T, x_H, length, SIGN: tl.constexpr, H: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr
):
    """Write all heads of a position, rotated forwards (``SIGN`` 1) or backwards (-1)."""
    row = tl.program_id(0).to(tl.int64)
    head_H, place_F = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    angle = row % length * HALF + place_F
    cosine_F, sine_F = tl.load(cosine + angle).to(tl.float32), SIGN * tl.load(sine + angle).to(tl.float32)
    source, target = x + row * x_T + head_H * x_H + place_F, y + (row * H + head_H) * 2 * HALF + place_F
    first_HF = tl.load(source, mask=head_H < H, other=0.0).to(tl.float32)
    second_HF = tl.load(source + HALF, mask=head_H < H, other=0.0).to(tl.float32)
    tl.store(target, (first_HF * cosine_F - second_HF * sine_F).to(y.dtype.element_ty), mask=head_H < H)
    tl.store(target + HALF, (second_HF * cosine_F + first_HF * sine_F).to(y.dtype.element_ty), mask=head_H < H)


def rotate(
    x_BLHK: torch.Tensor, cosine_LF: torch.Tensor, sine_LF: torch.Tensor, y_BLHK: torch.Tensor, sign: int
) -> None:
    """Write y_BLHK."""
    batch, length, heads, features = x_BLHK.shape
    launch(
        rotate_heads, (batch * length,), x_BLHK, cosine_LF, sine_LF, y_BLHK, x_BLHK.stride(1), x_BLHK.stride(2), length,
        SIGN=sign, H=heads, HEADS=triton.next_power_of_2(heads), HALF=features // 2,
    )  # fmt: skip
