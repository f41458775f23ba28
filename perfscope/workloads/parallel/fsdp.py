"""Training of ``attention`` with its weights divided among processes (FSDP), in micro-batches.

    torchrun --nproc-per-node 4 -m perfscope.workloads.parallel.fsdp
    torchrun --nproc-per-node 4 -m perfscope.workloads.parallel.fsdp --defect accumulate

Each block is gathered before it runs. A step has ``MICRO`` forward and backward passes and one update: gradients are
reduced, and weights divided again, in the last pass only.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from perfscope.workloads import attention, training
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.parallel.processes import processes, summed

VARIANTS = ("sdpa",)
DEFECTS = {"accumulate": "reduce gradients and gather weights in every pass of a step"}
SIZES = {
    "tiny": Size(batch=16, seq=16, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=16, seq=64, dim=256, heads=4, layers=2),
    "gpu": Size(batch=64, seq=2048, dim=4096, heads=32, layers=8, vocab=32_000),
}
MICRO = 4


def build(options: Options, count: int) -> FSDPModule:
    """The model, divided among ``count`` processes; the same seed gives any number of them the same weights."""
    model, mesh = training.build(attention.Block, options), init_device_mesh(options.device, (count,))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, reshard_after_forward="accumulate" in options.defects)
    assert isinstance(model, FSDPModule)
    return model


def train(options: Options) -> list[float]:
    """Trains on this process's part of each batch; the losses are those of whole batches."""
    with processes(options.device) as (rank, count):
        model = build(options, count)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        losses = []
        for tokens_BM in batches(options):
            total = torch.zeros((), device=options.device)
            for number, part_BM in enumerate(tokens_BM.chunk(count)[rank].chunk(MICRO)):
                if "accumulate" not in options.defects:
                    model.set_requires_gradient_sync(number == MICRO - 1)
                    model.set_reshard_after_backward(number == MICRO - 1)
                loss = training.loss_of(model, part_BM) / MICRO
                loss.backward()  # defect: repeated_reductions: in every pass, with --defect accumulate
                total += loss.detach() / count
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
        whole = summed(losses)
        return training.report(whole) if rank == 0 else []


if __name__ == "__main__":
    train(options_of(parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS).parse_args(), SIZES))
