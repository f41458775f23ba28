"""A mixture of experts. Variants of dispatch: ``loop``, ``index_add`` into fixed room, ``grouped_mm``, ``grouped``.

Shapes: B batch, L sequence, T = B * L tokens, D model features, E experts, K experts a token,
R = T * K routed rows, N rows of one expert, C capacity of an expert, F hidden features, S slots.

    python -m perfscope.workloads.moe --variant loop
    python -m perfscope.workloads.moe --variant grouped_mm --size gpu

``index_add`` gives an expert room for ``CAPACITY`` times its fair share and drops what does not fit, as GShard and
the Switch Transformer do; without overflow all compute the same. ``--heads`` is the number of experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.options import Size, parse
from perfscope.workloads.training import train

VARIANTS = ("loop", "index_add", "grouped_mm", "grouped")
SIZES = {
    "tiny": Size(batch=2, seq=16, dim=32, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=128, dim=128, heads=8, layers=2),
    "gpu": Size(batch=8, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}
CHOICES = 2
"""K: experts a token goes to."""
CAPACITY = 2.0
"""Room of an expert over its fair share R / E."""


class Experts(nn.Module):
    """E gated feed-forward networks, their weights stacked; G = 2 * F holds values and gates side by side."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = 2 * size.dim
        self.up_EDG = nn.Parameter(torch.randn(size.heads, size.dim, 2 * hidden) * size.dim**-0.5)
        self.down_EFD = nn.Parameter(torch.randn(size.heads, hidden, size.dim) * hidden**-0.5)


def loop(experts: Experts, x_TD: torch.Tensor, weight_TK: torch.Tensor, expert_TK: torch.Tensor) -> torch.Tensor:
    """One expert after the other, each on the tokens that chose it: y_TD."""
    y_TD = torch.zeros_like(x_TD)
    for expert in range(len(experts.up_EDG)):
        token_N, choice_N = torch.where(expert_TK == expert)  # defect: host_sync, graph_break: waits for N
        h_NF = F.glu(x_TD[token_N] @ experts.up_EDG[expert])
        y_ND = h_NF @ experts.down_EFD[expert] * weight_TK[token_N, choice_N].unsqueeze(-1)
        y_TD = y_TD.index_add(0, token_N, y_ND)
    return y_TD


def index_add(experts: Experts, x_TD: torch.Tensor, weight_TK: torch.Tensor, expert_TK: torch.Tensor) -> torch.Tensor:
    """All experts at once on room of fixed size: no shape depends on the data, so the host never waits: y_TD."""
    count = len(experts.up_EDG)
    capacity = -(-int(CAPACITY * expert_TK.numel()) // count)
    room_SD, slot_R = into_room(x_TD, expert_TK, count, capacity)
    h_ECF = F.glu(room_SD.unflatten(0, (count, capacity)) @ experts.up_EDG)
    return out_of_room((h_ECF @ experts.down_EFD).flatten(0, 1), slot_R, weight_TK)


def into_room(x_TD: torch.Tensor, expert_TK: torch.Tensor, count: int, capacity: int) -> tuple[torch.Tensor, ...]:
    """The rows in the room of their experts, E * C of them, and the slot of each: room_SD, slot_R."""
    choices, expert_R = expert_TK.shape[1], expert_TK.flatten()
    place_R = F.one_hot(expert_R, count).cumsum(0).gather(1, expert_R.unsqueeze(1)).squeeze(1) - 1
    # Row E * C takes what overflows, and is dropped.
    slot_R = torch.where(place_R < capacity, expert_R * capacity + place_R, count * capacity)
    x_RD = x_TD.repeat_interleave(choices, dim=0, output_size=len(x_TD) * choices)
    room_SD = x_TD.new_zeros(count * capacity + 1, x_TD.shape[1]).index_add(0, slot_R, x_RD)
    return room_SD[:-1], slot_R


def out_of_room(y_SD: torch.Tensor, slot_R: torch.Tensor, weight_TK: torch.Tensor) -> torch.Tensor:
    """The rows of each token, weighted and added up: y_TD."""
    y_TKD = F.pad(y_SD, (0, 0, 0, 1))[slot_R].unflatten(0, weight_TK.shape)
    return (weight_TK.unsqueeze(1) @ y_TKD).squeeze(1)


def grouped_mm(experts: Experts, x_TD: torch.Tensor, weight_TK: torch.Tensor, expert_TK: torch.Tensor) -> torch.Tensor:
    """Tokens sorted by expert, one grouped product for all of them; it takes bfloat16 only: y_TD."""
    choices, expert_R = expert_TK.shape[1], expert_TK.flatten()
    order_R = expert_R.argsort(stable=True)
    token_R = order_R // choices
    ends_E = F.one_hot(expert_R, len(experts.up_EDG)).sum(0).cumsum(0).to(torch.int32)
    x_RD = x_TD[token_R].bfloat16()
    h_RF = F.glu(torch._grouped_mm(x_RD, experts.up_EDG.bfloat16(), offs=ends_E))
    y_RD = torch._grouped_mm(h_RF, experts.down_EFD.bfloat16(), offs=ends_E).to(x_TD.dtype)
    return torch.zeros_like(x_TD).index_add(0, token_R, y_RD * weight_TK.flatten()[order_R].unsqueeze(-1))


def grouped(experts: Experts, x_TD: torch.Tensor, weight_TK: torch.Tensor, expert_TK: torch.Tensor) -> torch.Tensor:
    """Tokens sorted by expert, one grouped product in Triton, and back without additions in memory: y_TD."""
    from perfscope.workloads.kernels.grouped import grouped_product

    (tokens, choices), expert_R = expert_TK.shape, expert_TK.flatten()
    order_R = expert_R.argsort(stable=True)
    ends_E = F.one_hot(expert_R, len(experts.up_EDG)).sum(0).cumsum(0).to(torch.int32)
    h_RF = F.glu(grouped_product(x_TD[order_R // choices], experts.up_EDG, ends_E))
    y_RD = grouped_product(h_RF, experts.down_EFD, ends_E)
    y_TKD = y_RD[order_R.argsort()].unflatten(0, (tokens, choices))
    return (weight_TK.unsqueeze(1) @ y_TKD).squeeze(1)


DISPATCH = {"loop": loop, "index_add": index_add, "grouped_mm": grouped_mm, "grouped": grouped}


class Block(nn.Module):
    """Pre-norm feed-forward block whose tokens choose ``CHOICES`` experts each: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.dispatch = DISPATCH[variant]
        self.norm, self.router = nn.LayerNorm(size.dim), nn.Linear(size.dim, size.heads, bias=False)
        self.experts = Experts(size)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        x_TD = self.norm(x_BLD).flatten(0, 1)
        logit_TK, expert_TK = self.router(x_TD).topk(CHOICES, dim=-1)
        y_TD = self.dispatch(self.experts, x_TD, logit_TK.softmax(-1), expert_TK)
        return x_BLD + y_TD.view_as(x_BLD)


if __name__ == "__main__":
    train(Block, parse(__doc__ or "", VARIANTS, SIZES))
