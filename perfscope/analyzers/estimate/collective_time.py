"""The time of a collective as a range: bytes by the algorithms that libraries use, steps by their latency.

``S`` are the bytes of the whole array (the result of an all-gather, the operand of a reduce-scatter and of a device's
part of an all-to-all), ``n`` devices take part, ``B`` is what one device sends a second over its links.

========================  =======================================================================
all-gather                ``S (n-1)/n / B``, ``n-1`` steps in a ring
reduce-scatter            the same
all-reduce                ``2 S (n-1)/n / B``; where the switch adds up: ``S (n+1)/n / B``
all-to-all                ``S (n-1)/n / B``, 1 step
collective-permute        ``S / B``, 1 step
collective-broadcast      ``S / B``
========================  =======================================================================

(nccl-tests, PERFORMANCE.md, for the factors of the bus bandwidth.) Between nodes the slower of two parts counts: what
goes over the links inside a node, and what leaves it over the network.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from perfscope.analyzers.estimate.assumptions import Factors
from perfscope.analyzers.estimate.spans import Range, ns_range
from perfscope.analyzers.estimate.torus import torus_seconds
from perfscope.analyzers.facts.hlo_collectives import Collective
from perfscope.analyzers.facts.hlo_roofline import NS
from perfscope.analyzers.hardware.target import Target
from perfscope.analyzers.hlo.cost_products import dims_of

REDUCED_FASTER = 1.3
"""What in-network reduction gains in practice; by its bytes it would be twice (How to Scale Your Model, 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRange:
    """One run of a collective."""

    time: Range
    algorithm: str
    """``ring of 8 over NVLink 4``, ``16 devices in 2 nodes``, ``torus 2x4``."""
    devices: int
    nodes: int
    known: bool
    """False: what joins the devices is not known; the time is that of the steps alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What is exchanged, whatever program asks for it."""

    kind: str
    """``all-reduce`` and so on, as XLA names them."""
    bytes: int
    """``S``."""
    group: tuple[int, ...]
    """Devices that take part, by their number in the target."""


def collective_range(one: Collective, target: Target, factors: Factors) -> CollectiveRange:
    """One run of a collective of a compiled program on the target."""
    return exchange_range(Exchange(kind=one.kind, bytes=one.bytes, group=_group(one, target)), target, factors)


def exchange_range(one: Exchange, target: Target, factors: Factors) -> CollectiveRange:
    """One exchange on the target."""
    group = one.group
    if target.platform == "tpu":
        return _torus(one, target, factors, group)
    nodes = Counter(device // max(1, target.node_devices) for device in group)
    inside = max(nodes.values(), default=1)
    low = high = 0.0
    known = True
    bandwidth = target.device.link_bandwidth
    if inside > 1 or one.kind == "collective-permute":
        if bandwidth:
            low, high = _inside(one, target, factors, len(group), inside, float(bandwidth))
        else:
            known = False
    far = len(nodes) > 1
    if far:
        if target.network is None:
            known = False
        else:
            reach = target.network.bandwidth(inside, max(1, target.node_devices))
            low = max(low, _between(one, len(nodes), len(group), optimal=True) / reach)
            high = max(high, _between(one, len(nodes), len(group), optimal=False) / (reach * factors.network))
    steps = _steps(one.kind, inside)
    far_steps = _steps(one.kind, len(nodes)) if far else (0, 0)
    hop, far_hop, base = factors.hop, factors.far_hop, factors.collective
    quick = base[0] + steps[0] * hop[0] + far_steps[0] * far_hop[0]
    slow = base[1] + steps[1] * hop[1] + far_steps[1] * far_hop[1]
    return CollectiveRange(
        time=ns_range(max(low * NS, quick), high * NS + slow),
        algorithm=_said(one, target, len(group), len(nodes)),
        devices=len(group),
        nodes=len(nodes),
        known=known,
    )


def _group(one: Collective, target: Target) -> tuple[int, ...]:
    """Devices of one exchange, the group that spans most nodes; of a permute, a pair that does."""
    if one.kind == "collective-permute":
        ids = dims_of(one.op.attributes.get("source_target_pairs", ""))
        pairs = list(zip(ids[::2], ids[1::2], strict=False))
        apart = [pair for pair in pairs if pair[0] != pair[1]]
        nodes = max(1, target.node_devices)
        crossing = next((pair for pair in apart if pair[0] // nodes != pair[1] // nodes), None)
        return crossing or (apart[0] if apart else (0, 1))
    groups = one.op.replica_groups
    if not groups:
        return tuple(range(max(1, one.group_size)))
    devices = max(1, target.node_devices)
    return max(groups, key=lambda ids: (len({number // devices for number in ids}), len(ids)))


def _whole(one: Exchange) -> int:
    """``S``: bytes of the whole array."""
    return one.bytes


def _inside(
    one: Exchange, target: Target, factors: Factors, devices: int, inside: int, bandwidth: float
) -> tuple[float, float]:
    """Seconds over the links of a node, low and high."""
    moved = _sent(one.kind, devices, inside) * _whole(one)
    node = target.device.node
    low = high = moved / bandwidth
    if one.kind == "all-reduce" and node is not None and node.reduces and inside > 2:
        low = min(low, _whole(one) * (inside + 1) / inside / bandwidth)
        high = high / REDUCED_FASTER
    if node is not None and node.joined == "mesh" and node.ports:
        # a link from each to each: a ring of few devices, and a pair, have a part of the links
        used = min(node.ports, max(1, inside - 1))
        low = low * node.ports / used
        high = high * node.ports / (1 if one.kind == "collective-permute" else used)
    return low, high / factors.link


def _sent(kind: str, devices: int, inside: int) -> float:
    """Bytes each device sends to others of its node, over ``S``."""
    share = (inside - 1) / inside if inside else 0.0
    if kind == "all-reduce":
        return 2 * share
    if kind in ("all-to-all", "ragged-all-to-all"):
        return (inside - 1) / devices
    if kind in ("collective-permute", "collective-broadcast"):
        return 1.0
    return share


def _between(one: Exchange, nodes: int, devices: int, *, optimal: bool) -> float:
    """Bytes that leave a node. ``optimal``: the node gathers first; else one ring through all devices."""
    whole = _whole(one)
    share = (nodes - 1) / nodes if optimal else (devices - 1) / devices
    if one.kind == "all-reduce":
        return 2 * share * whole
    if one.kind in ("all-to-all", "ragged-all-to-all"):
        return whole * devices / nodes * (nodes - 1) / nodes
    if one.kind in ("collective-permute", "collective-broadcast"):
        return float(whole)
    return share * whole


def _steps(kind: str, devices: int) -> tuple[int, int]:
    """Steps between neighbours: a tree's at the least; a ring's, or a tree's of a library that chooses, at the most."""
    if devices < 2:
        return 0, 0
    if kind in ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast"):
        return 1, 1
    tree = math.ceil(math.log2(devices))
    ring = devices - 1
    return (tree, min(ring, 2 * tree)) if kind != "all-reduce" else (tree, min(2 * ring, 4 * tree))


def _torus(one: Exchange, target: Target, factors: Factors, group: tuple[int, ...]) -> CollectiveRange:
    found = torus_seconds(one.kind, _whole(one), group, target)
    low = max(found.low * NS, found.steps[0] * factors.hop[0])
    slow = factors.collective[1] + found.steps[1] * factors.hop[1]
    return CollectiveRange(
        time=ns_range(low, found.high * NS / factors.link + slow),
        algorithm=found.said,
        devices=len(group),
        nodes=1,
        known=found.known,
    )


def _said(one: Exchange, target: Target, devices: int, nodes: int) -> str:
    link = target.device.link or "PCIe"
    if nodes > 1:
        return f"{devices} devices in {nodes} nodes"
    if one.kind == "collective-permute":
        return f"pairs over {link}"
    reduces = target.device.node is not None and target.device.node.reduces
    if one.kind == "all-reduce" and reduces:
        return f"{devices} over {link}, in the switch or a ring"
    return f"{'ring of ' if 'all-to-all' not in one.kind else ''}{devices} over {link}"
