"""Links of a user's machines from a TOML file: ranks that share a node, the links inside it, and the network.

::

    [node]
    ranks = 8                      # ranks that these links connect: 0-7, 8-15, ...
    members = [[0, 2], [1, 3]]     # instead of ``ranks``: the ranks of each node
    link = "NVLink 4"              # these three keys belong together
    bandwidth_GB_per_s = 450       # bandwidth of one device in one direction
    source = "data sheet of ..."

    [network]                      # between the nodes; optional
    link = "InfiniBand NDR"        # known names need neither of the last two keys
    cards = 8                      # network cards of a node that carry collectives
    rails = 8                      # separate networks of the cards; optional
    bandwidth_GB_per_s = 50        # bandwidth of one card in one direction
    source = "data sheet of ..."
"""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from pathlib import Path

from msgspec import Struct

from perfscope.analyzers.devices.device import GIGA, Device
from perfscope.analyzers.devices.user_table import UserTable, read_user_table
from perfscope.model.errors import UsageError

_NVLINK = "nvidia.com/data-center/nvlink, specifications (both directions: "
_PCIE = "PCI-SIG base specification: "
_ETHERNET = "IEEE 802.3, rate in the name; RoCE v2 headers are in it"

KEYS = ("ranks", "members", "link", "bandwidth_GB_per_s", "source")

NETWORK_KEYS = ("link", "cards", "rails", "bandwidth_GB_per_s", "source")

_TOGETHER = ("link", "bandwidth_GB_per_s", "source")

_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))

_DEEP = (
    (1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16),
    (8, 16, 16), (16, 16, 16), (16, 16, 24),
)  # fmt: skip

_HOST = 4
"""Chips per host, except for hosts with eight."""


# Peak rate of links by generation: one direction, in GB/s (10^9 bytes/s), each with its source.
# Vendors print the sum of both directions, or bits; these values are bytes in one direction. Each was verified in the
# source or in a page that quotes it, except RoCE, whose rate is its name.


class Link(Struct, frozen=True, kw_only=True):
    """One generation of a link."""

    name: str
    bandwidth: int
    """Bytes/s of one link, port or card in one direction."""
    links: int | None
    """Maximum number of links per device; None if machines differ (network cards, slots)."""
    source: str


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
"""An EC2 P5 node has four ``EFA P5`` cards per GPU. Two MI250X GCDs are joined by one, two or four links."""


