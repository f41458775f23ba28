"""Training of ``attention`` with its layers divided among processes (pipeline parallelism).

    torchrun --nproc-per-node 4 -m perfscope.workloads.parallel.pipeline
    torchrun --nproc-per-node 4 -m perfscope.workloads.parallel.pipeline --schedule gpipe --defect uneven

A batch passes through the stages in ``--micro`` parts. ``gpipe`` runs all forward passes and then all backward passes
(Huang et al. 2019), ``1f1b`` a backward pass as soon as one is ready, and keeps fewer activations (Narayanan et al.
2021). With p stages and m parts a stage is idle for (p - 1) / (m + p - 1) of a step.

Shapes: B batch, L sequence, D model features, V vocabulary.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from perfscope.workloads import attention, training
from perfscope.workloads.data import batches
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.parallel.processes import processes

VARIANTS = ("sdpa",)
DEFECTS = {"uneven": "give the last stage more layers than the others"}
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
SIZES = {
    "tiny": Size(batch=8, seq=16, dim=64, heads=2, layers=8, vocab=64),
    "cpu": Size(batch=16, seq=64, dim=128, heads=4, layers=8),
    "gpu": Size(batch=64, seq=4096, dim=4096, heads=32, layers=16, vocab=32_000),
}


def layers_of(count: int, stages: int, defects: frozenset[str]) -> list[range]:
    """The layers of each stage."""
    each = count // stages
    if "uneven" in defects:
        each //= 2  # defect: none: `unexplained_idle` names the line where stages wait, longer with it than without
    starts = [stage * each for stage in range(stages)]
    return [range(first, end) for first, end in zip(starts, [*starts[1:], count], strict=True)]


class Stage(nn.Module):
    """Some layers of a language model; the first stage has the embedding, the last one the head."""

    def __init__(self, model: nn.Module, layers: range, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.embedding = model.embedding if is_first else nn.Identity()
        self.blocks = nn.ModuleList(model.blocks[layer] for layer in layers)
        self.end = nn.Sequential(model.norm, model.head) if is_last else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """tokens_BL or x_BLD -> x_BLD or logits_BLV."""
        x_BLD = self.embedding(x)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.end(x_BLD)


def loss_of(logits_BLV: torch.Tensor, tokens_BL: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the tokens in nats, a scalar."""
    return F.cross_entropy(logits_BLV.flatten(0, 1).float(), tokens_BL.flatten())


def train(options: Options, schedule: str, micro: int) -> list[float]:
    """Trains the layers of this process; the last one prints the losses."""
    with processes(options.device) as (rank, count):
        last = count - 1
        model = training.build(attention.Block, options)
        layers = layers_of(options.size.layers, count, options.defects)[rank]
        part = Stage(model, layers, rank == 0, rank == last)
        stage = PipelineStage(part, rank, count, torch.device(options.device))
        run = SCHEDULES[schedule](stage, micro, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(part.parameters(), lr=3e-3, fused=True)
        losses = []
        for tokens_BM in batches(options):
            inputs = (tokens_BM[:, :-1],) if rank == 0 else ()
            parts: list[torch.Tensor] = []
            run.step(*inputs, target=tokens_BM[:, 1:] if rank == last else None, losses=parts)
            optimizer.step()
            optimizer.zero_grad()
            if rank == last:
                losses.append(torch.stack(parts).detach().mean())
        return training.report(losses) if rank == last else []


if __name__ == "__main__":
    parser: argparse.ArgumentParser = parser_of(__doc__ or "", VARIANTS, SIZES, DEFECTS)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--micro", type=int, default=8, help="parts of a batch")
    arguments = parser.parse_args()
    train(options_of(arguments, SIZES), arguments.schedule, arguments.micro)
