"""A script that measures what decides between the meshes of a plan: their exchanges and the products of a layer.

It runs for a minute under `perfscope run`; the recording is one for ``--calibrate``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from perfscope.plugins.plan.candidate import Mesh
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.document import Plan

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
"""Collectives that the script measures; sends between stages are few."""
MOST = 24
LARGEST = 1 << 30
"""Bytes of the largest exchange: larger ones take as long per byte."""

_SCRIPT = '''\
"""Exchanges and products of a plan. On two nodes of {node} devices:

    perfscope run torchrun --nnodes 2 --nproc-per-node {node} ... {name}
    perfscope plan ... --calibrate latest
"""

import os

import perfscope
import torch
import torch.distributed as dist

EXCHANGES = {exchanges}
"""(kind, bytes of the whole array, devices, nodes)"""
PRODUCTS = {products}
"""(rows, inner, columns)"""

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if GPU else torch.device("cpu")
SHRINK = 1 if GPU else 4096  # without GPUs: a rehearsal


def exchange(kind, size, group, count):
    each = max(1, size // SHRINK // 2 // count)
    part = torch.zeros(each, dtype=torch.bfloat16, device=DEVICE)
    whole = torch.zeros(each * count, dtype=torch.bfloat16, device=DEVICE)
    if kind == "all-gather":
        dist.all_gather_into_tensor(whole, part, group=group)
    elif kind == "reduce-scatter":
        dist.reduce_scatter_tensor(part, whole, group=group)
    elif kind == "all-to-all":
        dist.all_to_all_single(torch.empty_like(whole), whole, group=group)
    else:
        dist.all_reduce(whole, group=group)


def main():
    if GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if GPU else "gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = {{}}
    for kind, size, count, nodes in EXCHANGES:
        # neighbours inside a node, or devices a node apart
        step = 1 if nodes == 1 or count >= world else world // count
        if count <= world and world % (count * step) == 0 and (count, step) not in groups:
            lines = [[first + block + step * index for index in range(count)]
                     for block in range(0, world, count * step) for first in range(step)]
            made = [dist.new_group(line) for line in lines]
            groups[count, step] = next(group for group, line in zip(made, lines) if rank in line)
    wide = [(torch.zeros(max(1, rows // (1 if GPU else 64)), inner, dtype=torch.bfloat16, device=DEVICE),
             torch.zeros(inner, columns, dtype=torch.bfloat16, device=DEVICE)) for rows, inner, columns in PRODUCTS]
    for _ in range(30):
        for left, right in wide:
            left @ right
        for kind, size, count, nodes in EXCHANGES:
            step = 1 if nodes == 1 or count >= world else world // count
            if (count, step) in groups:
                exchange(kind, size, groups[count, step], count)
        perfscope.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def measure_script(plan: Plan, model: Decoder, node: int, name: str) -> str:
    """The script for the first meshes of a plan. ``node``: devices of a node; ``name``: of the file."""
    exchanges = sorted(set(_exchanges(plan)), key=lambda one: -one[1])[:MOST]
    products = sorted({size for row in plan.candidates[:3] for size in _products(model, row.candidate.mesh,
                       row.candidate.micro_batch * plan.sequence // row.candidate.mesh.context)})  # fmt: skip
    return _SCRIPT.format(
        node=node, name=name, exchanges=json.dumps(exchanges).replace("], [", "],\n             ["),
        products=json.dumps(products),
    )  # fmt: skip


def _exchanges(plan: Plan) -> Iterator[tuple[str, int, int, int]]:
    for row in plan.candidates[:3]:
        for one in row.exchanges:
            if one.exchange.kind in KINDS and one.devices > 1:
                yield one.exchange.kind, min(one.exchange.bytes, LARGEST), one.devices, one.nodes


def _products(model: Decoder, mesh: Mesh, tokens: int) -> Iterator[tuple[int, int, int]]:
    """Products of a layer, forward; those of experts are of the sizes of one expert."""
    features = (model.expert_ffn if model.experts else model.ffn) // mesh.tensor
    yield tokens, model.hidden, (model.queries + 2 * model.keys) // mesh.tensor
    yield tokens, model.hidden, features
    yield tokens, features, model.hidden
