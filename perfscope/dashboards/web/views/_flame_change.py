"""Two call trees of a comparison as one flame graph: widths of one side, colours by change."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.report.renderers.values import percent, signed_ns
from perfscope.dashboards.web.timeline.names import NAME_CHARS, name_id
from perfscope.model.documents.comparison import Tree, TreeNode
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

FLAME_COLORS = {
    "equal": ("#c9ced6", "#4a5361"),
    "up to 10% slower": ("#f3b5a7", "#8c4638"),
    "10% to 50% slower": ("#e0705a", "#c25a45"),
    "more than 50% slower": ("#b8321f", "#f0705a"),
    "up to 10% faster": ("#b3cdf0", "#365a86"),
    "10% to 50% faster": ("#6c9fdf", "#4a80c4"),
    "more than 50% faster": ("#2f66b5", "#7fb0f2"),
    "added": ("#e0a12b", "#d9a93e"),
    "removed": ("#2f8f80", "#45b3a2"),
    "moved": ("#8a68c0", "#a98be0"),
}
"""Colours of the nodes, for light and dark backgrounds."""
STEPS_OF_CHANGE = (0.1, 0.5)
"""Relative changes, of the longer side, at which the shades of slower and faster begin."""


def flame_of(tree: Tree | None) -> dict[str, Any] | None:
    """Both call trees as rows of a flame graph: ``sides``: side that gives the widths -> arrays as in `views.flame`.

    Arrays also have ``said``: time and calls of a node on both sides. ``alone``: for nodes on one side only, their time
    in words and their number; ``time`` as in the document.
    """
    if tree is None or not tree.flame or not max(tree.base_ns, tree.head_ns):
        return None
    alone = {change: [row for row in tree.rows if row.change == change] for change in ("added", "removed")}
    return {
        "sides": {side: _rows(tree, side) for side in ("head", "base")},
        "categories": list(FLAME_COLORS),
        "colors": {name: [colors[at] for colors in FLAME_COLORS.values()] for at, name in enumerate(("light", "dark"))},
        "alone": {
            change: {"time": format_ns(abs(sum(row.delta_ns for row in rows))), "count": sum(row.nodes for row in rows)}
            for change, rows in alone.items()
        },
        "time": tree.time,
    }


def _rows(tree: Tree, side: str) -> dict[str, list[Any]]:
    searched = tree.time != "instructions"  # a scope is not an event, and an instruction is named without its number
    rows: list[dict[str, Any]] = []
    row_of: dict[int, int] = {-1: -1}
    for number, node in enumerate(tree.flame):
        ns, calls = getattr(node, f"{side}_ns"), getattr(node, f"{side}_calls")
        if ns <= 0 or node.parent not in row_of:
            continue
        row_of[number] = len(rows)
        if (caller := row_of[node.parent]) >= 0:
            rows[caller]["own_ns"] -= ns
        rows.append(
            {
                "name": sanitize(node.name, NAME_CHARS), "whole": "", "merged": 1,
                "ids": name_id(node.name) if searched and "*" not in node.name else "",
                "category": list(FLAME_COLORS).index(_category(node)), "parent": caller, "ns": ns, "own_ns": ns,
                "count": calls, "first_ns": None, "fold": "", "line": "", "said": _words(node),
            }
        )  # fmt: skip
    return {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}


def _category(node: TreeNode) -> str:
    if node.change not in ("slower", "faster"):
        return node.change
    share = abs(node.head_ns - node.base_ns) / max(node.base_ns, node.head_ns)
    first, second = STEPS_OF_CHANGE
    words = "up to 10%" if share < first else "10% to 50%" if share < second else "more than 50%"
    return f"{words} {node.change}"


def _words(node: TreeNode) -> list[str]:
    """Time and calls on both sides."""
    if node.change in ("added", "removed", "moved"):
        ns, count = max(node.base_ns, node.head_ns), max(node.base_calls, node.head_calls)
        return [f"{node.change}: {format_ns(ns)}", _calls(count)]
    grown = f"{format_ns(node.base_ns)} → {format_ns(node.head_ns)}"
    calls = "" if node.base_calls == node.head_calls else f"{node.base_calls:,.4g} → "
    share = f" ({percent(node.head_ns / node.base_ns - 1)})" if node.base_ns else ""
    return [f"{grown}, {signed_ns(node.head_ns - node.base_ns)}{share}", f"{calls}{_calls(node.head_calls)}"]


def _calls(count: float) -> str:
    return f"{count:,.4g} {'call' if count == 1 else 'calls'}"
