"""A decoder whose rows are at different positions of their texts, as in a server that batches requests.

Shapes: B rows of the cache, N rows of a call, L new positions, T positions of the cache, D model features, H heads,
K features of a head, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.options import Options, Size

SIZES = {
    "tiny": Size(batch=4, seq=16, dim=64, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=8, seq=64, dim=256, heads=8, layers=2),
    "gpu": Size(batch=64, seq=1024, dim=4096, heads=32, layers=16, vocab=32_000),
}


class Block(nn.Module):
    """Attention over a cache of fixed length and a perceptron: x_NLD -> x_NLD."""

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(size.dim), nn.LayerNorm(size.dim)
        self.qkv, self.out = nn.Linear(size.dim, 3 * size.dim, bias=False), nn.Linear(size.dim, size.dim, bias=False)
        self.up, self.down = nn.Linear(size.dim, 4 * size.dim), nn.Linear(4 * size.dim, size.dim)
        self.kv_2BTHK: torch.Tensor
        shape = (2, size.batch, length, size.heads, size.dim // size.heads)
        self.register_buffer("kv_2BTHK", torch.zeros(shape))

    def forward(
        self, x_NLD: torch.Tensor, rows_N: torch.Tensor | None, places_NL: torch.Tensor, seen_NLT: torch.Tensor
    ) -> torch.Tensor:
        """x_NLD. ``rows_N``: the rows of the cache, ``None`` for all of them."""
        q_NLHK, k_NLHK, v_NLHK = self.qkv(self.norm1(x_NLD)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        rows_N1 = (torch.arange(x_NLD.shape[0], device=x_NLD.device) if rows_N is None else rows_N)[:, None]
        self.kv_2BTHK[0, rows_N1, places_NL] = k_NLHK
        self.kv_2BTHK[1, rows_N1, places_NL] = v_NLHK
        kv_2NTHK = self.kv_2BTHK if rows_N is None else self.kv_2BTHK[:, rows_N]
        k_NHTK, v_NHTK = kv_2NTHK.transpose(2, 3).unbind(0)
        o_NHLK = F.scaled_dot_product_attention(q_NLHK.transpose(1, 2), k_NHTK, v_NHTK, attn_mask=seen_NLT[:, None])
        x_NLD = x_NLD + self.out(o_NHLK.transpose(1, 2).flatten(2))
        return x_NLD + self.down(F.gelu(self.up(self.norm2(x_NLD))))


class Decoder(nn.Module):
    """Embedding, blocks and a head: tokens_NL -> logits_NLV."""

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(size.vocab, size.dim), nn.Linear(size.dim, size.vocab, bias=False)
        self.positions = nn.Embedding(length, size.dim)
        self.blocks = nn.ModuleList(Block(size, length) for _ in range(size.layers))
        self.length = length

    def forward(
        self, tokens_NL: torch.Tensor, first_N: torch.Tensor, rows_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        """logits_NLV of new tokens, the first of each row at position ``first_N`` of its text."""
        places_NL = first_N[:, None] + torch.arange(tokens_NL.shape[1], device=tokens_NL.device)
        seen_NLT = torch.arange(self.length, device=tokens_NL.device) <= places_NL[..., None]
        x_NLD = self.embedding(tokens_NL) + self.positions(places_NL)
        for block in self.blocks:
            x_NLD = block(x_NLD, rows_N, places_NL, seen_NLT)
        return self.head(x_NLD)


def build(options: Options, length: int, **other: int) -> Decoder:
    """A decoder on its device; ``other``: numbers of its size that differ. The same seed gives the same weights."""
    torch.manual_seed(options.seed)
    model = Decoder(replace(options.size, **other), length)
    model.eval().to(device=options.device, dtype=getattr(torch, options.dtype))
    return model
