"""Time as trees: host stacks, device work below the host spans that launched it, sampled stacks, scopes of programs.

A node is a name below a path of names. Its time includes all nodes below it; the remainder is its self time, so that
self times of a tree sum to the whole exactly. In a *merged* tree repetitions are one node: steps, and layers that are
modules of one class or scopes with one name and different numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.analyzers.ops import short_kernel_name
from perfscope.analyzers.programs import hot_instructions
from perfscope.analyzers.sections.sampled import (
    MODULE_CALL,
    SampledFrame,
    sampled_stacks,
    unrecorded_calls,
)
from perfscope.analyzers.time import call_site
from perfscope.model.frames import parse_frame, parse_module
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, SliceKind, Trace

Kind = Literal["slice", "kernel", "collective", "copy", "scope", "instruction", "sampled"]
"""Kind of a node; ``slice``: a host span, whose own kind is ``CallNode.span``; ``sampled``: a frame of sampled stacks.
"""

NO_STACK = "launching op unknown"
SOLE_SHARE = 0.99
"""Share of a frame's time in a single frame below it, from which the outer one only leads to that."""
LEAST_SHARE = 1 / 4_000
"""Share of the whole below which nodes are merged into a sibling: a quarter of a pixel on a wide screen."""
FOLDED = "-"
MOST_RECORDED = 64
"""Most recorded names that a merged node keeps."""

_NUMBERED = re.compile(r"(#(\w+=)?\d+#?|[ _]\d+)$")
_NUMBERED_SCOPE = re.compile(r"([_.]\d+|\[\d+\])$")


class CallNode(Struct):
    """A name below a path. Times in ns."""

    name: str
    """Short, and without a number if it represents several names."""
    kind: Kind = "slice"
    span: SliceKind = SliceKind.OTHER
    own_ns: int = 0
    count: int = 0
    """Number of runs; of a sampled frame, number of samples."""
    ns: int = 0
    """Including all nodes below; set by `sum_tree`."""
    first_ns: int | None = None
    """Start of its first run, after the first event of the trace; None without a time."""
    recorded: dict[str, None] = field(default_factory=dict)
    """Recorded names, at most `MOST_RECORDED`."""
    merged: int = 1
    """Number of different names merged into it."""
    line: str = ""
    """``file:line`` of the program."""
    fold: str = ""
    """For Python frames that only lead to the next one: the label of a row of launchers on its first frame, `FOLDED` on
    the others.
    """
    row: int = MISSING
    """First row in ``slices``."""
    lines: dict[int, int] = field(default_factory=dict)
    """Time of a sampled function by line: row of ``frames`` -> ns."""
    below: dict[str, CallNode] = field(default_factory=dict)

    def add(self, other: CallNode) -> None:
        """Merge the same node of another rank, without the nodes below it."""
        self.own_ns += other.own_ns
        self.count += other.count
        self.merged = max(self.merged, other.merged)
        self.line = self.line or other.line
        firsts = [first for first in (self.first_ns, other.first_ns) if first is not None]
        self.first_ns = min(firsts, default=None)
        self.recorded |= dict.fromkeys(list(other.recorded)[: max(0, MOST_RECORDED - len(self.recorded))])


def host_tree(trace: Trace, *, merge: bool) -> CallNode:
    """Call stacks of host threads; waiting is included. Time without a recorded op has its sampled stacks."""
    return _finished(trace, trace.fact(_merged_stacks if merge else _plain_stacks).root)


