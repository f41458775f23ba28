"""Training of a decoder as Llama has it: RMSNorm, rotary positions, shared keys (GQA), a gate, a large vocabulary.

Variant ``fused`` runs each of these as a kernel of `kernels/`. The others have one of them written out: ``norm``,
``rotary``, ``keys`` (copied for every head), ``loss`` (with logits in memory).

    python -m perfscope.workloads.decoder --variant fused
    python -m perfscope.workloads.decoder --variant loss --size gpu

Shapes: B batch, L sequence, M = L + 1, T = B * L, D model features, H heads, G heads of keys (``SHARED`` heads each),
K features of a head, F = K / 2, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

import perfscope
from perfscope.workloads.data import batches
from perfscope.workloads.kernels.flash import flash_attention
from perfscope.workloads.kernels.loss import linear_cross_entropy
from perfscope.workloads.kernels.norm import EPSILON, rms_norm
from perfscope.workloads.kernels.rotary import angles, rotate
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.training import report

VARIANTS = ("fused", "norm", "rotary", "keys", "loss")
SIZES = {
    "tiny": Size(batch=2, seq=32, dim=64, heads=4, layers=2, vocab=512),
    "cpu": Size(batch=4, seq=256, dim=128, heads=8, layers=2, vocab=8192),
    "gpu": Size(batch=8, seq=4096, dim=4096, heads=32, layers=8, vocab=128_256),
}
SHARED = 4
"""Heads of queries that share a head of keys and values."""


class Norm(nn.Module):
    """RMSNorm: x_BLD -> y_BLD."""

    def __init__(self, features: int, variant: str) -> None:
        super().__init__()
        self.plain = variant == "norm"
        self.weight_D = nn.Parameter(torch.ones(features))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """y_BLD."""
        if self.plain:
            scale_BL1 = torch.rsqrt(x_BLD.float().square().mean(-1, keepdim=True) + EPSILON)  # defect: unfused_ops
            return (x_BLD * scale_BL1).to(x_BLD.dtype) * self.weight_D
        return rms_norm(x_BLD.flatten(0, 1), self.weight_D)[0].view_as(x_BLD)


def plain_rotate(x_BLHK: torch.Tensor, cosine_LF: torch.Tensor, sine_LF: torch.Tensor) -> torch.Tensor:
    """Rotary positions op by op: y_BLHK."""
    first_BLHF, second_BLHF = x_BLHK.chunk(2, dim=-1)
    turned_BLHK = torch.cat((-second_BLHF, first_BLHF), dim=-1)
    cosine_L1K, sine_L1K = cosine_LF.repeat(1, 2)[:, None], sine_LF.repeat(1, 2)[:, None]
    return (x_BLHK * cosine_L1K + turned_BLHK * sine_L1K).to(
        x_BLHK.dtype
    )  # defect: none: ten passes over memory, the kernel makes two


class Attention(nn.Module):
    """Causal attention with rotary positions, G heads of keys and values for H of queries: x_BLD -> y_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.variant, self.heads, self.groups = variant, size.heads, max(1, size.heads // SHARED)
        self.features = size.dim // size.heads
        self.qkv = nn.Linear(size.dim, (self.heads + 2 * self.groups) * self.features, bias=False)
        self.out = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x_BLD: torch.Tensor, cosine_LF: torch.Tensor, sine_LF: torch.Tensor) -> torch.Tensor:
        """y_BLD."""
        heads_BLHK = self.qkv(x_BLD).unflatten(-1, (-1, self.features))
        turned_BLHK, v_BLGK = heads_BLHK.split((self.heads + self.groups, self.groups), dim=2)
        turn = plain_rotate if self.variant == "rotary" else rotate
        q_BLHK, k_BLGK = turn(turned_BLHK, cosine_LF, sine_LF).split((self.heads, self.groups), dim=2)
        if self.variant == "keys":
            k_BLGK = k_BLGK.repeat_interleave(SHARED, dim=2)  # defect: none: a copy for every head
            v_BLGK = v_BLGK.repeat_interleave(SHARED, dim=2)  # defect: none: a copy for every head
        o_BHLK, _ = flash_attention(q_BLHK.transpose(1, 2), k_BLGK.transpose(1, 2), v_BLGK.transpose(1, 2))
        return self.out(o_BHLK.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a gated feed-forward network: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(size.dim, variant), Norm(size.dim, variant)
        self.attention = Attention(size, variant)
        self.up, self.down = (
            nn.Linear(size.dim, 8 * size.dim, bias=False),
            nn.Linear(4 * size.dim, size.dim, bias=False),
        )

    def forward(self, x_BLD: torch.Tensor, cosine_LF: torch.Tensor, sine_LF: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD), cosine_LF, sine_LF)
        return x_BLD + self.down(F.glu(self.up(self.norm2(x_BLD))))


class Decoder(nn.Module):
    """Embedding, blocks and the loss of the next token: tokens_BM -> loss in nats."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        size = options.size
        self.variant = options.variant
        self.embedding = nn.Embedding(size.vocab, size.dim)
        self.blocks = nn.ModuleList(Block(size, options.variant) for _ in range(size.layers))
        self.norm = Norm(size.dim, options.variant)
        self.head = nn.Linear(size.dim, size.vocab, bias=False)
        cosine_LF, sine_LF = angles(size.seq, size.dim // size.heads)
        self.register_buffer("cosine", cosine_LF, persistent=False)
        self.register_buffer("sine", sine_LF, persistent=False)

    def forward(self, tokens_BM: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x_BLD, target_T = self.embedding(tokens_BM[:, :-1]), tokens_BM[:, 1:].flatten()
        for block in self.blocks:
            x_BLD = block(x_BLD, self.cosine, self.sine)
        x_TD = self.norm(x_BLD).flatten(0, 1)
        with perfscope.region("loss"):
            if self.variant == "loss":
                return F.cross_entropy(self.head(x_TD).float(), target_T)  # defect: unfused_ops: logits
            return linear_cross_entropy(x_TD, self.head.weight, target_T)[0]


def build(options: Options) -> Decoder:
    """The model on its device. The same seed gives every variant the same weights."""
    torch.manual_seed(options.seed)
    model = Decoder(options)
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    return model


def train(options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    torch.set_float32_matmul_precision("high")
    model = build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for tokens_BM in batches(options):
        loss = model(tokens_BM)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return report(losses)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, {}).parse_args(argv), SIZES)


if __name__ == "__main__":
    train(parse())
