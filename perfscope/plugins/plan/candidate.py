"""One way to run a model on devices: its mesh, micro-batch, checkpoint policy, pipeline schedule and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from math import prod
from typing import Literal

from msgspec import Struct

AXES = ("data", "fsdp", "expert", "context", "tensor", "pipeline")

AxisName = Literal["data", "fsdp", "expert", "context", "tensor", "pipeline"]

Policy = Literal["none", "dots", "full", "own"]
POLICIES: tuple[Policy, ...] = ("none", "dots", "full")
"""As in `perfscope compile --checkpoint`: everything stays, products stay, a layer's input stays.

``own`` is a compiled program's own."""

Schedule = Literal["none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2"]
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")

Precision = Literal["bfloat16", "fp8", "float32"]
PRECISIONS: tuple[Precision, ...] = ("bfloat16", "fp8", "float32")

Offload = Literal["none", "optimizer", "activations"]
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "activations")


class Mesh(Struct, frozen=True, kw_only=True):
    """Devices along each axis; the product is the number of devices.

    ``data``: replicas of the parameters. ``fsdp``: every device has a part of them. ``expert``: devices that share the
    experts. ``context``: devices that share each sequence. ``tensor``: devices that share each matrix, and the sequence
    between the matrices. ``pipeline``: devices that share the layers. Batches are divided among data, fsdp and expert;
    parameters that are not in experts among fsdp, expert and context, and experts among fsdp and context.
    """

    data: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> devices, all axes."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.sizes.values())

    @property
    def batches(self) -> int:
        """Devices, or groups of them, with different sequences."""
        return self.data * self.fsdp * self.expert

    @property
    def shards(self) -> int:
        """Devices among which a parameter outside of experts is divided, besides tensor and pipeline."""
        return self.fsdp * self.expert * self.context

    @property
    def words(self) -> str:
        """``fsdp 8, tensor 8``."""
        named = [f"{axis} {size}" for axis, size in self.sizes.items() if size > 1]
        return ", ".join(named) or "one device"


class Candidate(Struct, frozen=True, kw_only=True):
    """One way to run the model."""

    mesh: Mesh
    micro_batch: int
    """Sequences of one forward on one device (or the devices that share a sequence)."""
    policy: Policy = "none"
    schedule: Schedule = "none"
    chunks: int = 1
    """Pieces of the model on each stage of a pipeline; more than 1 for ``interleaved``."""
    regather: bool = True
    """Whether divided parameters are brought together for every use (ZeRO-3), else once per step and kept (ZeRO-1)."""
    precision: Precision = "bfloat16"
    offload: Offload = "none"
    order: tuple[str, ...] = ()
    """Axes of the mesh from neighbours to distant devices; axes of one device are left out."""

    def words(self) -> str:
        """All of it in a line."""
        return f"{self.mesh.words}, {self.how}"

    @property
    def how(self) -> str:
        """All of it but the mesh."""
        parts = [f"micro-batch {self.micro_batch}", f"checkpoint {self.policy}"]
        if self.mesh.pipeline > 1:
            parts.append(self.schedule + (f" x{self.chunks}" if self.chunks > 1 else ""))
        if self.mesh.shards > 1:
            parts.append("gathered per use" if self.regather else "gathered per step")
        parts += [self.precision] if self.precision != "bfloat16" else []
        parts += [f"{self.offload} on the host"] if self.offload != "none" else []
        return ", ".join(parts)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def meshes(devices: int, most: Mapping[str, int] | None = None) -> Iterator[Mesh]:
    """All meshes whose product is ``devices``. ``most``: largest size of an axis; absent axes are not limited."""
    limits = most or {}

    def rest(axes: tuple[str, ...], left: int, given: dict[str, int]) -> Iterator[Mesh]:
        if not axes:
            if left == 1:
                yield Mesh(**given)
            return
        for size in divisors(left):
            if size <= limits.get(axes[0], size):
                yield from rest(axes[1:], left // size, {**given, axes[0]: size})

    yield from rest(AXES, devices, {})


def strides(mesh: Mesh, order: tuple[str, ...]) -> dict[str, int]:
    """Axis -> distance of neighbours along it, in devices. ``order``: axes from neighbours to distant devices."""
    result, step = {}, 1
    sizes = mesh.sizes
    for axis in order:
        result[axis] = step
        step *= sizes[axis]
    return result


def group_of(mesh: Mesh, order: tuple[str, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Devices that exchange along ``axes``: those that differ from device 0 along no other axis, ascending."""
    steps, sizes = strides(mesh, order), mesh.sizes
    ids = [0]
    for axis in axes:
        if sizes[axis] > 1:
            ids = [first + steps[axis] * index for index in range(sizes[axis]) for first in ids]
    return tuple(sorted(ids))


def orders(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    """All orders of the axes that have more than one device."""
    yield from permutations([axis for axis, size in mesh.sizes.items() if size > 1])
