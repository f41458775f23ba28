"""A device: its peaks, its links to other devices of the node, and the usual network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

TERA = 10**12
GIGA = 10**9


Joined = Literal["switch", "mesh", "torus"]


class Node(Struct, frozen=True, kw_only=True):
    """The largest set of devices that are joined by fast links."""

    joined: Joined
    """``switch``: every pair communicates at full rate. ``mesh``: one link per pair, so a pair has one of the
    ``ports``. ``torus``: neighbours along each axis; an axis closes to a ring at the length at which the vendor wraps
    it.
    """
    devices: int
    """Maximum number of devices: 8 for an HGX board, 72 for NVL72, the whole pod for TPUs."""
    host_devices: int
    """Devices driven by one host, as usually sold."""
    ports: int
    """Number of links per device."""
    source: str
    axes: int = 0
    """Number of axes of a torus: 2 or 3."""
    reduces: bool = False
    """Whether the switch sums the data that passes through it (NVLink SHARP)."""


class UsualNetwork(Struct, frozen=True, kw_only=True):
    """The usual network between nodes of a device.

    Every report that uses it names it as an assumption: buyers choose their network.
    """

    link: str
    """Name in the table of links."""
    cards: int
    """Network cards per node."""
    source: str


class Device(Struct, frozen=True, kw_only=True):
    """Peaks of one product as its vendor states them: dense (without sparsity), at boost clock."""

    name: str
    vendor: str
    match: str
    """Regular expression for the name that the driver reports."""
    peak_flops: Mapping[str, int]
    """Dense matrix FLOP/s by operand dtype; ``float32`` excludes TF32 (``tf32``).

    A missing dtype has no matrix unit on this device, or its vendor does not state the rate (``float32`` on TPU, whose
    matrix units multiply bfloat16).
    """
    memory_bandwidth: int
    """Bytes/s between memory and chip."""
    source: str
    """Document of the vendor."""
    link: str | None = None
    """Name of the links to other devices of the same node or slice; None if there is only PCIe."""
    link_bandwidth: int | None = None
    """Bytes/s that a device can send over all these links together, in one direction: half of the bidirectional rate
    that vendors print. A collective that uses fewer links is slower.
    """
    memory_bytes: int | None = None
    """Memory available to a program, bytes: as the driver reports it if known, else as in the data sheet.

    None if products with this name have different amounts.
    """
    cores: int | None = None
    """SMs, compute units, or TensorCores of the unit that a program sees as one device."""
    clock_hz: int | None = None
    """Boost clock of the cores."""
    l2_bytes: int | None = None
    """Bytes of the cache that all cores share; for AMD, the L2 of all XCDs together, each of which serves its own
    cores.
    """
    architecture: str | None = None
    """Compiler name of the cores: ``sm_90a``, ``gfx942``; None for TPUs."""
    chip_source: str | None = None
    """Source of memory_bytes, cores, clock_hz and l2_bytes; None if all of these are unknown."""
    node: Node | None = None
    """Devices joined by its links; None if there is only PCIe, or if unknown."""
    network: UsualNetwork | None = None
    """Usual network between nodes of this device: an assumption, not a property of the device."""

    @property
    def matrix_dtypes(self) -> tuple[str, ...]:
        """Return the training dtypes that are faster than ``float32`` on this device, closest in precision first.

        Empty if ``float32`` has no peak to compare with.
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
