"""Cross-entropy over a part of the vocabulary in Triton. T tokens, C columns of the part, V vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from perfscope.workloads.kernels.launch import launch

if TYPE_CHECKING:
    import torch

BLOCK = 1024
"""Columns that a program holds."""


@triton.jit
def absorb_logits(logits, target, top, total, chosen, first, width, BLOCK: tl.constexpr):
    """Add a row's part to its maximum, its sum of exponentials and, if it holds the target, the target's logit."""
    row = tl.program_id(0).to(tl.int64)
    highest, added = tl.load(top + row), tl.load(total + row)
    for start in range(0, width, BLOCK):
        place_C = start + tl.arange(0, BLOCK)
        logit_C = tl.load(logits + row * width + place_C, mask=place_C < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(logit_C, 0))
        added = added * tl.exp(highest - higher) + tl.sum(tl.exp(logit_C - higher), 0)
        highest = higher
    tl.store(top + row, highest)
    tl.store(total + row, added)
    place = tl.load(target + row) - first
    if (place >= 0) & (place < width):
        tl.store(chosen + row, tl.load(logits + row * width + place).to(tl.float32))


@triton.jit
def logits_to_gradient(logits, target, lse, scale, first, width, BLOCK: tl.constexpr):
    """Write the gradient of the loss over a row's part of the logits, in place."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(target + row) - first
    whole, factor = tl.load(lse + row), tl.load(scale)
    for start in range(0, width, BLOCK):
        place_C = start + tl.arange(0, BLOCK)
        logit_C = tl.load(logits + row * width + place_C, mask=place_C < width, other=0.0).to(tl.float32)
        gradient_C = (tl.exp(logit_C - whole) - tl.where(place_C == place, 1.0, 0.0)) * factor
        tl.store(logits + row * width + place_C, gradient_C.to(logits.dtype.element_ty), mask=place_C < width)


def absorb(
    logits_TC: torch.Tensor, target_T: torch.Tensor, top_T: torch.Tensor, total_T: torch.Tensor, chosen_T: torch.Tensor,
    first: int,
) -> None:  # fmt: skip
    """Update top_T, total_T and chosen_T by the columns from ``first`` on."""
    rows, width = logits_TC.shape
    launch(absorb_logits, (rows,), logits_TC, target_T, top_T, total_T, chosen_T, first, width, BLOCK=BLOCK)


def to_gradient(
    logits_TC: torch.Tensor, target_T: torch.Tensor, lse_T: torch.Tensor, scale: torch.Tensor, first: int
) -> None:
    """Overwrite logits_TC by its gradient."""
    rows, width = logits_TC.shape
    launch(logits_to_gradient, (rows,), logits_TC, target_T, lse_T, scale, first, width, BLOCK=BLOCK)
