"""Mamba-2: a state space model with one decay per head. Variants of its recurrence: ``scan`` over time, ``chunks``.

    python -m perfscope.workloads.kernels.ssd --variant scan
    python -m perfscope.workloads.kernels.ssd --variant chunks --size gpu

Both compute h[t] = exp(a[t]) h[t-1] + b[t] x[t] and y[t] = c[t] h[t]: in L steps of small ops, or as products of
matrices over chunks of time (Dao and Gu 2024, state space duality).

Shapes: B batch, L sequence, D model features, H heads, P features of a head, N states of a feature, C chunks, S and R
positions of a chunk.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.options import Size, parse
from perfscope.workloads.training import train

VARIANTS = ("scan", "chunks")
SIZES = {
    "tiny": Size(batch=2, seq=96, dim=32, heads=4, layers=1, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=64, heads=4, layers=2),
    "gpu": Size(batch=8, seq=2048, dim=2048, heads=32, layers=4, vocab=4096),
}
STATES = 16
CHUNK = 64


def scan(x_BLHP: torch.Tensor, a_BLH: torch.Tensor, b_BLN: torch.Tensor, c_BLN: torch.Tensor) -> torch.Tensor:
    """One step of time after the other: y_BLHP."""
    h_BHNP, results = x_BLHP.new_zeros(*x_BLHP[:, 0].shape[:2], STATES, x_BLHP.shape[-1]), []
    for step in range(x_BLHP.shape[1]):
        write_BHNP = b_BLN[:, step, None, :, None] * x_BLHP[:, step, :, None, :]
        h_BHNP = a_BLH[:, step].exp()[..., None, None] * h_BHNP + write_BHNP  # defect: sequential_scan, unfused_ops
        results.append((c_BLN[:, step, None, None] @ h_BHNP).squeeze(2))
    return torch.stack(results, dim=1)


def chunks(x_BLHP: torch.Tensor, a_BLH: torch.Tensor, b_BLN: torch.Tensor, c_BLN: torch.Tensor) -> torch.Tensor:
    """Products inside of each chunk, and of each chunk with the state before it: y_BLHP."""
    length = x_BLHP.shape[1]
    missing = -length % CHUNK
    x_BCHSP = F.pad(x_BLHP, (0, 0, 0, 0, 0, missing)).unflatten(1, (-1, CHUNK)).transpose(2, 3)
    until_BCHS = F.pad(a_BLH, (0, 0, 0, missing)).unflatten(1, (-1, CHUNK)).transpose(2, 3).cumsum(-1)
    b_BC1SN, c_BC1SN = (
        F.pad(z_BLN, (0, 0, 0, missing)).unflatten(1, (-1, CHUNK))[:, :, None] for z_BLN in (b_BLN, c_BLN)
    )
    decay_BCHSR = lower(until_BCHS[..., :, None] - until_BCHS[..., None, :], 0).exp()
    inside_BCHSP = (c_BC1SN @ b_BC1SN.transpose(-2, -1) * decay_BCHSR) @ x_BCHSP
    left_BCHS = (until_BCHS[..., -1:] - until_BCHS).exp()
    made_BCHNP = b_BC1SN.transpose(-2, -1) @ (x_BCHSP * left_BCHS.unsqueeze(-1))
    end_BHC = until_BCHS[..., -1].transpose(1, 2).cumsum(-1)
    before_BHC = F.pad(end_BHC[..., :-1], (1, 0))
    weight_BHCC = lower(before_BHC[..., :, None] - end_BHC[..., None, :], -1).exp()
    state_BHCNP = (weight_BHCC @ made_BCHNP.transpose(1, 2).flatten(3)).unflatten(-1, made_BCHNP.shape[3:])
    outside_BCHSP = c_BC1SN @ state_BHCNP.transpose(1, 2) * until_BCHS.exp().unsqueeze(-1)
    return (inside_BCHSP + outside_BCHSP).transpose(2, 3).flatten(1, 2)[:, :length]


def lower(x: torch.Tensor, diagonal: int) -> torch.Tensor:
    """The lower triangle; minus infinity above it, whose exponential is 0."""
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(diagonal + 1)
    return x.masked_fill(hidden, -math.inf)


RECURRENCE = {"scan": scan, "chunks": chunks}


class Block(nn.Module):
    """Pre-norm block with H heads of a state space: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.recur, self.heads = RECURRENCE[variant], size.heads
        self.parts = (size.dim, STATES, STATES, size.heads)
        self.norm = nn.LayerNorm(size.dim)
        self.into, self.out = nn.Linear(size.dim, sum(self.parts)), nn.Linear(size.dim, size.dim)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        value_BLD, b_BLN, c_BLN, step_BLH = self.into(self.norm(x_BLD)).split(self.parts, dim=-1)
        y_BLHP = self.recur(value_BLD.unflatten(-1, (self.heads, -1)), -F.softplus(step_BLH), b_BLN, c_BLN)
        return x_BLD + self.out(y_BLHP.flatten(2))


if __name__ == "__main__":
    train(Block, parse(__doc__ or "", VARIANTS, SIZES))
