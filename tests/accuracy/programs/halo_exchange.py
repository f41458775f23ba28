"""Two ranks divide a grid; each computes only after the other has sent its new border."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, other = dist.get_rank(), 1 - dist.get_rank()
torch.manual_seed(rank)


class Smoother(nn.Module):
    def __init__(self):
        super().__init__()
        self.stencil = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, grid, border):
        whole = torch.cat((grid, border) if rank == 0 else (border, grid), 1)
        for _ in range(6):
            whole = torch.tanh(self.stencil(whole[None])[0])
        return whole[:, :-1] if rank == 0 else whole[:, 1:]


smoother = Smoother()
grid = torch.randn(4, 64, 512)
border = torch.zeros(4, 1, 512)
with torch.inference_mode():
    for _ in range(24):
        if rank == 0:
            grid = smoother(grid, border)
            dist.send(grid[:, -1:].contiguous(), other)
            dist.recv(border, other)
        else:
            dist.recv(border, other)
            grid = smoother(grid, border)
            dist.send(grid[:, :1].contiguous(), other)
dist.destroy_process_group()
