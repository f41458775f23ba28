"""Time as trees: host stacks, sampled stacks, device time by launching stack, and scopes of programs.

`analyzers.sections.call_trees` computes the trees; this module turns them into rows with the timeline's colours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from perfscope.analyzers.sections import (
    LEAST_SHARE,
    NO_STACK,
    CallNode,
    device_tree,
    host_tree,
    of_ranks,
    sampled_tree,
    scope_tree,
)
from perfscope.analyzers.source_code import excerpts
from perfscope.dashboards.web.timeline.lanes import (
    CATEGORY_WORDS,
    COLORS,
    Category,
    kernel_category,
    op_category,
    span_category,
)
from perfscope.dashboards.web.timeline.names import NAME_CHARS, name_id
from perfscope.dashboards.web.views import Job, Place
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

TREES: dict[str, Callable[..., CallNode]] = {
    "host": host_tree,
    "device": device_tree,
    "scopes": scope_tree,
    "samples": sampled_tree,
}
FORMS = {"merged": True, "apart": False}
"""Repetitions (steps, layers) merged into one node, or kept apart."""


def gather(trace: Trace, place: Place) -> dict[str, dict[str, CallNode]]:
    """The trees of one rank: kind -> form -> tree."""
    return {kind: {form: make(trace, merge=merge) for form, merge in FORMS.items()} for kind, make in TREES.items()}


def view(job: Job) -> dict[str, Any]:
    """``trees``: of all ranks together, kind -> form -> rows (see `_plain`), ``null`` if there is no time.

    ``kinds``: those with time, most informative first: device work without known host ops has a single level.
    ``categories`` and ``colors`` by number, as in the timeline; ``code``: line -> its code, if known.
    """
    trees = {
        kind: {form: _plain(of_ranks(item.held[kind][form] for item in job.gathered)) for form in FORMS}
        for kind in TREES
    }
    rows = [tree for forms in trees.values() for tree in forms.values() if tree is not None]
    device = trees["device"]["merged"]
    tops = [] if device is None else zip(device["name"], device["parent"], strict=True)
    flat = {name for name, parent in tops if parent == 0} == {NO_STACK}
    order = ("scopes", "host", "samples", "device") if flat else ("device", "scopes", "host", "samples")
    places = {line for tree in rows for line in tree.pop("place")} - {""}
    code = excerpts(places, [source.path for source in job.analysis.sources])
    return {
        "trees": {
            kind: None if all(tree is None for tree in forms.values()) else forms for kind, forms in trees.items()
        },
        "kinds": [kind for kind in order if any(tree is not None for tree in trees[kind].values())],
        "categories": list(CATEGORY_WORDS),
        "colors": {ground: list(held) for ground, held in COLORS.items()},
        "code": {sanitize(line, NAME_CHARS): asdict(held) for line, held in code.items()},
    }


def _category(node: CallNode) -> Category:
    text = next(iter(node.recorded), node.name)
    if node.kind == "slice":
        return span_category(node.span, text)
    if node.kind == "kernel":
        return kernel_category(text)
    if node.kind == "sampled":
        return Category.PYTHON
    if node.kind == "instruction":
        return op_category(text, Category.INSTRUCTION)
    return {"collective": Category.COLLECTIVE, "copy": Category.COPY}.get(node.kind, Category.MODULE)


def _plain(root: CallNode) -> dict[str, list[Any]] | None:
    """The tree as rows, parents before children, arrays of equal length; ``None`` if it has no time.

    ``name``, ``whole`` (as recorded, if different), ``merged`` (names merged into it), ``ids`` (of these, for links),
    ``category``, ``parent``, ``ns``, ``own_ns``, ``count``, ``sampled`` (``count`` is of samples), ``first_ns``,
    ``fold`` and ``line``. Nodes too small to be seen are merged into one sibling.
    """
    if root.ns <= 0:
        return None
    least = root.ns * LEAST_SHARE
    rows: dict[str, list[Any]] = {}
    waiting: list[tuple[CallNode, int]] = [(root, -1)]
    for index, (node, parent) in enumerate(waiting):
        whole = sanitize(next(iter(node.recorded), ""), NAME_CHARS)
        name = sanitize(node.name, NAME_CHARS) or "(no name)"
        values = {
            "name": name,
            "whole": "" if whole == name or node.merged > 1 else whole,
            "merged": node.merged,
            "ids": "" if node.kind == "scope" else ",".join(map(name_id, node.recorded)),
            "category": int(_category(node)),
            "parent": parent,
            "ns": node.ns,
            "own_ns": node.own_ns,
            "count": node.count,
            "sampled": node.kind == "sampled",
            "first_ns": node.first_ns,
            "fold": sanitize(node.fold, NAME_CHARS),
            "line": sanitize(node.line, NAME_CHARS),
            "place": node.line,
        }
        for key, value in values.items():
            rows.setdefault(key, []).append(value)
        children = sorted(node.below.values(), key=lambda child: (-child.ns, child.name))
        large = [child for child in children if child.ns >= least]
        waiting += [(child, index) for child in large]
        small = children[len(large) :]
        if rest := sum(child.ns for child in small):
            count = sum(child.count for child in small)
            summed = CallNode(f"{len(small):,} smaller", kind="scope", own_ns=rest, ns=rest, count=count)
            waiting.append((summed, index))
    return rows
