"""A device, what it can do at most, how it is joined to others of its node, and what usually joins nodes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

TERA = 10**12
GIGA = 10**9


Joined = Literal["switch", "mesh", "torus"]


class Node(Struct, frozen=True, kw_only=True):
    """The largest set of devices that the fast links join."""

    joined: Joined
    """``switch``: each reaches each at full rate. ``mesh``: a link from each to each, so a pair has one of the
    ``ports``. ``torus``: neighbours along each axis; a ring closes where an axis is as long as the vendor wraps."""
    devices: int
    """Devices in it at most: 8 of an HGX board, 72 of NVL72, those of a whole pod."""
    host_devices: int
    """Devices that one host drives, as usually sold."""
    ports: int
    """Links of a device."""
    source: str
    axes: int = 0
    """Of a torus: 2 or 3."""
    reduces: bool = False
    """The switch adds up what passes through it (NVLink SHARP)."""


class UsualNetwork(Struct, frozen=True, kw_only=True):
    """What usually joins nodes of a device. An assumption of every report that uses it: buyers choose their network."""

    link: str
    """A name of the table of links."""
    cards: int
    """Of a node."""
    source: str


class Device(Struct, frozen=True, kw_only=True):
    """Peaks of one product as its vendor states them: dense (never with sparsity), at boost clock."""

    name: str
    vendor: str
    match: str
    """Regular expression over the name the driver reports."""
    peak_flops: Mapping[str, int]
    """FLOP/s of dense matrix products by operand dtype; ``float32`` is without TF32 (``tf32``).

    A dtype that is left out has no matrix unit on this device, or its vendor does not state it (``float32`` on
    TPU, whose matrix units multiply bfloat16).
    """
    memory_bandwidth: int
    """Bytes/s between memory and chip."""
    source: str
    """The vendor's document."""
    link: str | None = None
    """Name of the links to other devices of the same node or slice; None if there are none but PCIe."""
    link_bandwidth: int | None = None
    """Bytes/s a device can send over all these links together, one direction: half of what vendors print as
    bidirectional. A collective over fewer links reaches less."""
    memory_bytes: int | None = None
    """Bytes a program finds on the device: what the driver reports where that is known, else as the data sheet says.

    None where products of one name differ in it."""
    cores: int | None = None
    """SMs, compute units, or TensorCores of what a program sees as one device."""
    clock_hz: int | None = None
    """Boost clock of the cores."""
    l2_bytes: int | None = None
    """Cache that all cores share; AMD: the L2 of all XCDs together, each of which serves its own cores."""
    architecture: str | None = None
    """What compilers call the cores: ``sm_90a``, ``gfx942``; None for TPUs."""
    chip_source: str | None = None
    """Where memory_bytes, cores, clock_hz and l2_bytes are from; None where none of them is known."""
    node: Node | None = None
    """What its links join; None where there are no links but PCIe, or unknown."""
    network: UsualNetwork | None = None
    """What usually joins nodes of it: an assumption, never a fact of the device."""

    @property
    def matrix_dtypes(self) -> tuple[str, ...]:
        """dtypes for training that are faster than ``float32`` here, the closest to it in precision first.

        None where ``float32`` has no peak to compare with.
        """
        plain = self.peak_flops.get("float32")
        if plain is None:
            return ()
        return tuple(name for name in ("tf32", "bfloat16", "float16") if self.peak_flops.get(name, 0) > plain)


def peaks(
    *,
    float32: float | None = None,
    tf32: float | None = None,
    bfloat16: float | None = None,
    float16: float | None = None,
    fp8: float | None = None,
    int8: float | None = None,
) -> dict[str, int]:
    """``peak_flops`` from TFLOP/s (TOP/s of ``int8``) as data sheets print them."""
    stated = {
        "float32": float32, "tf32": tf32, "bfloat16": bfloat16, "float16": float16, "fp8": fp8, "int8": int8,
    }  # fmt: skip
    return {name: round(value * TERA) for name, value in stated.items() if value is not None}