def device_tree(trace: Trace, *, merge: bool) -> CallNode:
    """Kernels and copies below the host spans that launched them."""
    stacks = trace.fact(_merged_stacks if merge else _plain_stacks)
    root = CallNode("all", "scope")
    made: dict[int, CallNode] = {}
    begin = _begin(trace)
    for table in ("kernels", "copies"):
        rows = trace.rows[table]
        if not len(rows):
            continue
        above = np.full(len(rows), MISSING, np.int64)
        linked = rows["op"] != MISSING
        above[linked] = stacks.node[rows["op"][linked]]
        keys, positions = np.unique(np.stack((above, rows["name"]), axis=1), axis=0, return_inverse=True)
        sums = _Sums(len(keys), positions.ravel(), rows["end_ns"] - rows["start_ns"], rows["start_ns"] - begin)
        communicates = np.bincount(sums.at, rows["communication"], len(keys)) if table == "kernels" else None
        for index, (parent, code) in enumerate(keys.tolist()):
            text = trace.text(code)
            kind: Kind = "copy" if communicates is None else "collective" if communicates[index] else "kernel"
            node = CallNode(
                short_kernel_name(text) if table == "kernels" else text, kind, recorded={text: None}, row=MISSING
            )
            sums.fill(node, index)
            _copied(root, stacks, parent, made).below[f"{table} {text}"] = node
    return _finished(trace, root)


def sampled_tree(trace: Trace, *, merge: bool) -> CallNode:
    """Sampled stacks of the steps' thread in all steps; ``count``: samples. Both forms are equal."""
    root, begin = CallNode("all", "scope"), _begin(trace)
    for item in sampled_stacks(trace):
        _add_sampled(trace, root, item, begin)
    sum_tree(root)
    return root


def scope_tree(trace: Trace, *, merge: bool) -> CallNode:
    """Instructions of compiled programs below the program and the scopes of its source."""
    root = CallNode("all", "scope")
    for spots in trace.fact(hot_instructions):
        for found in spots.instructions:
            node = root
            for part in (found.program, *(part for part in (found.scope or "no scope").split("/") if part)):
                name = _NUMBERED_SCOPE.sub("", part) if merge and node is not root else part
                node = node.below.setdefault(name or part, CallNode(name or part, "scope"))
                node.recorded[part] = None
                node.merged = len(node.recorded)
            leaf = node.below.setdefault(found.instruction, CallNode(found.instruction, "instruction"))
            leaf.own_ns += found.time_ns
            leaf.count += found.calls
            leaf.recorded[found.instruction] = None
            if found.file is not None:
                leaf.line = found.file if found.line is None else f"{found.file}:{found.line}"
    sum_tree(root)
    return root


def of_ranks(trees: Iterable[CallNode]) -> CallNode:
    """The trees of all ranks as one, with sums, and with launcher frames marked."""
    root = CallNode("all", "scope")
    for tree in trees:
        waiting = [(root, tree)]
        while waiting:
            into, node = waiting.pop()
            into.add(node)
            for key, child in node.below.items():
                same = into.below.setdefault(key, CallNode(child.name, child.kind, child.span))
                waiting.append((same, child))
    sum_tree(root)
    for node in _nodes(root):
        if node.span == SliceKind.PYTHON and node.below and MODULE_CALL.fullmatch(node.name):
            node.fold = FOLDED
    for top in root.below.values():
        _mark_launchers(top)
    return root


def sum_tree(root: CallNode) -> None:
    """Set ``ns`` and ``first_ns`` of every node, from the leaves up."""
    for node in reversed(list(_nodes(root))):  # without recursion: stacks are deeper than Python's limit
        node.ns = node.own_ns + sum(child.ns for child in node.below.values())
        firsts = [first for child in node.below.values() if (first := child.first_ns) is not None]
        if node.first_ns is None and firsts:
            node.first_ns = min(firsts)


def _nodes(root: CallNode) -> Iterator[CallNode]:
    """All nodes, parents before their children."""
    order, index = [root], 0
    while index < len(order):
        order += order[index].below.values()
        index += 1
    yield from order


def _mark_launchers(top: CallNode) -> None:
    """Mark frames, from the outermost down, that only call the next one, up to the program's own frames."""
    chain: list[CallNode] = []
    node = top
    while node.below and node.span == SliceKind.PYTHON and not any(map(parse_module, node.recorded)):
        inner = max(node.below.values(), key=lambda child: child.ns)
        if inner.ns < SOLE_SHARE * node.ns:
            break
        chain.append(node)
        node = inner
    if len(chain) > 1:
        chain[0].fold = f"{len(chain)} launcher frames: {chain[0].name} … {chain[-1].name}"
        for node in chain[1:]:
            node.fold = FOLDED


