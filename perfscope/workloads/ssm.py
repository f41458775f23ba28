"""A selective state space model. Recurrences: ``scan`` over time, ``parallel`` by doubling, ``selective`` (a kernel).

Shapes: B batch, L sequence, D channels, N states of a channel.

    python -m perfscope.workloads.ssm --variant scan
    python -m perfscope.workloads.ssm --variant parallel --size gpu

They compute h[t] = a[t] * h[t-1] + u[t]: in L steps of tiny ops, or in log2(L) steps over whole sequences
(Hillis and Steele 1986), or with the states on chip. ``--heads`` is the number of states.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.options import Size, parse
from perfscope.workloads.training import train

VARIANTS = ("scan", "parallel", "selective")
SIZES = {
    "tiny": Size(batch=4, seq=96, dim=16, heads=4, layers=1, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=32, heads=8, layers=2),
    "gpu": Size(batch=8, seq=512, dim=1024, heads=16, layers=2, vocab=4096),
}


def scan(a_BLDN: torch.Tensor, u_BLDN: torch.Tensor) -> torch.Tensor:
    """One step of time after the other: h_BLDN."""
    h_BDN, states = torch.zeros_like(u_BLDN[:, 0]), []
    for a_BDN, u_BDN in zip(a_BLDN.unbind(1), u_BLDN.unbind(1), strict=True):
        h_BDN = a_BDN * h_BDN + u_BDN  # defect: sequential_scan, unfused_ops: two tiny kernels per step of time
        states.append(h_BDN)
    return torch.stack(states, dim=1)


def doubling(a_BLDN: torch.Tensor, u_BLDN: torch.Tensor) -> torch.Tensor:
    """Doubles the stretch of time that every state has absorbed until it reaches the start: h_BLDN."""
    length, reach = u_BLDN.shape[1], 1
    while reach < length:
        late_BLDN = torch.addcmul(u_BLDN[:, reach:], a_BLDN[:, reach:], u_BLDN[:, :-reach])
        u_BLDN = torch.cat((u_BLDN[:, :reach], late_BLDN), dim=1)
        if 2 * reach < length:
            a_BLDN = torch.cat((a_BLDN[:, :reach], a_BLDN[:, reach:] * a_BLDN[:, :-reach]), dim=1)
        reach *= 2
    return u_BLDN


class Parallel(torch.autograd.Function):
    """The recurrence by doubling. Its gradient is the same recurrence, run backwards in time."""

    @staticmethod
    def forward(context: Any, a_BLDN: torch.Tensor, u_BLDN: torch.Tensor) -> torch.Tensor:
        """h_BLDN."""
        h_BLDN = doubling(a_BLDN, u_BLDN)
        context.save_for_backward(a_BLDN, h_BLDN)
        return h_BLDN

    @staticmethod
    def backward(context: Any, dh_BLDN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of a_BLDN and u_BLDN: du[t] = dh[t] + a[t+1] * du[t+1], and da[t] = du[t] * h[t-1]."""
        a_BLDN, h_BLDN = context.saved_tensors
        next_BLDN = F.pad(a_BLDN[:, 1:], (0, 0, 0, 0, 0, 1))
        du_BLDN = doubling(next_BLDN.flip(1), dh_BLDN.flip(1)).flip(1)
        return du_BLDN * F.pad(h_BLDN[:, :-1], (0, 0, 0, 0, 1, 0)), du_BLDN


def parallel(a_BLDN: torch.Tensor, u_BLDN: torch.Tensor) -> torch.Tensor:
    """All of time at once: h_BLDN."""
    return Parallel.apply(a_BLDN, u_BLDN)


RECURRENCE = {"scan": scan, "parallel": parallel}


class Block(nn.Module):
    """Pre-norm block whose states decay depending on the input (selective): x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.variant, self.states = variant, (size.dim, size.heads)
        self.norm = nn.LayerNorm(size.dim)
        self.decay = nn.Linear(size.dim, size.dim * size.heads)
        self.write = nn.Linear(size.dim, size.dim * size.heads)
        self.read = nn.Linear(size.dim, size.heads)
        self.out = nn.Linear(size.dim, size.dim)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        z_BLD = self.norm(x_BLD)
        a_BLDN = torch.sigmoid(self.decay(z_BLD)).unflatten(-1, self.states)
        u_BLDN = self.write(z_BLD).unflatten(-1, self.states)
        if self.variant == "selective":
            from perfscope.workloads.kernels.selective import selective_scan

            y_BLD, _ = selective_scan(a_BLDN, u_BLDN, self.read(z_BLD))
        else:
            y_BLD = (RECURRENCE[self.variant](a_BLDN, u_BLDN) @ self.read(z_BLD).unsqueeze(-1)).squeeze(-1)
        return x_BLD + self.out(y_BLD)


if __name__ == "__main__":
    train(Block, parse(__doc__ or "", VARIANTS, SIZES))
