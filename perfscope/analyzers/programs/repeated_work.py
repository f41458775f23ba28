"""Number of devices of a partitioned program that compute the same values.

Devices compute the same if they get the same parts of all arguments and the program does not use the number of its
device. The part of an argument that a device gets follows from the argument's sharding in the compiled program.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo import HloModule, Instruction, ModuleCost, Shape, costs
from perfscope.model.trace import Trace

_TILED = re.compile(
    r"\{devices=\[([0-9,]{1,100})\](?:<=\[([0-9,]{1,100})\](?:T\(([0-9,]{1,100})\))?|([0-9,]{1,20000}))"
    r"( last_tile_dim_replicate)?\}"
)
_REPLICATED = "{replicated}"

MOST_DEVICES = 1 << 16
"""Maximum number of devices per program."""


class RepeatedWork(Struct, frozen=True, kw_only=True):
    """A program in which groups of devices compute the same."""

    cost: ModuleCost
    devices: int
    times: int
    """Number of devices that compute each value: all of them if no argument is divided."""
    divided: tuple[str, ...]
    """Arguments that are divided among devices, by name."""
    data: tuple[str, ...]
    """Undivided arguments with a shape that no result has, largest first: batches, not weights."""


def repeated_work(trace: Trace) -> tuple[RepeatedWork, ...]:
    """Return the programs with several devices in which more than one device computes each value."""
    return tuple(found for cost in trace.fact(costs) if (found := _of(cost)) is not None)


def _of(cost: ModuleCost) -> RepeatedWork | None:
    module = cost.module
    devices = module.num_partitions
    if not 1 < devices <= MOST_DEVICES or _uses_device_number(module):
        return None
    parameters = [one for one in module.entry_computation().instructions if one.opcode == "parameter"]
    parts = {one.name: tile_of_devices(one.attributes.get("sharding", ""), devices) for one in parameters}
    if not parameters or any(part is None for part in parts.values()):
        return None  # unknown sharding
    rows = np.stack([part for part in parts.values() if part is not None], axis=1)
    times = min(Counter(map(bytes, np.ascontiguousarray(rows))).values())
    if times < 2:
        return None
    whole = {name for name, part in parts.items() if part is not None and not part.any()}
    returned = {(part.dtype, part.dims) for part in _parts(module.entry_computation().root.shape)}
    data = sorted(
        (one for one in parameters if one.name in whole and (one.shape.dtype, one.shape.dims) not in returned),
        key=lambda one: -one.shape.bytes,
    )
    divided = [one for one in parameters if one.name not in whole]
    return RepeatedWork(cost=cost, devices=devices, times=times, divided=_names(divided), data=_names(data))


def _names(parameters: list[Instruction]) -> tuple[str, ...]:
    """Return the names of the function's arguments, without the path to a leaf; each once."""
    return tuple(dict.fromkeys(re.split(r"[.\[]", one.op_name, maxsplit=1)[0] for one in parameters if one.op_name))


def _parts(shape: Shape) -> tuple[Shape, ...]:
    return shape.parts if shape.dtype == "tuple" else (shape,)


def _uses_device_number(module: HloModule) -> bool:
    """Whether the program computes with the number of its device, for example to slice its own part of a value."""
    return any(one.opcode in ("partition-id", "replica-id") for _, one in module.instructions())


def tile_of_devices(sharding: str, devices: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """Return the number of each device's part; ``None`` for empty or unknown text.

    ``{devices=[2,1,4]<=[4,2]T(1,0)}``: 8 parts, devices in the order of that iota. With ``last_tile_dim_replicate`` the
    devices along the last dimension get the same part.
    """
    if sharding == _REPLICATED:
        return np.zeros(devices, np.int64)
    match = _TILED.fullmatch(sharding)
    if match is None:
        return None
    tiles = _ints(match[1])
    order = _ints(match[4]) if match[4] else _iota(_ints(match[2]), _ints(match[3] or ""))
    if not order or math.prod(tiles) != devices or sorted(order) != list(range(devices)):
        return None
    part = np.empty(devices, np.int64)
    part[order] = np.arange(devices) // (tiles[-1] if match[5] else 1)
    return part


def _iota(dims: list[int], transposed: list[int]) -> list[int]:
    total = math.prod(dims)
    if not 0 < total <= MOST_DEVICES or (transposed and sorted(transposed) != list(range(len(dims)))):
        return []
    ids = np.arange(total).reshape(dims)
    return [int(number) for number in (ids.transpose(transposed) if transposed else ids).ravel()]


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
