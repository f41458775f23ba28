"""A subject of the graph page: the drawing around one node, as plain values with coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from perfscope.model.untrusted_text import clean, sanitize, shorten

# Layout of a small graph: layers from top to bottom, fusions as boxes that keep their nodes together.
#
# A box is laid out by itself and then placed as one node, so that other nodes are never inside it.


NODE_W, NODE_H = 186, 46
GAP_X, GAP_Y = 22, 52
PAD, HEAD = 14, 34
"""Space around the nodes of a box, and above them for its title."""
ABREAST = 6
"""Most nodes of a layer in one row; more are placed below, so that a graph with many inputs stays narrow."""

LayoutEdge = tuple[int, int]

MOST_NODES = 60
"""Most nodes of a picture: as many names as a screen can show readably."""
TEXT_CHARS = 6_000


class _Laid(Struct):
    x: list[float]
    y: list[float]
    width: float
    height: float


def laid_out(boxes: Sequence[int], edges: Iterable[LayoutEdge]) -> dict[str, Any]:
    """Positions in pixels. ``boxes``: by node the number of its box, ``-1`` for none; ``edges``: (from, to).

    Returns ``x``, ``y`` (upper left corner of each node), ``boxes`` (by number ``(x, y, width, height)``) and the size.
    """
    pairs = [(a, b) for a, b in edges if a != b]
    members: dict[int, list[int]] = {}
    for node, box in enumerate(boxes):
        if box >= 0:
            members.setdefault(box, []).append(node)
    unit_of: list[int] = [0] * len(boxes)
    units: list[list[int]] = []
    seen: dict[int, int] = {}
    for node, box in enumerate(boxes):
        if box >= 0 and box in seen:
            unit_of[node] = seen[box]
            continue
        if box >= 0:
            seen[box] = len(units)
        unit_of[node] = len(units)
        units.append(members[box] if box >= 0 else [node])
    inner: dict[int, _Laid] = {}
    sizes: list[tuple[float, float]] = []
    for number, nodes in enumerate(units):
        if boxes[nodes[0]] < 0:
            sizes.append((NODE_W, NODE_H))
            continue
        index = {node: index for index, node in enumerate(nodes)}
        inside = [(index[a], index[b]) for a, b in pairs if a in index and b in index]
        inner[number] = laid = _layered([(NODE_W, NODE_H)] * len(nodes), inside)
        sizes.append((laid.width + 2 * PAD, laid.height + PAD + HEAD))
    between = {(unit_of[a], unit_of[b]) for a, b in pairs if unit_of[a] != unit_of[b]}
    outer = _layered(sizes, sorted(between))
    x, y = [0.0] * len(boxes), [0.0] * len(boxes)
    placed: dict[int, tuple[float, float, float, float]] = {}
    for number, nodes in enumerate(units):
        left, top = outer.x[number], outer.y[number]
        if number not in inner:
            x[nodes[0]], y[nodes[0]] = left, top
            continue
        placed[boxes[nodes[0]]] = (left, top, *sizes[number])
        for at, node in enumerate(nodes):
            x[node], y[node] = left + PAD + inner[number].x[at], top + HEAD + inner[number].y[at]
    return {"x": x, "y": y, "boxes": placed, "width": outer.width, "height": outer.height}


def _layered(sizes: Sequence[tuple[float, float]], edges: Iterable[LayoutEdge]) -> _Laid:
    """Place each node below all its sources, in their order; layers are centred."""
    pairs = list(edges)
    layer = _layers(len(sizes), pairs)
    rows: dict[int, list[int]] = {}
    for node, level in enumerate(layer):
        rows.setdefault(level, []).append(node)
    sources: dict[int, list[int]] = {}
    for a, b in pairs:
        sources.setdefault(b, []).append(a)
    x, y = [0.0] * len(sizes), [0.0] * len(sizes)
    top, widest = 0.0, 0.0
    lines: list[tuple[list[int], float]] = []
    for level in sorted(rows):
        above = {node: [x[source] + sizes[source][0] / 2 for source in sources.get(node, [])] for node in rows[level]}
        middle = {node: sum(found) / len(found) if found else 0.0 for node, found in above.items()}
        nodes = sorted(rows[level], key=lambda node: (middle[node], node))
        for first in range(0, len(nodes), ABREAST):
            line = nodes[first : first + ABREAST]
            left = 0.0
            for node in line:
                x[node], y[node] = left, top
                left += sizes[node][0] + GAP_X
            lines.append((line, left - GAP_X))
            widest = max(widest, left - GAP_X)
            top += max(sizes[node][1] for node in line) + GAP_Y
    for line, width in lines:
        for node in line:
            x[node] += (widest - width) / 2
    return _Laid(x=x, y=y, width=widest, height=max(0.0, top - GAP_Y))


def _layers(count: int, edges: Sequence[LayoutEdge]) -> list[int]:
    """By node: the longest path to it. In a cycle, which a part of a program may contain, one edge is ignored."""
    waits = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        readers[a].append(b)
        waits[b] += 1
    layer = [0] * count
    left = set(range(count))
    ready = [node for node in range(count) if not waits[node]]
    while left:
        node = ready.pop() if ready else min(left, key=lambda value: (waits[value], value))
        if node not in left:
            continue
        left.discard(node)
        for reader in readers[node]:
            if reader not in left:
                continue
            layer[reader] = max(layer[reader], layer[node] + 1)
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return layer


class Node(Struct, frozen=True, kw_only=True):
    """An operation, or a value that exists before. ``box``: number in ``Subject.boxes``; ``-1``: none."""

    name: str
    what: str
    box: int = -1
    line: str = ""
    bytes: int | None = None
    """Bytes of its result."""
    ns: int | None = None
    text: str = ""
    """Its text in the program, for copying."""
    chosen: bool = False
    """The picture is about this node."""
    runs: bool = True
    """False: a value that exists before."""


class Edge(Struct, frozen=True, kw_only=True):
    """A value between two nodes. ``bytes``: its size, an upper bound of memory traffic; ``None``: inside a kernel."""

    start: int
    end: int
    bytes: int | None
    words: str = ""
    saved: bool = False
    """It could stay on the chip."""


def _merged(edges: Sequence[Edge]) -> list[dict[str, Any]]:
    """Edges as JSON; values between the same two nodes are merged and their bytes added."""
    result: dict[tuple[int, int], list[Edge]] = {}
    for edge in edges:
        if edge.start != edge.end:
            result.setdefault((edge.start, edge.end), []).append(edge)
    made = []
    for (start, end), held in result.items():
        sizes = [edge.bytes for edge in held if edge.bytes is not None]
        words = list(dict.fromkeys(edge.words for edge in held if edge.words))
        if len(held) > 1:
            words = [f"{len(held):,} values", *words[:3]]
        made.append(
            {
                "from": start,
                "to": end,
                "bytes": sum(sizes) if sizes else None,
                "said": sanitize(", ".join(words), 200),
                "saved": any(edge.saved for edge in held),
            }
        )
    return made


class Box(Struct, frozen=True, kw_only=True):
    """A group of nodes that is one kernel, or could be."""

    title: str
    words: str = ""
    is_one: bool = True
    """False: it could be one kernel."""


class Subject(Struct, frozen=True, kw_only=True):
    """One picture. ``names`` and ``lines``: how findings refer to it; ``weight``: order of those without findings."""

    kind: str
    title: str
    why: str
    weight: float
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    boxes: Sequence[Box]
    names: frozenset[str]
    lines: frozenset[str]
    words: tuple[str, ...] = ()
    ns: float | None = None
    """Time of what the picture is about, per step, if ``why`` does not have it."""
    left: int = field(default=0)
    """Number of neighbours that are not drawn."""

    def plain(self) -> dict[str, Any]:
        """JSON values with coordinates; every text is cleaned."""
        place = laid_out([node.box for node in self.nodes], [(edge.start, edge.end) for edge in self.edges])
        return {
            "kind": self.kind,
            "title": sanitize(self.title, 300),
            "why": sanitize(self.why, 400),
            "said": [sanitize(text, 600) for text in self.words],
            "left": self.left,
            "ns": self.ns,
            "width": round(place["width"]),
            "height": round(place["height"]),
            "node": [NODE_W, NODE_H],
            "nodes": [
                {
                    "name": sanitize(node.name, 200), "what": sanitize(node.what, 120),
                    "line": sanitize(node.line, 200),
                    "bytes": node.bytes, "ns": node.ns, "text": shorten(clean(node.text), TEXT_CHARS),
                    "chosen": node.chosen, "runs": node.runs, "box": node.box,
                    "x": round(place["x"][index], 1), "y": round(place["y"][index], 1),
                }
                for index, node in enumerate(self.nodes)
            ],
            "edges": _merged(self.edges),
            "boxes": [
                {
                    "title": sanitize(box.title, 120), "said": sanitize(box.words, 400), "one": box.is_one,
                    "at": [round(item, 1) for item in place["boxes"].get(number, ())],
                }
                for number, box in enumerate(self.boxes)
            ],
        }  # fmt: skip