def _finished(trace: Trace, root: CallNode) -> CallNode:
    """The tree with its sums, and the lines of nodes large enough to be seen."""
    sum_tree(root)
    least = root.ns * LEAST_SHARE
    for node in _nodes(root):
        if node.row == MISSING or node.ns < least:
            continue
        frame = parse_frame(next(iter(node.recorded), "")) if node.span == SliceKind.PYTHON else None
        if frame is not None:
            node.line = f"{frame.file}:{frame.line}" if not frame.file.startswith("<") else ""
        elif (site := call_site(trace, node.row)).file is not None:
            node.line = site.where().label()
    return root


class _Stacks(Struct, frozen=True):
    """The distinct stacks of the host. ``parent`` and ``nodes``: by number of a stack, ``node``: by row of slices."""

    root: CallNode
    nodes: list[CallNode]
    keys: list[str]
    parent: list[int]
    node: Int64


class _Sums:
    """Time, count and first start by group: ``at`` is the group of each row."""

    def __init__(self, size: int, at: npt.NDArray[np.intp], lasts: Int64, starts: Int64) -> None:
        self.at = at
        self._ns, self._count = np.zeros(size, np.int64), np.bincount(at, minlength=size)
        self._first = np.full(size, np.iinfo(np.int64).max)
        np.add.at(self._ns, at, lasts)
        np.minimum.at(self._first, at, starts)

    def fill(self, node: CallNode, index: int) -> None:
        """Store the values of a group in its node."""
        node.own_ns, node.count = int(self._ns[index]), int(self._count[index])
        node.first_ns = int(self._first[index])


def _plain_stacks(trace: Trace) -> _Stacks:
    return _stacks(trace, merge=False)


def _merged_stacks(trace: Trace) -> _Stacks:
    return _stacks(trace, merge=True)


