"""What a person says of the links of their machines: which ranks share a node, what joins them, and the network. TOML.

::

    [node]
    ranks = 8                      # ranks that these links join: 0-7, 8-15, ...
    members = [[0, 2], [1, 3]]     # or, in place of ``ranks``: the ranks of each node
    link = "NVLink 4"              # the next three together, or none of them
    bandwidth_GB_per_s = 450       # what one device can send over them, one direction
    source = "data sheet of ..."

    [network]                      # what joins the nodes; may be left out
    link = "InfiniBand NDR"        # names in the table of links need neither of the last two
    cards = 8                      # network cards of a node that carry collectives
    rails = 8                      # networks apart that the cards are spread over; may be left out
    bandwidth_GB_per_s = 50        # what one card can send, one direction
    source = "data sheet of ..."
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.analyzers.hardware.links import LINKS, named_link
from perfscope.model.errors import UsageError

KEYS = ("ranks", "members", "link", "bandwidth_GB_per_s", "source")
NETWORK_KEYS = ("link", "cards", "rails", "bandwidth_GB_per_s", "source")
_TOGETHER = ("link", "bandwidth_GB_per_s", "source")

MOST_RANKS = 1 << 20
"""A million: a number of ranks or cards above it is a slip of the keyboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What joins the nodes of a job."""

    link: str
    cards: int
    """Of a node."""
    card_bandwidth: float
    """Bytes/s that one card sends, one direction."""
    source: str
    rails: int | None = None
    """Networks apart, over which the cards and the ranks of a node are spread evenly; None: not told."""

    def bandwidth(self, ranks: int, of: int) -> float:
        """Bytes/s that ``ranks`` of the ``of`` ranks of a node send to other nodes, over the cards next to them.

        A rank uses the cards of its rail, or its share of the cards; one card at least.
        """
        if self.rails is not None:
            return self.card_bandwidth * self.cards * min(ranks, self.rails) / self.rails
        return self.card_bandwidth * max(1.0, self.cards * ranks / of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes of a job, as the user names them."""

    ranks: int
    """Of a node: ranks 0 to ``ranks - 1`` are the first one. With ``members``: of the largest."""
    members: tuple[tuple[int, ...], ...] = ()
    """The ranks of each node; empty where they follow from ``ranks``."""
    link: str | None = None
    """What joins them; None: what the tables of hardware know of the devices."""
    link_bandwidth: float | None = None
    """Bytes/s that one device sends over its links, one direction."""
    source: str | None = None
    """Where that number is from."""
    network: Network | None = None

    def node_of(self, rank: int) -> int | None:
        """Number of the node of a rank; None for a rank that ``members`` leave out."""
        if not self.members:
            return rank // self.ranks
        return next((node for node, ranks in enumerate(self.members) if rank in ranks), None)


def read_topology(path: str | Path) -> Topology:
    """The topology that a file tells. ``AskedWronglyError`` in one line for whatever is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--topology {path}: cannot be read: {(error.strerror or 'error').lower()}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--topology {path}: no TOML: {error}") from error
    where = f"--topology {path}"
    _refuse(where, found, ("node", "network"), "")
    node = found.get("node")
    if not isinstance(node, dict):
        raise UsageError(f"--topology {path}: has no [node]")
    _refuse(where, node, KEYS, "node.")
    ranks, members = _ranks(where, node)
    network = None if "network" not in found else read_network(where, found["network"])
    given = [key for key in _TOGETHER if key in node]
    if not given:
        return Topology(ranks=ranks, members=members, network=network)
    absent = next((key for key in _TOGETHER if key not in node), None)
    if absent is not None:
        raise UsageError(f"--topology {path}: node.{absent} is missing: it belongs to node.{given[0]}")
    return Topology(
        ranks=ranks,
        members=members,
        link=_text(where, node, "node", "link"),
        link_bandwidth=_bandwidth(where, node, "node"),
        source=_text(where, node, "node", "source"),
        network=network,
    )


def _ranks(where: str, node: dict[str, Any]) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Ranks of a node, and the ranks of each where the file names them."""
    if "members" not in node:
        return _count(where, node, "node", "ranks", "ranks"), ()
    if "ranks" in node:
        raise UsageError(f"{where}: node.ranks and node.members say the same: give one of them")
    members = node["members"]
    nodes = members if isinstance(members, list) else []
    sound = [isinstance(ranks, list) and ranks and all(type(rank) is int and rank >= 0 for rank in ranks)
             for ranks in nodes]  # fmt: skip
    if not nodes or not all(sound):
        raise UsageError(f"{where}: node.members is no list of the ranks of each node")
    named = [rank for ranks in nodes for rank in ranks]
    twice = next((rank for rank in named if named.count(rank) > 1), None) if len(set(named)) < len(named) else None
    if twice is not None:
        raise UsageError(f"{where}: node.members names rank {twice} twice")
    return max(map(len, nodes)), tuple(tuple(sorted(ranks)) for ranks in nodes)


def read_network(where: str, told: Any) -> Network:
    """The network that a table of a file tells. ``where`` stands in front of errors: the option and the path."""
    if not isinstance(told, dict):
        raise UsageError(f"{where}: network is no table")
    _refuse(where, told, NETWORK_KEYS, "network.")
    link = _text(where, told, "network", "link")
    cards = _count(where, told, "network", "cards", "network cards")
    rails = _count(where, told, "network", "rails", "rails") if "rails" in told else None
    if rails is not None and cards % rails:
        raise UsageError(f"{where}: network.cards is no multiple of network.rails")
    known = named_link(link)
    if "bandwidth_GB_per_s" in told:
        speed, source = _bandwidth(where, told, "network"), _text(where, told, "network", "source")
    elif known is None:
        names = ", ".join(one.name for one in LINKS if one.links is None)
        raise UsageError(
            f"{where}: network.link: {link}: not in the table of links ({names}): "
            "give network.bandwidth_GB_per_s and network.source"
        )
    else:
        link, speed, source = known.name, float(known.bandwidth), known.source
    return Network(link=link, cards=cards, card_bandwidth=speed, source=source, rails=rails)


def _count(where: str, told: dict[str, Any], table: str, key: str, what: str) -> int:
    value = told.get(key)
    if type(value) is not int or not 1 <= value <= MOST_RANKS:
        raise UsageError(f"{where}: {table}.{key} is not a number of {what}")
    return value


def _text(where: str, told: dict[str, Any], table: str, key: str) -> str:
    value = told.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {table}.{key} is no text")
    return value


def _bandwidth(where: str, told: dict[str, Any], table: str) -> float:
    value: Any = told.get("bandwidth_GB_per_s")
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {table}.bandwidth_GB_per_s is no bandwidth")
    return float(value) * 1e9


def _refuse(where: str, found: dict[str, Any], known: tuple[str, ...], table: str) -> None:
    for key in found:
        if key not in known:
            names = ", ".join(table + one for one in known)
            raise UsageError(f"{where}: {table}{key}: no such key; known: {names}")
