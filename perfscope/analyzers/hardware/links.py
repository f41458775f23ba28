"""What links carry at most, by generation: one direction, in GB/s (10^9 bytes/s), each with its source.

Vendors print both directions added, or bits: here it is always bytes one way. Each was looked up when it was
entered, in the source or in a page that quotes it, but for RoCE, whose rate is its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfscope.analyzers.hardware.device import GIGA

_NVLINK = "nvidia.com/data-center/nvlink, specifications (both directions: "
_PCIE = "PCI-SIG base specification: "
_ETHERNET = "IEEE 802.3, rate in the name; RoCE v2 headers are in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One generation of a link."""

    name: str
    bandwidth: int
    """Bytes/s in one direction of one link, port or card."""
    links: int | None
    """Links of a device at most; None where machines differ (network cards, slots)."""
    source: str

    @property
    def device_bandwidth(self) -> int | None:
        """Bytes/s a device sends over all of them; None where their number differs by machine."""
        return None if self.links is None else self.bandwidth * self.links


def _link(name: str, gigabytes: float, source: str, *, links: int | None = None) -> Link:
    return Link(name=name, bandwidth=round(gigabytes * GIGA), links=links, source=source)


LINKS: tuple[Link, ...] = (
    _link("NVLink 1", 20, "NVIDIA Tesla P100 white paper WP-08019; microway.com: 80 GB/s one way", links=4),
    _link("NVLink 2", 25, _NVLINK + "300 GB/s over 6)", links=6),
    _link("NVLink 3", 25, _NVLINK + "600 GB/s over 12)", links=12),
    _link("NVLink 4", 25, _NVLINK + "900 GB/s over 18)", links=18),
    _link("NVLink 5", 50, _NVLINK + "1,800 GB/s over 18; NVL72: 130 TB/s of 72 GPUs)", links=18),
    _link("NVLink-C2C", 450, "NVIDIA on Grace Hopper: 900 GB/s both directions, GPU to its CPU", links=1),
    _link("PCIe 3 x16", 15.75, _PCIE + "8 GT/s, 128b/130b"),
    _link("PCIe 4 x16", 31.5, _PCIE + "16 GT/s, 128b/130b"),
    _link("PCIe 5 x16", 63, _PCIE + "32 GT/s, 128b/130b"),
    _link("PCIe 6 x16", 121, _PCIE + "64 GT/s, flits of 256 bytes that carry 242"),
    _link("InfiniBand EDR", 12.5, "InfiniBand Trade Association roadmap: 4 lanes, 100 Gb/s"),
    _link("InfiniBand HDR", 25, "InfiniBand Trade Association roadmap: 4 lanes, 200 Gb/s"),
    _link("InfiniBand NDR", 50, "InfiniBand Trade Association roadmap: 4 lanes, 400 Gb/s"),
    _link("InfiniBand XDR", 100, "InfiniBand Trade Association roadmap: 4 lanes, 800 Gb/s"),
    _link("RoCE 100GbE", 12.5, _ETHERNET),
    _link("RoCE 200GbE", 25, _ETHERNET),
    _link("RoCE 400GbE", 50, _ETHERNET),
    _link("RoCE 800GbE", 100, _ETHERNET),
    _link("EFA P5", 12.5, "Amazon EC2 user guide: P5 (8 H100) has 32 network cards, 3,200 Gb/s together"),
    _link("Infinity Fabric CDNA 2", 50, "ROCm documentation, MI250 microarchitecture: 25 GT/s, 16 wide", links=8),
    _link("Infinity Fabric CDNA 3", 64, "AMD Instinct MI300X data sheet: 128 GB/s both ways a link", links=7),
    _link("Infinity Fabric CDNA 4", 76.8, "AMD Instinct MI355X data sheet: 153.6 GB/s both ways a link", links=7),
    _link("ICI v4", 50, "Jouppi et al., ISCA 2023: 50 GB/s each way a link, 3D torus", links=6),
    _link("ICI v5e", 50, "Google Cloud documentation, TPU v5e: 400 GB/s both ways, 4 ports", links=4),
    _link("ICI v5p", 100, "Google Cloud documentation, TPU v5p: 1,200 GB/s both ways, 3D torus", links=6),
    _link("ICI v6e", 100, "Google Cloud documentation, TPU7x, column v6e: 800 GB/s both ways, 2D torus", links=4),
    _link("ICI 7x", 100, "Google Cloud documentation, TPU7x: 1,200 GB/s both ways, 3D torus", links=6),
)
"""A node of EC2 P5 has four cards of ``EFA P5`` a GPU. Between two MI250X GCDs lie one, two or four links."""


def named_link(name: str) -> Link | None:
    """The link a person calls ``name``, in any case and spacing; None if it is not in the table."""
    spelled = _plain(name)
    return next((link for link in LINKS if _plain(link.name) == spelled), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
