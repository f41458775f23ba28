"""A mixture of experts whose experts are divided among processes: tokens go to them and back by all-to-alls.

Shapes: those of ``moe``; in a process T is its tokens, E all experts, X the experts that it holds, C the room that it
fills for one expert, S the rows that it receives.

    torchrun --nproc-per-node 4 -m perfscope.workloads.experts --expert 4
    torchrun --nproc-per-node 4 -m perfscope.workloads.experts --expert 2 --variant exact --skew 4

``room`` sends as many rows to each expert, and drops those beyond ``--capacity`` times its fair share; ``exact`` sends
what was routed, after an exchange of the counts. ``--skew`` routes to the first experts. All processes divide the
batch. gloo on CPUs, NCCL with ``--device cuda``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from perfscope.workloads import moe
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.parallel.processes import processes, summed
from perfscope.workloads.training import LanguageModel, loss_of, report

VARIANTS = ("room", "exact")
SIZES = {
    "tiny": Size(batch=4, seq=16, dim=32, heads=8, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=128, dim=128, heads=8, layers=2),
    "gpu": Size(batch=32, seq=1024, dim=1024, heads=16, layers=4, vocab=4096),
}


class Experts(moe.Experts):
    """The experts of one process; all draw all of them, so that each seed has the weights of ``moe``."""

    def __init__(self, size: Size, group: dist.ProcessGroup) -> None:
        super().__init__(size)
        count = size.heads // group.size()
        mine = slice(group.rank() * count, (group.rank() + 1) * count)
        self.up_EDG, self.down_EFD = (nn.Parameter(whole[mine].clone()) for whole in (self.up_EDG, self.down_EFD))


class Block(nn.Module):
    """The block of ``moe`` with experts in several processes: x_BLD -> x_BLD, the sequences of this one."""

    def __init__(self, size: Size, variant: str, group: dist.ProcessGroup, skew: float, capacity: float) -> None:
        super().__init__()
        self.dispatch = self.exact if variant == "exact" else self.room
        self.group, self.count, self.capacity = group, size.heads, capacity
        self.norm, self.router = nn.LayerNorm(size.dim), nn.Linear(size.dim, size.heads, bias=False)
        self.register_buffer("bias_E", skew * torch.linspace(1, 0, size.heads), persistent=False)
        self.experts = Experts(size, group)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        x_TD = self.norm(x_BLD).flatten(0, 1)
        logit_TE = self.router(x_TD) + self.bias_E  # defect: none: with --skew; `expert_imbalance` names ranks, no line
        logit_TK, expert_TK = logit_TE.topk(moe.CHOICES, dim=-1)
        return x_BLD + self.dispatch(x_TD, logit_TK.softmax(-1), expert_TK).view_as(x_BLD)

    def room(self, x_TD: torch.Tensor, weight_TK: torch.Tensor, expert_TK: torch.Tensor) -> torch.Tensor:
        """As much room for each expert: y_TD."""
        capacity = -(-int(self.capacity * expert_TK.numel()) // self.count)
        room_SD, slot_R = moe.into_room(x_TD, expert_TK, self.count, capacity)
        held = len(self.experts.up_EDG)
        even = [held * capacity] * self.group.size()
        x_SD = all_to_all_single_autograd(room_SD, even, even, self.group)
        x_XCD = x_SD.unflatten(0, (-1, held, capacity)).transpose(0, 1).flatten(1, 2)
        y_XCD = F.glu(x_XCD @ self.experts.up_EDG) @ self.experts.down_EFD
        y_SD = y_XCD.unflatten(1, (-1, capacity)).transpose(0, 1).flatten(0, 2)
        return moe.out_of_room(all_to_all_single_autograd(y_SD, even, even, self.group), slot_R, weight_TK)

    def exact(self, x_TD: torch.Tensor, weight_TK: torch.Tensor, expert_TK: torch.Tensor) -> torch.Tensor:
        """The routed rows and no others: y_TD."""
        size, expert_R = self.group.size(), expert_TK.flatten()
        order_R = expert_R.argsort(stable=True)
        sent_E = F.one_hot(expert_R, self.count).sum(0)
        got_E = torch.empty_like(sent_E)
        dist.all_to_all_single(got_E, sent_E, group=self.group)
        sent, got = (counts.view(size, -1).sum(1).tolist() for counts in (sent_E, got_E))
        token_R = order_R // expert_TK.shape[1]
        x_SD = all_to_all_single_autograd(x_TD[token_R], got, sent, self.group)
        held = torch.arange(self.count, device=x_TD.device) % len(self.experts.up_EDG)
        back_S, rows = held.repeat_interleave(got_E).argsort(stable=True), got_E.view(size, -1).sum(0).tolist()
        parts = x_SD[back_S].split(rows)
        y_SD = torch.cat([F.glu(part @ up) @ down for part, up, down in
                          zip(parts, self.experts.up_EDG, self.experts.down_EFD, strict=True)])  # fmt: skip
        y_RD = all_to_all_single_autograd(y_SD[back_S.argsort()], sent, got, self.group)
        return torch.zeros_like(x_TD).index_add(0, token_R, y_RD * weight_TK.flatten()[order_R].unsqueeze(-1))


def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, processes: int) -> None:
    """Sums gradients over a group in one exchange, and divides them by the number of all processes."""
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    if group.size() > 1:
        dist.all_reduce(flat, group=group)
    places = flat.div_(processes).split([parameter.numel() for parameter in parameters])
    for parameter, place in zip(parameters, places, strict=True):
        parameter.grad = place.view_as(parameter)


def build(options: Options, mesh: DeviceMesh, skew: float, capacity: float) -> nn.Module:
    """The model of this process. The same seed gives every mesh the same weights."""
    torch.manual_seed(options.seed)
    group = mesh.get_group("expert")
    model = LanguageModel(lambda size, variant: Block(size, variant, group, skew, capacity), options)
    return model.to(device=options.device, dtype=getattr(torch, options.dtype))


def train(options: Options, flags: argparse.Namespace) -> list[float]:
    """Trains on this process's part of the batch; the losses are those of the whole batch."""
    with processes(options.device) as (rank, count):
        shape = flags.data or count // flags.expert, flags.expert
        mesh = init_device_mesh(options.device, shape, mesh_dim_names=("data", "expert"))
        model = build(options, mesh, flags.skew, flags.capacity)
        divided = [weight for name, weight in model.named_parameters() if ".experts." in name]
        whole = [weight for name, weight in model.named_parameters() if ".experts." not in name]
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        losses = []
        for tokens_BM in batches(options):
            loss = loss_of(model, tokens_BM.chunk(count)[rank])
            loss.backward()
            average(whole, dist.group.WORLD, count)
            average(divided, mesh.get_group("data"), count)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach() / count)
        total = summed(losses)
        return report(total) if rank == 0 else []


if __name__ == "__main__":
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, {})
    parser.add_argument("--data", type=int, help="groups of processes that hold all experts; the rest if left out")
    parser.add_argument("--expert", type=int, default=4, help="processes among which the experts are divided")
    parser.add_argument("--skew", type=float, default=0.0, help="added to the router's logit of the first expert")
    parser.add_argument("--capacity", type=float, default=moe.CAPACITY, help="room of an expert over its fair share")
    arguments = parser.parse_args()
    train(options_of(arguments, SIZES), arguments)
