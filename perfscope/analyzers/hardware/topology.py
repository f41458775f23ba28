"""What a person says of the links of their machines: ranks of a node, and what joins them. A TOML file.

::

    [node]
    ranks = 16                     # ranks that these links join
    link = "NVLink 4"              # the next three together, or none of them
    bandwidth_GB_per_s = 450       # what one device can send over them, one direction
    source = "data sheet of ..."
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.profiler.errors import AskedWronglyError

KEYS = ("ranks", "link", "bandwidth_GB_per_s", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes of a job, as the user names them."""

    ranks: int
    """Of a node: ranks 0 to ``ranks - 1`` are the first one."""
    link: str | None = None
    """What joins them; None: what the tables of hardware know of the devices."""
    link_bandwidth: float | None = None
    """Bytes/s that one device sends over its links, one direction."""
    source: str | None = None
    """Where that number is from."""


def read_topology(path: str | Path) -> Topology:
    """The topology that a file tells. ``AskedWronglyError`` in one line for whatever is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        found: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise AskedWronglyError(f"--topology {path}: cannot be read: {(error.strerror or 'error').lower()}") from error
    except ValueError as error:
        raise AskedWronglyError(f"--topology {path}: no TOML: {error}") from error
    _refuse(path, found, ("node",), "")
    node = found.get("node")
    if not isinstance(node, dict):
        raise AskedWronglyError(f"--topology {path}: has no [node]")
    _refuse(path, node, KEYS, "node.")
    ranks = node.get("ranks")
    if type(ranks) is not int or ranks < 1:
        raise AskedWronglyError(f"--topology {path}: node.ranks is not a number of ranks")
    given = [key for key in KEYS[1:] if key in node]
    if given and len(given) < len(KEYS) - 1:
        absent = next(key for key in KEYS[1:] if key not in node)
        raise AskedWronglyError(f"--topology {path}: node.{absent} is missing: it belongs to node.{given[0]}")
    if not given:
        return Topology(ranks=ranks)
    link, speed, source = (node[key] for key in KEYS[1:])
    for key, text in (("link", link), ("source", source)):
        if not isinstance(text, str) or not text.strip():
            raise AskedWronglyError(f"--topology {path}: node.{key} is no text")
    if type(speed) not in (int, float) or not math.isfinite(speed) or speed <= 0:
        raise AskedWronglyError(f"--topology {path}: node.bandwidth_GB_per_s is no bandwidth")
    return Topology(ranks=ranks, link=link, link_bandwidth=speed * 1e9, source=source)


def _refuse(path: str | Path, found: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            names = ", ".join(where + one for one in known)
            raise AskedWronglyError(f"--topology {path}: {where}{key}: no such key; known: {names}")
