"""Shapes of TPU slices: the one that a number of chips has, along which axes links close to a ring, and its hosts.

Google Cloud documentation (v5e, v6e, v5p: configurations; looked up): slices of the 2D kinds are 1x1, 2x2, 2x4, 4x4,
4x8, 8x8, 8x16, 16x16; of the 3D kinds 2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, then cubes of 4x4x4 side by side.
Google Kubernetes Engine documentation (plan TPUs: machine types; looked up): machines have 1, 4 (2x2) or 8 chips. Those
of 8 (ct5lp-hightpu-8t, ct6e-standard-8t) are v5e's and v6e's 2x4 in one host; larger slices are made of those of 4.
"""

from __future__ import annotations

from math import prod

from perfscope.analyzers.hardware.device import Device
from perfscope.model.errors import UsageError

_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_DEEP = (
    (1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16),
    (8, 16, 16), (16, 16, 16), (16, 16, 24),
)  # fmt: skip


_HOST = 4
"""Chips of a host of every kind, where it is not one of eight."""


def axes_of(device: Device) -> int:
    """2 or 3."""
    return 3 if device.node is not None and device.node.axes == 3 else 2


def default_shape(device: Device, number: int, asked: str = "") -> tuple[int, ...]:
    """The shape of a slice of ``number`` chips as it is usually had; an ``AskedWronglyError`` if there is none."""
    shapes = _DEEP if axes_of(device) == 3 else _FLAT
    found = next((shape for shape in shapes if prod(shape) == number), None)
    if found is None:
        sizes = ", ".join(str(prod(shape)) for shape in shapes[:8])
        raise UsageError(f"--target {asked}: no slice has {number} chips ({sizes}, ...); or give its shape")
    return found


def slice_shape(asked: str, device: Device, sides: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that was written, with as many axes as the chip has; hosts are 2 x 2 chips, or there is one chip."""
    axes = axes_of(device)
    if len(sides) > axes:
        raise UsageError(f"--target {asked}: {device.name} is a torus of {axes} axes, e.g. {_example(axes)}")
    shape = (*sides, *[1] * (axes - len(sides)))
    if any(side < 1 or side > 1 << 16 for side in shape):
        raise UsageError(f"--target {asked}: sides of a slice are 1 and more")
    if prod(shape) > 1 and (shape[0] % 2 or shape[1] % 2):
        raise UsageError(
            f"--target {asked}: a slice is made of 2x2 chips: its first two sides are even, e.g. {_example(axes)}"
        )
    return shape


def host_shape(asked: str, device: Device, shape: tuple[int, ...], hosts: int | None) -> tuple[int, ...]:
    """Chips of one host along x, y and z; ``hosts``: how many somebody asked for, ``None`` for the usual machine."""
    whole, chips = (*shape, *[1] * (3 - len(shape))), prod(shape)
    sizes = {1: whole} if chips <= _HOST else {chips // _HOST: (2, 2, 1)}
    if axes_of(device) == 2 and whole[1] % 4 == 0:
        sizes[chips // 8] = (2, 4, 1)
    if hosts is None:
        return sizes.get(1, (2, 2, 1))
    if hosts not in sizes:
        known = " or ".join(str(number) for number in sorted(sizes))
        raise UsageError(f"--target {asked}: {'x'.join(map(str, shape))} is of {known} hosts, not of {hosts}")
    return sizes[hosts]


def closes(device: Device, side: int) -> bool:
    """Whether the links along an axis of ``side`` chips close to a ring: 16 of the 2D kinds, multiples of 4 in 3D.

    Google Cloud documentation, TPU architecture: cubes of 4x4x4 are joined by optical switches.
    """
    return side == 16 if axes_of(device) == 2 else side % 4 == 0


def _example(axes: int) -> str:
    return "2x4" if axes == 2 else "2x2x1"
