"""Where time goes as trees: the host's stacks, device time by the stack that asked for it, and scopes of programs.

A node is a path of names. Its time holds that of all below it; what is not in a child is its own. Sums are exact: nodes
too small to be seen are added up in one beside them, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfscope.analyzers.programs import hot_instructions
from perfscope.dashboards.web.timeline.names import NAME_CHARS
from perfscope.dashboards.web.views import Job, Place
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize

LEAST_SHARE = 1 / 4_000
"""Of the whole: a quarter of a pixel of a wide screen."""
NO_STACK = "no host op is known for it"

Path = tuple[str, ...]
Held = Mapping[Path, tuple[int, int]]
"""(own ns, count) by path."""


@dataclass(slots=True)
class Node:
    """A name below a path. ``ns``: with all below it."""

    name: str
    own_ns: int = 0
    count: int = 0
    ns: int = 0
    below: dict[str, Node] = field(default_factory=dict)


def gather(trace: Trace, place: Place) -> dict[str, Held]:
    """Own time by path of each kind of tree, of one rank."""
    paths, own = _host(trace)
    return {"host": own, "device": _device(trace, paths), "scopes": _scopes(trace)}


def view(job: Job) -> dict[str, Any]:
    """``trees``: a tree a kind, of all ranks together; ``null`` where it has no time."""
    return {"trees": {kind: _tree([item.held[kind] for item in job.gathered]) for kind in ("host", "device", "scopes")}}


def _host(trace: Trace) -> tuple[list[Path], Held]:
    """The path of each distinct stack, and own time and count by path. Rows of ``slices`` know their node."""
    slices = trace.rows["slices"]
    node, paths = _nodes(trace)
    lasts = slices["end_ns"] - slices["start_ns"]
    own = lasts.copy()
    inside = np.flatnonzero(slices["parent"] != MISSING)
    np.subtract.at(own, slices["parent"][inside], lasts[inside])
    total, count = np.zeros(len(paths), np.int64), np.bincount(node, minlength=len(paths))
    np.add.at(total, node, own)
    return paths, {path: (int(total[index]), int(count[index])) for index, path in enumerate(paths)}


def _nodes(trace: Trace) -> tuple[Int64, list[Path]]:
    """The node of each row of ``slices``, level by level: parents stand before their children."""
    slices = trace.rows["slices"]
    node = np.full(len(slices), MISSING, np.int64)
    paths: list[Path] = []
    texts: dict[int, str] = {}
    left = np.flatnonzero(slices["parent"] == MISSING)
    level = True
    while len(left):
        above = np.full(len(left), MISSING, np.int64) if level else node[slices["parent"][left]]
        keys = np.stack((above, slices["name"][left].astype(np.int64)), axis=1)
        results, positions = np.unique(keys, axis=0, return_inverse=True)
        node[left] = len(paths) + positions.ravel()
        for parent, code in results.tolist():
            name = texts.setdefault(code, sanitize(trace.text(code), NAME_CHARS) or "(no name)")
            paths.append((*(paths[parent] if parent != MISSING else ()), name))
        placed = np.zeros(len(slices), np.bool_)
        placed[left] = True
        rest = np.flatnonzero((node == MISSING) & (slices["parent"] != MISSING))
        left = rest[placed[slices["parent"][rest]]]
        level = False
    return node, paths


def _device(trace: Trace, paths: list[Path]) -> Held:
    """Time of kernels and copies by the path of the host op that launched them, the kernel's name at its end."""
    node, _ = _nodes(trace)
    result: dict[Path, tuple[int, int]] = {}
    for table in ("kernels", "copies"):
        rows = trace.rows[table]
        if not len(rows):
            continue
        above = np.full(len(rows), MISSING, np.int64)
        linked = rows["op"] != MISSING
        above[linked] = node[rows["op"][linked]]
        keys, positions = np.unique(
            np.stack((above, rows["name"].astype(np.int64)), axis=1), axis=0, return_inverse=True
        )
        total, count = np.zeros(len(keys), np.int64), np.bincount(positions.ravel(), minlength=len(keys))
        np.add.at(total, positions.ravel(), rows["end_ns"] - rows["start_ns"])
        for index, (parent, code) in enumerate(keys.tolist()):
            path = (*(paths[parent] if parent != MISSING else (NO_STACK,)), sanitize(trace.text(code), NAME_CHARS))
            held = result.get(path, (0, 0))
            result[path] = (held[0] + int(total[index]), held[1] + int(count[index]))
    return result


def _scopes(trace: Trace) -> Held:
    """Time of instructions by program and scope, the instruction at the end."""
    result: dict[Path, tuple[int, int]] = {}
    for spots in trace.fact(hot_instructions):
        for instruction in spots.instructions:
            scope = [part for part in (instruction.scope or "no scope").split("/") if part]
            path = tuple(sanitize(part, NAME_CHARS) for part in (instruction.program, *scope, instruction.instruction))
            held = result.get(path, (0, 0))
            result[path] = (held[0] + instruction.time_ns, held[1] + instruction.calls)
    return result


def _tree(helds: Iterable[Held]) -> dict[str, Any] | None:
    root = Node("all")
    for held in helds:
        for path, (own, count) in held.items():
            node = root
            for name in path:
                node = node.below.setdefault(name, Node(name))
            node.own_ns += own
            node.count += count
    _sum(root)
    return None if root.ns <= 0 else _plain(root, root.ns * LEAST_SHARE)


def _sum(root: Node) -> None:
    """``ns`` of every node, from the leaves up; no recursion, for stacks are deeper than Python's."""
    order, index = [root], 0
    while index < len(order):
        order += order[index].below.values()
        index += 1
    for node in reversed(order):
        node.ns = node.own_ns + sum(child.ns for child in node.below.values())


def _plain(root: Node, least: float) -> dict[str, Any]:
    """The tree as rows, parents before children: names, parents, times and counts as arrays of one length."""
    rows: dict[str, list[Any]] = {"name": [], "parent": [], "ns": [], "own_ns": [], "count": []}
    waiting: list[tuple[Node, int]] = [(root, -1)]
    index = 0
    while index < len(waiting):
        node, parent = waiting[index]
        place = len(rows["name"])
        for key, value in (
            ("name", node.name), ("parent", parent), ("ns", node.ns), ("own_ns", node.own_ns), ("count", node.count),
        ):  # fmt: skip
            rows[key].append(value)
        children = sorted(node.below.values(), key=lambda child: (-child.ns, child.name))
        large = [child for child in children if child.ns >= least]
        waiting += [(child, place) for child in large]
        small = children[len(large) :]
        if rest := sum(child.ns for child in small):
            name = f"{len(small):,} smaller"
            waiting.append((Node(name, own_ns=rest, ns=rest, count=sum(child.count for child in small)), place))
        index += 1
    return rows
