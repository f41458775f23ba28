"""Training of a transformer whose layers are divided among processes by features (tensor parallelism).

    torchrun --nproc-per-node 4 -m perfscope.workloads.parallel.tensor
    torchrun --nproc-per-node 4 -m perfscope.workloads.parallel.tensor --defect gather

The first product of a pair is divided by its results, the second by its inputs, so that what is between them stays
where it is (Shoeybi et al. 2019): one sum over the processes for each pair, and one in its backward.

Shapes: B batch, L sequence, D model features, H heads of this process, K features of a head, F hidden features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from perfscope.workloads import training
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.parallel.processes import processes

VARIANTS = ("sdpa",)
DEFECTS = {"gather": "ask for whole hidden features between the two products of a perceptron"}
SIZES = {
    "tiny": Size(batch=2, seq=16, dim=64, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=256, dim=256, heads=4, layers=2),
    "gpu": Size(batch=8, seq=4096, dim=4096, heads=32, layers=8, vocab=32_000),
}


class Attention(nn.Module):
    """Causal attention with as many heads as its products have features for: x_BLD -> y_BLD."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.features = size.dim // size.heads
        self.query, self.key, self.value, self.out = (nn.Linear(size.dim, size.dim, bias=False) for _ in range(4))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """y_BLD."""
        q_BHLK, k_BHLK, v_BHLK = (
            product(x_BLD).unflatten(-1, (-1, self.features)).transpose(1, 2)
            for product in (self.query, self.key, self.value)
        )
        o_BHLK = F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, is_causal=True)
        return self.out(o_BHLK.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm transformer block: x_BLD -> x_BLD."""

    def __init__(self, size: Size, variant: str) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(size.dim), Attention(size), nn.LayerNorm(size.dim)
        self.up, self.down = nn.Linear(size.dim, 4 * size.dim), nn.Linear(4 * size.dim, size.dim)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """x_BLD."""
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD))
        h_BLF = F.gelu(self.up(self.norm2(x_BLD)))  # defect: none: gathers, a plan has them
        return x_BLD + self.down(h_BLF)


def plan_of(defects: frozenset[str]) -> dict[str, ParallelStyle]:
    """How each product of a block is divided. By default features stay divided between the products of a pair."""
    gathers, whole = "gather" in defects, (Replicate(),)
    return {
        # One gradient of the input of three products, summed over the processes once.
        "attention": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(output_layouts=Replicate()) if gathers else ColwiseParallel(),
        "down": RowwiseParallel(input_layouts=Replicate()) if gathers else RowwiseParallel(),
    }


def build(options: Options, mesh: DeviceMesh) -> nn.Module:
    """The model of this process; the same seed gives any number of processes the same weights."""
    model = training.build(Block, options)
    for block in model.blocks:
        parallelize_module(block, mesh, plan_of(options.defects))
    return model


def train(options: Options) -> list[float]:
    """Trains on whole batches in each process."""
    with processes(options.device) as (rank, count):
        model = build(options, init_device_mesh(options.device, (count,), mesh_dim_names=("tp",)))
        parameters = list(model.parameters())
        groups = [[one for one in parameters if isinstance(one, DTensor) is divided] for divided in (True, False)]
        optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=3e-3, fused=True)
        losses = []
        for tokens_BM in batches(options):
            loss = training.loss_of(model, tokens_BM)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return training.report(losses) if rank == 0 else []


if __name__ == "__main__":
    train(options_of(parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS).parse_args(), SIZES))