def _stacks(trace: Trace, *, merge: bool) -> _Stacks:
    """Nodes of the host's spans, level by level: parents come before their children in the table."""
    slices = trace.rows["slices"]
    label, labels = _labels(trace, merge=merge)
    found = _Stacks(CallNode("all", "scope"), [], [], [], np.full(len(slices), MISSING, np.int64))
    left = np.flatnonzero(slices["parent"] == MISSING)
    above = np.full(len(left), MISSING, np.int64)
    while len(left):
        keys, first, positions = np.unique(
            (above + 1) * len(labels) + label[left], return_index=True, return_inverse=True
        )
        found.node[left] = len(found.nodes) + positions
        for key, row in zip(keys.tolist(), left[first].tolist(), strict=True):
            parent, name = key // len(labels) - 1, labels[key % len(labels)]
            node = CallNode(name, span=SliceKind(int(slices["kind"][row])), row=row)
            (found.root if parent == MISSING else found.nodes[parent]).below[name] = node
            found.nodes.append(node)
            found.keys.append(name)
            found.parent.append(parent)
        placed = np.zeros(len(slices), np.bool_)
        placed[left] = True
        rest = np.flatnonzero((found.node == MISSING) & (slices["parent"] != MISSING))
        left = rest[placed[slices["parent"][rest]]]
        above = found.node[slices["parent"][left]]
    lasts = slices["end_ns"] - slices["start_ns"]
    own = lasts.copy()
    inside = np.flatnonzero(slices["parent"] != MISSING)
    np.subtract.at(own, slices["parent"][inside], lasts[inside])
    sums = _Sums(len(found.nodes), found.node, own, slices["start_ns"] - _begin(trace))
    for index, node in enumerate(found.nodes):
        sums.fill(node, index)
    names = np.unique(found.node * max(len(trace.strings), 1) + slices["name"])
    for key in names.tolist():
        node = found.nodes[key // len(trace.strings)]
        if len(node.recorded) < MOST_RECORDED:
            node.recorded[trace.text(key % len(trace.strings))] = None
    counted = np.bincount(names // max(len(trace.strings), 1), minlength=len(found.nodes))
    for index in np.flatnonzero(counted > 1).tolist():
        found.nodes[index].merged = int(counted[index])
    begin = _begin(trace)
    for item in unrecorded_calls(trace):
        around = found.root if item.slice == MISSING else found.nodes[found.node[item.slice]]
        around.own_ns -= 0 if around is found.root else item.total_ns
        _add_sampled(trace, around, item, begin)
    return found


def _add_sampled(trace: Trace, node: CallNode, item: SampledFrame, begin: int) -> None:
    """Add a sampled stack below ``node``: a node per function, named by its line with most time.

    ``begin``: start of the trace, from `_begin`.
    """
    frames = trace.rows["frames"]
    place = ""
    for row in item.path:
        file = trace.text(int(frames["file"][row]))
        name = trace.text(int(frames["name"][row])).replace("<locals>.", "")
        key = f"sampled {file} {name}"
        inner = node.below.get(key)
        if inner is None:
            inner = node.below[key] = CallNode(name, "sampled", SliceKind.PYTHON, recorded={name: None})
        inner.lines[row] = inner.lines.get(row, 0) + item.total_ns
        if file:
            most = max(inner.lines, key=lambda line: inner.lines[line])
            inner.line, place = (f"{file}:{int(frames['line'][at])}" for at in (most, row))
            inner.name = f"{name} ({PurePath(inner.line).name})"
        else:  # what the line above calls
            inner.line = inner.line or place
        inner.count += item.samples
        node = inner
    node.own_ns += item.total_ns
    first = max(item.first_ns - begin, 0)
    node.first_ns = first if node.first_ns is None else min(node.first_ns, first)


def _labels(trace: Trace, *, merge: bool) -> tuple[Int64, list[str]]:
    """The label of each row of ``slices``, by number, and the labels."""
    slices = trace.rows["slices"]
    pairs, positions = np.unique(slices["name"].astype(np.int64) * len(SliceKind) + slices["kind"], return_inverse=True)
    numbers: dict[str, int] = {}
    of_pair = []
    for pair in pairs.tolist():
        text, kind = trace.text(pair // len(SliceKind)) or "(no name)", pair % len(SliceKind)
        of_pair.append(numbers.setdefault(_merged(text, SliceKind(kind)) if merge else text, len(numbers)))
    return np.array(of_pair, np.int64)[positions] if of_pair else np.empty(0, np.int64), list(numbers) or [""]


def _merged(text: str, kind: SliceKind) -> str:
    """A name without the number that distinguishes a step, or a module of one class, from the others."""
    return without_number(text) if kind == SliceKind.ANNOTATION or parse_module(text) is not None else text


def without_number(text: str) -> str:
    """``ProfilerStep`` of ``ProfilerStep#3``, ``nn.Module: Linear`` of ``nn.Module: Linear_7``."""
    return _NUMBERED.sub("", text) or text


def _copied(root: CallNode, stacks: _Stacks, number: int, made: dict[int, CallNode]) -> CallNode:
    """The node of a stack in another tree, created with all its ancestors."""
    if number == MISSING:
        return root.below.setdefault(NO_STACK, CallNode(NO_STACK, "scope"))
    path = []
    while number != MISSING and number not in made:
        path.append(number)
        number = stacks.parent[number]
    node = made.get(number, root)
    for each in reversed(path):
        held = stacks.nodes[each]
        copy = CallNode(held.name, held.kind, held.span, merged=held.merged, recorded=held.recorded, row=held.row)
        node.below[stacks.keys[each]] = made[each] = copy
        node = copy
    return node


def _begin(trace: Trace) -> int:
    """The first start of host spans and device work, ns."""
    starts = [trace.rows[table]["start_ns"] for table in ("slices", "kernels", "copies")]
    return min((int(start.min()) for start in starts if len(start)), default=0)
