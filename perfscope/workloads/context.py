"""Causal attention on sequences that are divided among processes (context parallelism).

Shapes: those of ``attention``; N positions of all processes, C half of the positions of one.

    torchrun --nproc-per-node 4 -m perfscope.workloads.context
    torchrun --nproc-per-node 4 -m perfscope.workloads.context --split zigzag
    torchrun --nproc-per-node 4 -m perfscope.workloads.context --split zigzag --variant ring

``sdpa``: keys and values of all positions are gathered in each layer (Llama Team 2024, section 3.3.2), and each process
computes attention of its positions to those before them. ``ring``: they pass by (`parallel/ring.py`). With
``contiguous`` each process has a piece of the sequence: the later the piece, the more keys it sees. With ``zigzag`` it
has a piece from the start and one from the end: as many keys for all.
gloo on CPUs, NCCL with ``--device cuda``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd

from perfscope.workloads import attention
from perfscope.workloads.data import batches
from perfscope.workloads.experts import average
from perfscope.workloads.options import Options, Size, options_of, parser_of
from perfscope.workloads.parallel.processes import processes, summed
from perfscope.workloads.parallel.ring import Ring
from perfscope.workloads.training import LanguageModel, report

VARIANTS = ("sdpa", "ring")
SPLITS = ("contiguous", "zigzag")
SIZES = {
    "tiny": Size(batch=2, seq=32, dim=64, heads=2, layers=2, vocab=64),
    "cpu": Size(batch=1, seq=2048, dim=128, heads=4, layers=2),
    "gpu": Size(batch=1, seq=65536, dim=4096, heads=32, layers=4, vocab=4096),
}


def pieces_of(split: str, rank: int, processes: int) -> tuple[int, int]:
    """The two of ``2 * processes`` equal pieces of a sequence that a process has."""
    if split == "zigzag":
        return rank, 2 * processes - 1 - rank
    return 2 * rank, 2 * rank + 1  # defect: none: `context_parallel_imbalance` names ranks, no line


def owners_of(split: str, processes: int) -> list[tuple[int, int]]:
    """The pieces of each process."""
    return [pieces_of(split, rank, processes) for rank in range(processes)]


def attend(
    q_BHLK: torch.Tensor, k_BHLK: torch.Tensor, v_BHLK: torch.Tensor, *, split: str, group: dist.ProcessGroup
) -> torch.Tensor:
    """Attention of the positions of this process to all before them: o_BHLK."""
    rank, processes = group.rank(), group.size()
    whole_NBHK = all_gather_tensor_autograd(torch.cat([k_BHLK, v_BHLK]).movedim(2, 0).contiguous(), 0, group)
    parts = whole_NBHK.chunk(2 * processes)
    owners = [piece for pieces in owners_of(split, processes) for piece in pieces]
    ordered = torch.cat([parts[owners.index(piece)] for piece in range(2 * processes)])
    k_BHNK, v_BHNK = ordered.movedim(0, 2).chunk(2)
    half = q_BHLK.shape[2] // 2
    results = []
    for piece, q_BHCK in zip(pieces_of(split, rank, processes), q_BHLK.chunk(2, dim=2), strict=True):
        seen = (piece + 1) * half
        mask_CN = torch.ones(half, seen, dtype=torch.bool, device=q_BHLK.device).tril(seen - half)
        k_BHMK, v_BHMK = k_BHNK[:, :, :seen], v_BHNK[:, :, :seen]
        results.append(F.scaled_dot_product_attention(q_BHCK, k_BHMK, v_BHMK, attn_mask=mask_CN))
    return torch.cat(results, dim=2)


def ring(
    q_BHLK: torch.Tensor, k_BHLK: torch.Tensor, v_BHLK: torch.Tensor, *, split: str, group: dist.ProcessGroup
) -> torch.Tensor:
    """The same with keys and values that pass by: o_BHLK."""
    o_BHLK: torch.Tensor = Ring.apply(q_BHLK, k_BHLK, v_BHLK, owners_of(split, group.size()), group)
    return o_BHLK


def build(options: Options, split: str) -> nn.Module:
    """The model of this process; the same seed gives all the same weights, those of ``attention``."""
    torch.manual_seed(options.seed)
    model = LanguageModel(attention.Block, replace(options, variant="sdpa"))
    for block in model.blocks:
        chosen = ring if options.variant == "ring" else attend
        block.attention.attend = partial(chosen, split=split, group=dist.group.WORLD)
    return model.to(device=options.device, dtype=getattr(torch, options.dtype))


def train(options: Options, split: str) -> list[float]:
    """Trains on this process's positions of every sequence; the losses are those of whole sequences."""
    with processes(options.device) as (rank, count):
        model = build(options, split)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        mine, losses = pieces_of(split, rank, count), []
        for tokens_BM in batches(options):
            parts = [part_BM.chunk(2 * count, dim=1) for part_BM in (tokens_BM[:, :-1], tokens_BM[:, 1:])]
            tokens_BL, next_BL = (torch.cat([pieces[piece] for piece in mine], dim=1) for pieces in parts)
            loss = F.cross_entropy(model(tokens_BL).flatten(0, 1).float(), next_BL.flatten()) / count
            loss.backward()
            average(list(model.parameters()), dist.group.WORLD, 1)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        whole = summed(losses)
        return report(whole) if rank == 0 else []


if __name__ == "__main__":
    parser: argparse.ArgumentParser = parser_of(__doc__ or "", VARIANTS, SIZES, {})
    parser.add_argument("--split", choices=SPLITS, default=SPLITS[0], help="positions of a process")
    arguments = parser.parse_args()
    train(options_of(arguments, SIZES), arguments.split)
