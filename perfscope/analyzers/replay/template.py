"""The scripts: fixed text, and one assignment of a checked literal for each name that the text asks for."""

from __future__ import annotations

import pprint
from typing import Any

_MARK = "# assignments\n"


def assignments(template: str, **values: Any) -> str:
    """The template with ``NAME = literal`` for each of ``values``: numbers, checked names, and tuples of these."""
    lines = [f"{name} = {pprint.pformat(value, width=110)}\n" for name, value in values.items()]
    return template.replace(_MARK, "".join(lines))


OP_TEMPLATE = '''"""Benchmark of one op with recorded inputs: python THIS.py [--device cuda] [--repeat 50]."""

import argparse
import statistics
import time

import torch

# assignments


def tensor(dtype, shape, strides, below, device):
    """A tensor of that shape and layout with random content; indices are less than ``below``."""
    kind = getattr(torch, dtype)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if strides and all(shape) else None
    size = (reach,) if reach is not None else shape
    if kind.is_floating_point:
        made = torch.randn(size, dtype=torch.float32, device=device).to(kind)
    elif kind is torch.bool:
        made = torch.randint(0, 2, size, device=device).to(kind)
    else:
        made = torch.randint(0, below or 100, size, device=device).to(kind)
    return made if reach is None else made.as_strided(shape, strides)


def argument(literal, device):
    """The argument that a literal stands for."""
    if literal[0] == "tensor":
        return tensor(*literal[1:], device)
    if literal[0] == "list":
        return [argument(each, device) for each in literal[1]]
    return literal[1]


def times_us(call, device, repeat):
    """Time of each call: between events on a device, else by the clock."""
    results = []
    for _ in range(repeat):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            results.append(1000 * begin.elapsed_time(end))
        else:
            begin = time.perf_counter()
            call()
            results.append(1e6 * (time.perf_counter() - begin))
    return results


def main():
    """Measure, and print beside the recorded time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeat", type=int, default=50)
    options = parser.parse_args()
    with torch.no_grad():
        positional = [argument(each, options.device) for each in ARGUMENTS]
        named = {name: argument(each, options.device) for name, each in NAMED.items()}
        op = getattr(torch.ops.aten, OP)
        times_us(lambda: op(*positional, **named), options.device, 5)
        times = times_us(lambda: op(*positional, **named), options.device, options.repeat)
    middle = statistics.median(times)
    spread = f"{min(times):.1f} to {max(times):.1f}, {len(times)} calls"
    print(f"aten::{OP} on {options.device}: median {middle:.1f} us ({spread})")
    if RECORDED_US:
        print(f"recorded: {RECORDED_US:.1f} us ({RECORDED}); here {middle / RECORDED_US:.2f} times that")
    if CHOSEN:
        print("not recorded, and chosen: parameters", ", ".join(map(str, CHOSEN)))


if __name__ == "__main__":
    main()
'''

COLLECTIVE_TEMPLATE = '''"""Benchmark of one collective with its recorded size: torchrun --nproc-per-node N THIS.py."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

# assignments

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
"""Bus bandwidth over algorithm bandwidth, as nccl-tests counts it."""


def prepare(device, ranks):
    """(the call, elements of the message as nccl-tests counts them)."""
    dtype = getattr(torch, DTYPE)
    split = OPERATION in ("reduce_scatter", "all_to_all")
    elements = max(ELEMENTS // ranks, 1) * ranks if split else ELEMENTS
    given = torch.ones(elements, device=device).to(dtype)
    if OPERATION == "all_reduce":
        return lambda: dist.all_reduce(given), elements
    if OPERATION == "broadcast":
        return lambda: dist.broadcast(given, 0), elements
    if OPERATION == "all_gather":
        parts = [torch.empty_like(given) for _ in range(ranks)]
        return lambda: dist.all_gather(parts, given), elements * ranks
    got = torch.empty(elements // ranks if OPERATION == "reduce_scatter" else elements, dtype=dtype, device=device)
    if OPERATION == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(got, given), elements
    return lambda: dist.all_to_all_single(got, given), elements


def main():
    """Measure on all ranks; the first one prints beside the recorded time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo", choices=("nccl", "gloo"))
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if options.backend == "nccl" else "cpu"
    if options.backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    ranks = dist.get_world_size()
    call, elements = prepare(device, ranks)
    times = []
    for number in range(options.repeat + 5):
        dist.barrier()
        begin = time.perf_counter()
        call()
        if options.backend == "nccl":
            torch.cuda.synchronize()
        if number >= 5:
            times.append(time.perf_counter() - begin)
    middle = statistics.median(times)
    if dist.get_rank() == 0:
        size = elements * getattr(torch, DTYPE).itemsize
        bus = size / middle / 1e9 * FACTORS[OPERATION](ranks)
        print(f"{OPERATION} of {size:,} B, {ranks} ranks, {options.backend}: median {1e6 * middle:.1f} us")
        print(f"algorithm {size / middle / 1e9:.3f} GB/s, bus {bus:.3f} GB/s")
        print(f"recorded with {RANKS or 'an unknown number of'} ranks: {RECORDED_US:.1f} us ({RECORDED})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
