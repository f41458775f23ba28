"""A transformer. Variants of attention: ``naive`` (scores in memory), ``sdpa``, ``flex``, ``triton`` (fused).

Shapes: B batch, L query position, M key position, D model features, H heads, K features of a head, F hidden.

    python -m perfscope.workloads.attention --variant naive
    python -m perfscope.workloads.attention --variant sdpa --size gpu

FlexAttention has no backward on the CPU: there the variant runs its forward only, and prints a note.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size, parse
from perfscope.workloads.training import build, loss_of, report, train

VARIANTS = ("naive", "sdpa", "flex", "triton")
SIZES = {
    "tiny": Size(batch=4, seq=32, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=128, heads=4, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}


def naive_attention(q_BHLK: torch.Tensor, k_BHMK: torch.Tensor, v_BHMK: torch.Tensor) -> torch.Tensor:
    """Causal attention, every step of it a trip through memory: o_BHLK."""
    length = q_BHLK.shape[-2]
    future_LM = torch.ones(length, length, dtype=torch.bool, device=q_BHLK.device).triu(1)
    scores_BHLM = q_BHLK @ k_BHMK.transpose(-2, -1) / math.sqrt(q_BHLK.shape[-1])  # defect: unfused_attention: L * M
    scores_BHLM = scores_BHLM.masked_fill(future_LM, -math.inf)
    return torch.softmax(scores_BHLM, dim=-1) @ v_BHMK


def sdpa_attention(q_BHLK: torch.Tensor, k_BHMK: torch.Tensor, v_BHMK: torch.Tensor) -> torch.Tensor:
    """The same in one kernel, which keeps the scores on chip: o_BHLK."""
    return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, is_causal=True)


def flex(q_BHLK: torch.Tensor, k_BHMK: torch.Tensor, v_BHMK: torch.Tensor) -> torch.Tensor:
    """The same with a mask written in Python and compiled into the kernel: o_BHLK."""
    length, device = q_BHLK.shape[-2], q_BHLK.device
    mask = create_block_mask(_sees, B=None, H=None, Q_LEN=length, KV_LEN=length, device=device)
    return _compiled_flex(q_BHLK, k_BHMK, v_BHMK, block_mask=mask)


def triton_attention(q_BHLK: torch.Tensor, k_BHMK: torch.Tensor, v_BHMK: torch.Tensor) -> torch.Tensor:
    """The same in a Triton kernel, forward and backward: o_BHLK."""
    from perfscope.workloads.kernels.flash import flash_attention

    return flash_attention(q_BHLK, k_BHMK, v_BHMK)[0]


def _sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


_compiled_flex = torch.compile(flex_attention)
ATTENTION = {"naive": naive_attention, "sdpa": sdpa_attention, "flex": flex, "triton": triton_attention}


class Attention(nn.Module):
    """Causal multi-head self-attention: x_BLD -> y_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.heads, self.attend = size.heads, ATTENTION[variant]
        self.qkv = nn.Linear(size.dim, 3 * size.dim, bias=False)
        self.out = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """y_BLD."""
        q_BHLK, k_BHMK, v_BHMK = (
            part_BLD.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part_BLD in self.qkv(x_BLD).chunk(3, dim=-1)
        )
        o_BHLK = self.attend(q_BHLK, k_BHMK, v_BHMK)
        return self.out(o_BHLK.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm transformer block: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(size.dim), Attention(size, variant)
        self.norm2 = nn.LayerNorm(size.dim)
        self.up, self.down = nn.Linear(size.dim, 4 * size.dim), nn.Linear(4 * size.dim, size.dim)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD))
        h_BLF = F.gelu(self.up(self.norm2(x_BLD)))
        return x_BLD + self.down(h_BLF)


def evaluate(options: Options) -> list[float]:
    """The forward alone: loss of each batch with the initial weights."""
    model = build(Block, options).eval()
    with torch.no_grad():
        losses = [loss_of(model, tokens_BM) for tokens_BM in batches(options)]
    return report(losses)


def main(options: Options) -> list[float]:
    """Trains, or evaluates if the variant cannot be trained; the losses."""
    if options.variant == "flex" and options.device == "cpu":
        print("flex_attention has no backward on the CPU: forward only, no training")
        return evaluate(options)
    return train(Block, options)


if __name__ == "__main__":
    main(parse(__doc__ or "", VARIANTS, SIZES))