def named_link(name: str) -> Link | None:
    """Return the link called ``name``, in any case and spacing; None if it is not in the table."""
    spelled = _plain(name)
    return next((link for link in LINKS if _plain(link.name) == spelled), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Network(Struct, frozen=True, kw_only=True):
    """Network between the nodes of a job."""

    link: str
    cards: int
    """Network cards per node."""
    card_bandwidth: float
    """Bytes/s that one card sends in one direction."""
    source: str
    rails: int | None = None
    """Number of separate networks over which the cards and ranks of a node are spread evenly; None if not specified."""

    def bandwidth(self, ranks: int, of: int) -> float:
        """Return the bytes/s that ``ranks`` of a node's ``of`` ranks send to other nodes, over the cards next to them.

        A rank uses the cards of its rail, or its share of the cards; at least one card.
        """
        if self.rails is not None:
            return self.card_bandwidth * self.cards * min(ranks, self.rails) / self.rails
        return self.card_bandwidth * max(1.0, self.cards * ranks / of)


class Topology(Struct, frozen=True, kw_only=True):
    """Nodes of a job as the user specifies them."""

    ranks: int
    """Ranks per node: ranks 0 to ``ranks - 1`` are the first node. With ``members``: ranks of the largest node."""
    members: tuple[tuple[int, ...], ...] = ()
    """Ranks of each node; empty if they follow from ``ranks``."""
    link: str | None = None
    """Link between the ranks; None to use the link of the device table."""
    link_bandwidth: float | None = None
    """Bytes/s that one device sends over its links in one direction."""
    source: str | None = None
    """Source of that rate."""
    network: Network | None = None

    def node_of(self, rank: int) -> int | None:
        """Number of the node of a rank; None for a rank that is not in ``members``."""
        if not self.members:
            return rank // self.ranks
        return next((node for node, ranks in enumerate(self.members) if rank in ranks), None)


def read_topology(path: str | Path) -> Topology:
    """Read a topology from a file. ``UsageError`` in one line for invalid content."""
    file = read_user_table(path, "--topology", ("node", "network"))
    if "node" not in file:
        raise UsageError(f"{file.where}: has no [node]")
    node = file.table("node", KEYS)
    ranks, members = _ranks(node)
    network = read_network(file) if "network" in file else None
    given = [key for key in _TOGETHER if key in node]
    if not given:
        return Topology(ranks=ranks, members=members, network=network)
    absent = next((key for key in _TOGETHER if key not in node), None)
    if absent is not None:
        raise node.error(absent, f"is missing: node.{given[0]} requires it")
    return Topology(
        ranks=ranks,
        members=members,
        link=node.text("link"),
        link_bandwidth=node.rate("bandwidth_GB_per_s") * GIGA,
        source=node.text("source"),
        network=network,
    )


def _ranks(node: UserTable) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return the ranks per node, and the ranks of each node if the file lists them."""
    if "members" not in node:
        return node.count("ranks"), ()
    if "ranks" in node:
        raise UsageError(f"{node.where}: node.ranks and node.members exclude each other: give one of them")
    members = node["members"]
    nodes = members if isinstance(members, list) else []
    sound = [isinstance(ranks, list) and ranks and all(type(rank) is int and rank >= 0 for rank in ranks)
             for ranks in nodes]  # fmt: skip
    if not nodes or not all(sound):
        raise node.error("members", "must be a list of the ranks of each node")
    counts = Counter(rank for ranks in nodes for rank in ranks)
    twice = next((rank for rank, count in counts.items() if count > 1), None)
    if twice is not None:
        raise node.error("members", f"names rank {twice} twice")
    return max(map(len, nodes)), tuple(tuple(sorted(ranks)) for ranks in nodes)


def read_network(file: UserTable) -> Network:
    """Read the table ``network`` of a file."""
    user_table = file.table("network", NETWORK_KEYS)
    link, cards = user_table.text("link"), user_table.count("cards")
    rails = user_table.count("rails") if "rails" in user_table else None
    if rails is not None and cards % rails:
        raise user_table.error("cards", "must be a multiple of network.rails")
    known = named_link(link)
    if "bandwidth_GB_per_s" in user_table:
        speed, source = user_table.rate("bandwidth_GB_per_s") * GIGA, user_table.text("source")
    elif known is None:
        names = ", ".join(link.name for link in LINKS if link.links is None)
        raise UsageError(
            f"{user_table.where}: network.link: unknown link {link} ({names}): "
            "give network.bandwidth_GB_per_s and network.source"
        )
    else:
        link, speed, source = known.name, float(known.bandwidth), known.source
    return Network(link=link, cards=cards, card_bandwidth=speed, source=source, rails=rails)


# Shapes of TPU slices: the shape of a number of chips, the axes whose links close to a ring, and the hosts.
# Google Cloud documentation (v5e, v6e, v5p: configurations; verified): slices of the 2D kinds are 1x1, 2x2, 2x4, 4x4,
# 4x8, 8x8, 8x16, 16x16; of the 3D kinds 2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, and cubes of 4x4x4 side by side. Google
# Kubernetes Engine documentation (plan TPUs: machine types; verified): machines have 1, 4 (2x2) or 8 chips. Machines
# with 8 (ct5lp-hightpu-8t, ct6e-standard-8t) are 2x4 of v5e and v6e in one host; larger slices consist of machines with
# 4.


def axes_of(device: Device) -> int:
    """Number of axes: 2 or 3."""
    return 3 if device.node is not None and device.node.axes == 3 else 2


def default_shape(device: Device, number: int, asked: str = "") -> tuple[int, ...]:
    """Return the usual shape of a slice with ``number`` chips; ``UsageError`` if no shape is known."""
    shapes = _DEEP if axes_of(device) == 3 else _FLAT
    results = next((shape for shape in shapes if prod(shape) == number), None)
    if results is None:
        sizes = ", ".join(str(prod(shape)) for shape in shapes[:8])
        raise UsageError(f"--target {asked}: no slice has {number} chips (known: {sizes}, ...); give its shape")
    return results


def slice_shape(asked: str, device: Device, sides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the user wrote, padded to the chip's axes; hosts are 2 x 2 chips, or there is one chip."""
    axes = axes_of(device)
    if len(sides) > axes:
        raise UsageError(f"--target {asked}: {device.name} is a torus of {axes} axes, e.g. {_example(axes)}")
    shape = (*sides, *[1] * (axes - len(sides)))
    if any(side < 1 or side > 1 << 16 for side in shape):
        raise UsageError(f"--target {asked}: sides of a slice must be at least 1")
    if prod(shape) > 1 and (shape[0] % 2 or shape[1] % 2):
        raise UsageError(
            f"--target {asked}: a slice consists of 2x2 hosts: its first two sides must be even, e.g. {_example(axes)}"
        )
    return shape


def host_shape(asked: str, device: Device, shape: tuple[int, ...], hosts: int | None) -> tuple[int, ...]:
    """Return the chips of one host along x, y and z; ``hosts``: requested number, ``None`` for the usual machine."""
    whole, chips = (*shape, *[1] * (3 - len(shape))), prod(shape)
    sizes = {1: whole} if chips <= _HOST else {chips // _HOST: (2, 2, 1)}
    if axes_of(device) == 2 and whole[1] % 4 == 0:
        sizes[chips // 8] = (2, 4, 1)
    if hosts is None:
        return sizes.get(1, (2, 2, 1))
    if hosts not in sizes:
        known = " or ".join(str(number) for number in sorted(sizes))
        raise UsageError(f"--target {asked}: {'x'.join(map(str, shape))} has {known} hosts, not {hosts}")
    return sizes[hosts]


def closes(device: Device, side: int) -> bool:
    """Whether the links along an axis of ``side`` chips close to a ring: 16 of the 2D kinds, multiples of 4 in 3D.

    Google Cloud documentation, TPU architecture: cubes of 4x4x4 are joined by optical switches.
    """
    return side == 16 if axes_of(device) == 2 else side % 4 == 0


def _example(axes: int) -> str:
    return "2x4" if axes == 2 else "2x2x1"
