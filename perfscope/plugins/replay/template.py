"""The scripts: fixed text, with one assignment of a checked literal for each name that the text needs."""

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
import importlib
import itertools
import statistics
import time

import torch

# assignments


def tensor(dtype, shape, strides, below, device):
    """A tensor of that shape and layout with made-up content; whole numbers are less than ``below``."""
    kind = getattr(torch, dtype)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if strides and all(shape) else None
    size = (reach,) if reach is not None else shape
    if kind.is_complex:
        made = torch.randn(size, dtype=kind, device=device)
    elif kind.is_floating_point:
        made = torch.randn(size, dtype=torch.float32, device=device).to(kind)
    else:
        made = torch.randint(0, 2 if kind is torch.bool else below, size, device=device).to(kind)
    return made if reach is None else made.as_strided(shape, strides)


def fits(parameter, given, strictly):
    """Whether a recorded input can be that of a parameter; strictly: where the profiler recorded all values."""
    kind, what = str(parameter.type), given[0]
    if what == "tensor":
        return kind in ("Tensor", "Optional[Tensor]")
    if what == "tensors":
        return "List[" in kind and "Tensor" in kind
    if what == "value":
        return "Tensor" not in kind and "str" not in kind and isinstance(given[1], list) == ("List[" in kind)
    return kind != "Tensor" and not (strictly and kind in ("bool", "int", "float", "number"))


def overload(namespace, name):
    """The overload that the recorded inputs are of, and all of them by parameter."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if not hasattr(packet, "overloads"):  # missing, an attribute of Python, or an operator that takes functions
        raise SystemExit(f"this torch has no op {OP}; --import the package that registers it")
    overloads = [getattr(packet, each) for each in packet.overloads()]
    for strictly, beyond in itertools.product((True, False), range(8)):  # a newer torch may have more parameters
        inputs = [*INPUTS, *[("unknown",)] * beyond]
        for each in overloads:
            parameters = each._schema.arguments
            if len(inputs) == len(parameters) and all(map(fits, parameters, inputs, [strictly] * len(inputs))):
                return each, parameters, inputs
    raise SystemExit(f"no overload of {OP} in torch {torch.__version__} takes the recorded inputs")


def limit(parameter, given):
    """What whole numbers of a tensor stay below: what indices go to, else the smallest dimension of all inputs."""
    if INDICES and parameter == INDICES[0]:
        owner, dimension = given.get(INDICES[1], ()), INDICES[2]
        if isinstance(dimension, str):
            dimension = given.get(dimension, (None, 0))[1]
        if owner[:1] == ("value",) and dimension is None:
            return max(owner[1], 1)
        if owner[:1] == ("tensor",) and owner[2]:
            return max(owner[2][dimension], 1)
    extents = [extent for each in given.values() if each[0] == "tensor" for extent in each[2] if extent > 1]
    return min([100, *extents])


GUESSES = {"eps": 1e-5, "momentum": 0.1, "p": 0.1, "training": True, "train": True, "cudnn_enabled": True}
"""Of parameters whose values older profilers did not record."""


def guess(parameter, kind):
    """A value of a parameter that has no default."""
    if parameter.name == "normalized_shape":
        return next((list(each[2]) for each in INPUTS[1:] if each[0] == "tensor"), None)
    if parameter.name == "dim":
        return [-1] if "List[" in kind else -1
    return GUESSES.get(parameter.name, {"bool": False, "int": 1, "float": 1.0, "number": 1}.get(kind))


def argument(parameter, given, inputs, device):
    """(value of a parameter, whether it was recorded)."""
    kind, what = str(parameter.type), given[0]
    below = limit(parameter.name, inputs)
    if what == "tensor":
        return tensor(*given[1:], below, device), True
    if what == "tensors":
        return [tensor(*each[1:], below, device) for each in given[1]], True
    if what == "value":
        return given[1], True
    if "Device" in kind:
        return device, True
    if kind.startswith("Optional[") and "str" not in kind:
        return None, True
    value = parameter.default_value if parameter.has_default_value() else guess(parameter, kind)
    if value is None and not kind.startswith("Optional["):
        raise SystemExit(f"{OP} cannot be replayed: the trace does not have its parameter {parameter.name}")
    return value, False


def prepare(device):
    """(the call, parameters that were not recorded with what is taken for them)."""
    op, parameters, given = overload(*OP.split("::"))
    inputs = {parameter.name: each for parameter, each in zip(parameters, given)}
    positional, named, chosen = [], {}, []
    for parameter, each in zip(parameters, given):
        value, known = argument(parameter, each, inputs, device)
        if not known:
            chosen.append(f"{parameter.name}={value}")
        if parameter.kwarg_only:
            named[parameter.name] = value
        else:
            positional.append(value)
    return lambda: op(*positional, **named), chosen


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
    """Measure, and print the recorded time too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--import", dest="packages", action="append", default=[], help="that registers the op")
    options = parser.parse_args()
    for package in options.packages:
        importlib.import_module(package)
    with torch.no_grad():
        try:
            call, chosen = prepare(options.device)
        except (RuntimeError, MemoryError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise SystemExit(f"the inputs of {OP} cannot be made on {options.device}: {said}")
        try:
            times_us(call, options.device, 5)
        except Exception as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise SystemExit(f"{OP} cannot be called with such inputs: {said}")
        times = times_us(call, options.device, options.repeat)
    middle = statistics.median(times)
    spread = f"{min(times):.1f} to {max(times):.1f}, {len(times)} calls"
    print(f"{OP} on {options.device}: median {middle:.1f} us ({spread})")
    if RECORDED_US:
        print(f"recorded: {RECORDED_US:.1f} us ({RECORDED}); here {middle / RECORDED_US:.2f} times that")
    if chosen:
        print("not recorded, and chosen:", ", ".join(chosen))


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
    """Measure on all ranks; the first prints the result and the recorded time."""
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
