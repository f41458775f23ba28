"""A subject of the graph page: what is drawn around one thing, as plain values with places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscope.dashboards.views._graph_layout import NODE_H, NODE_W, laid_out
from perfscope.model.untrusted_text import clean, sanitize, shorten

MOST_NODES = 60
"""Of one picture: a screen of names that can still be read."""
TEXT_CHARS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Something that runs, or a value that is there before. ``box``: number in ``Subject.boxes``; ``-1``: in none."""

    name: str
    what: str
    box: int = -1
    line: str = ""
    bytes: int | None = None
    """Of its result."""
    ns: int | None = None
    text: str = ""
    """As its program spells it, to be copied."""
    chosen: bool = False
    """The picture is about it."""
    runs: bool = True
    """False: a value that is there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value on its way. ``bytes``: its size, at most what goes through memory; ``None``: inside a kernel."""

    start: int
    end: int
    bytes: int | None
    said: str = ""
    saved: bool = False
    """It could stay on the chip."""


def _merged(edges: Sequence[Edge]) -> list[dict[str, Any]]:
    """Edges as JSON, all values between the same two nodes as one: their bytes are summed."""
    found: dict[tuple[int, int], list[Edge]] = {}
    for edge in edges:
        if edge.start != edge.end:
            found.setdefault((edge.start, edge.end), []).append(edge)
    made = []
    for (start, end), held in found.items():
        sizes = [edge.bytes for edge in held if edge.bytes is not None]
        words = list(dict.fromkeys(edge.said for edge in held if edge.said))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What is one kernel, or could be one."""

    title: str
    said: str = ""
    is_one: bool = True
    """False: it could be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One picture. ``names`` and ``lines``: by which findings name it; ``weight``: what comes first without one."""

    kind: str
    title: str
    why: str
    weight: float
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    boxes: Sequence[Box]
    names: frozenset[str]
    lines: frozenset[str]
    said: tuple[str, ...] = ()
    left: int = field(default=0)
    """Neighbours that are not drawn."""

    def plain(self) -> dict[str, Any]:
        """As JSON, laid out; every text is cleaned."""
        place = laid_out([node.box for node in self.nodes], [(edge.start, edge.end) for edge in self.edges])
        return {
            "kind": self.kind,
            "title": sanitize(self.title, 300),
            "why": sanitize(self.why, 400),
            "said": [sanitize(one, 600) for one in self.said],
            "left": self.left,
            "width": round(place["width"]),
            "height": round(place["height"]),
            "node": [NODE_W, NODE_H],
            "nodes": [
                {
                    "name": sanitize(node.name, 200), "what": sanitize(node.what, 120), "line": sanitize(node.line, 200),
                    "bytes": node.bytes, "ns": node.ns, "text": shorten(clean(node.text), TEXT_CHARS),
                    "chosen": node.chosen, "runs": node.runs, "box": node.box,
                    "x": round(place["x"][at], 1), "y": round(place["y"][at], 1),
                }
                for at, node in enumerate(self.nodes)
            ],
            "edges": _merged(self.edges),
            "boxes": [
                {
                    "title": sanitize(box.title, 120), "said": sanitize(box.said, 400), "one": box.is_one,
                    "at": [round(one, 1) for one in place["boxes"].get(number, ())],
                }
                for number, box in enumerate(self.boxes)
            ],
        }  # fmt: skip
