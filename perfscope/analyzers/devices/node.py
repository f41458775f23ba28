"""How the devices of one node or slice are joined, and what joins nodes where nobody says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Joined = Literal["switch", "mesh", "torus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualNetwork:
    """What usually joins nodes of a device. An assumption of every report that uses it: buyers choose their network."""

    link: str
    """A name of the table of links."""
    cards: int
    """Of a node."""
    source: str


_HGX = "NVIDIA HGX and DGX {}: 8 GPUs, NVSwitch"
_SWITCH_8_A100 = Node(joined="switch", devices=8, host_devices=8, ports=12, source=_HGX.format("A100"))
_SWITCH_8_H100 = Node(joined="switch", devices=8, host_devices=8, ports=18, source=_HGX.format("H100, H200"),
                      reduces=True)  # fmt: skip
_SWITCH_8_B200 = Node(joined="switch", devices=8, host_devices=8, ports=18, source=_HGX.format("B200"), reduces=True)
_NVL72 = Node(joined="switch", devices=72, host_devices=4, ports=18, reduces=True,
              source="NVIDIA GB200 NVL72: 72 GPUs in one NVLink domain, 18 trays of 4")  # fmt: skip
_BRIDGE = Node(joined="mesh", devices=4, host_devices=4, ports=3, source="NVIDIA H200 NVL: bridges of 2 or 4")
_BRIDGE_2 = Node(joined="mesh", devices=2, host_devices=2, ports=1, source="NVIDIA H100 NVL: a bridged pair")
_V100 = Node(joined="mesh", devices=8, host_devices=8, ports=6, source="NVIDIA DGX-1 V100: hybrid cube mesh of 8")
_FABRIC_8 = Node(joined="mesh", devices=8, host_devices=8, ports=7,
                 source="AMD Instinct platform: 8 OAM, a link from each to each")  # fmt: skip
_FABRIC_4 = Node(joined="mesh", devices=4, host_devices=4, ports=6,
                 source="AMD Instinct MI300A: 4 of a node, two links from each to each")  # fmt: skip

NODES: dict[str, Node] = {
    "A100 SXM 80GB": _SWITCH_8_A100,
    "B200": _SWITCH_8_B200,
    "GB200": _NVL72,
    "H100 NVL": _BRIDGE_2,
    "H100 SXM": _SWITCH_8_H100,
    "H200": _SWITCH_8_H100,
    "H200 NVL": _BRIDGE,
    "MI300A": _FABRIC_4,
    "MI300X": _FABRIC_8,
    "MI325X": _FABRIC_8,
    "MI350X": _FABRIC_8,
    "MI355X": _FABRIC_8,
    "V100 SXM2": _V100,
}
"""Of GPUs, by the device's name; cards that only PCIe joins are not in it. TPUs have theirs in ``google.py``."""

_DGX_A100 = UsualNetwork(link="InfiniBand HDR", cards=8, source="NVIDIA DGX A100: 8 cards of 200 Gb/s")
_DGX_H100 = UsualNetwork(link="InfiniBand NDR", cards=8, source="NVIDIA DGX H100 and H200: 8 cards of 400 Gb/s")
_DGX_B200 = UsualNetwork(link="InfiniBand NDR", cards=8, source="NVIDIA DGX B200: 8 cards of 400 Gb/s")
_GB200 = UsualNetwork(link="InfiniBand NDR", cards=72, source="NVIDIA DGX GB200: a card of 400 Gb/s a GPU")
_OAM = UsualNetwork(link="RoCE 400GbE", cards=8, source="AMD Instinct reference cluster: a card of 400 Gb/s a GPU")

NETWORKS: dict[str, UsualNetwork] = {
    "A100 40GB": _DGX_A100,
    "A100 SXM 80GB": _DGX_A100,
    "B200": _DGX_B200,
    "GB200": _GB200,
    "H100 SXM": _DGX_H100,
    "H200": _DGX_H100,
    "MI300X": _OAM,
    "MI325X": _OAM,
    "MI350X": _OAM,
    "MI355X": _OAM,
}
