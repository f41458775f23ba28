"""How long a collective takes at best, by the bytes that have to cross links inside a node and between nodes.

Within a node a device sends the message times the factor of nccl-tests (``doc/PERFORMANCE.md``: bus bandwidth), over
its links. A group that spans ``N`` nodes with ``g`` of its ``n`` ranks in each has two stages that run side by side, so
the slower one counts (same document: bus bandwidth is bounded by the narrowest part of the path):

- a ring goes in and out of each node once: a node sends the message times the factor of ``n`` over the network cards
  of its ``g`` ranks, a device as much over its links. What says no algorithm is held to this one, too;
- trees are a hierarchy: between nodes a node is one rank of ``N``, within it a device one of ``g``. Where the network
  reduces (CollNet, NVLS over nodes) a node sends the message once;
- all-to-all sends each part straight to its rank: a node sends the buffers of ``g`` ranks, (N-1)/N of each, a device
  g-1 of the n parts of its own over its links.

NVLS reduces in the switch of a node: a device sends (1 + 1/n) of the message there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.devices.topology import Network, Topology
from perfscope.model.collectives import bus_factor

NODE = 8
"""Devices of a node that NVLink or Infinity Fabric joins; larger domains (NVL72) are judged within eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a group lies over nodes: the same number of ranks on each."""

    nodes: int
    ranks: int
    """Of the group, on each node."""
    of: int
    """Ranks of the job on a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """The slower stage of a collective."""

    sent_bytes: float
    """By a device over its links, or by a node over its cards."""
    link: str
    bandwidth: float
    """Bytes/s, one direction, of the device's links or of the cards together."""
    network: bool
    """It is the stage between nodes."""

    @property
    def ns(self) -> float:
        """Time of the bytes alone, without latency."""
        return self.sent_bytes / self.bandwidth * 1e9


def placement(group: Sequence[int], topology: Topology | None) -> Placement | None:
    """Where the ranks of a group are; None where nodes hold different numbers of them, or one is on no node.

    Without a topology nodes are blocks of ``NODE`` ranks.
    """
    nodes: dict[int, int] = {}
    for rank in group:
        node = rank // NODE if topology is None else topology.node_of(rank)
        if node is None:
            return None
        nodes[node] = nodes.get(node, 0) + 1
    counts = set(nodes.values())
    if len(counts) != 1:
        return None
    return Placement(nodes=len(nodes), ranks=counts.pop(), of=NODE if topology is None else topology.ranks)


def within(operation: str, algorithm: str | None, message: int, ranks: int, link: tuple[str, float]) -> Ideal | None:
    """Of a group on one node over ``link`` (name, bytes/s of a device); None for what nccl-tests does not measure."""
    factor = bus_factor(operation, ranks)
    if factor is None:
        return None
    if (algorithm or "").startswith("NVLS"):
        factor = min(factor, 1 + 1 / ranks)
    return Ideal(sent_bytes=message * factor, link=link[0], bandwidth=link[1], network=False)


def across(
    operation: str,
    algorithm: str | None,
    message: int,
    place: Placement,
    link: tuple[str, float] | None,
    network: Network,
) -> Ideal | None:
    """Of a group that spans nodes: its slower stage.

    ``link``: inside the nodes; only groups of one rank a node need none. None where a stage cannot be said: links
    inside nodes that are not known, operations that nccl-tests does not measure, sends and receives.
    """
    ring = algorithm is None or algorithm == "RING"
    outer = bus_factor(operation, place.ranks * place.nodes if ring else place.nodes)
    inner = bus_factor(operation, place.ranks * place.nodes if ring else place.ranks) if place.ranks > 1 else None
    if outer is None or operation in ("send_recv", "send", "recv"):
        return None
    in_network = algorithm is not None and (algorithm.startswith("COLLNET") or algorithm == "NVLS")
    between = message * (min(outer, 1.0) if in_network else outer)
    inside = message * (inner or 0.0)
    if operation == "all_to_all":
        between = message * place.ranks * (place.nodes - 1) / place.nodes
        inside = message * (place.ranks - 1) / (place.ranks * place.nodes)
    elif algorithm is not None and algorithm.startswith("NVLS") and place.ranks > 1:
        inside = min(inside, message * (1 + 1 / place.ranks))
    cards = Ideal(
        sent_bytes=between,
        link=f"the network cards ({network.link})",
        bandwidth=network.bandwidth(place.ranks, place.of),
        network=True,
    )
    if not inside:
        return cards
    if link is None:
        return None
    links = Ideal(sent_bytes=inside, link=link[0], bandwidth=link[1], network=False)
    return max(cards, links, key=lambda stage: stage.ns)
