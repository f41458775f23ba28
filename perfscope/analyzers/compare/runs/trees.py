"""Call trees of two recordings compared, and the difference of their critical paths.

Calls of one name under the same caller are one node, on any thread. The time of a node is that of the device work
launched inside it, or of the calls themselves if no device worked. For compiled XLA programs with timed instructions,
the tree is program, phase, scopes, instruction. The change of a node excludes the nodes below it; for a subtree that is
new, gone or moved it is the whole subtree. So the changes sum exactly to that of the tree, per step in ns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.keys import instruction_keys
from perfscope.analyzers.critical_path import dependency_graph, path_rows
from perfscope.analyzers.time import account_windows, marks_of
from perfscope.model.documents.comparison import CriticalPath, OtherParts, PathRow, Tree, TreeNode, TreeRow, TreeTime
from perfscope.model.trace import MISSING, SliceKind, Trace

MOST_ROWS = 2_000
"""Most rows of a tree or path that are kept; the rest become one sum, so that rows still sum to the whole."""

LEAST_SHARE = 0.001
"""Share of the tree. A node with the same number of calls that changed by less is equal; a node shorter than that on
both sides is not in ``flame``.
"""

MOST_DEPTH = 100
"""Maximum depth of the tree; deeper calls belong to their caller at this depth."""

_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d+")


class CallNode(Struct):
    """A call tree from this node down. Times and calls are per step."""

    name: str
    calls: float = 0.0
    ns: int = 0
    """Time of this node and all nodes below."""
    below: dict[str, CallNode] = field(default_factory=dict)

    def nodes(self) -> int:
        """Return the number of nodes here and below."""
        return 1 + sum(node.nodes() for node in self.below.values())

    def shape(self) -> tuple[object, ...]:
        """Return the features that a moved subtree keeps."""
        return self.name, tuple(sorted((node.shape() for node in self.below.values()), key=repr))


def call_tree(trace: Trace) -> CallNode | None:
    """Return the calls of the steps (of the capture without steps); ``None`` without ops and instructions."""
    return _instruction_tree(trace) if _time(trace) == "instructions" else _op_tree(trace)


def _time(trace: Trace) -> TreeTime:
    if len(trace.rows["hlo_ops"]):
        return "instructions"
    return "device" if len(trace.rows["kernels"]) else "host"


def _instruction_tree(trace: Trace) -> CallNode | None:
    """Return timed instructions below the program, the phase and the scopes of their source."""
    ops, windows = trace.rows["hlo_ops"], trace.fact(account_windows)
    window = np.searchsorted(windows.starts, ops["start_ns"], side="right") - 1
    kept = (window >= 0) & (ops["start_ns"] < windows.ends[np.maximum(window, 0)])
    rows = np.flatnonzero(kept & ~ops["encloses"] & ~ops["asynchronous"])
    if not len(rows):
        return None
    columns = np.stack([ops[key][rows].astype(np.int64) for key in ("module", "program_id", "name")])
    _, first, at = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    calls, total = np.bincount(at.ravel()), np.zeros(len(first), np.int64)
    np.add.at(total, at.ravel(), (ops["end_ns"] - ops["start_ns"])[rows])
    root = CallNode(name="")
    for number, key in enumerate(instruction_keys(trace, rows[first])):
        program = trace.text(int(ops["module"][rows[first[number]]]))
        scopes = () if key.module == program else key.module.split("/")
        node = root
        for name in filter(None, (program, key.phase, *scopes, key.op)):
            node = node.below.setdefault(name, CallNode(name=name))
        node.calls += int(calls[number])
        node.ns += int(total[number])
    _per_step(root, max(len(windows.numbers), 1), inclusive=False)
    return root


def _op_tree(trace: Trace) -> CallNode | None:
    slices, windows = trace.rows["slices"], marks_of(trace, trace.fact(account_windows))
    kept = np.isin(slices["kind"], [SliceKind.OP, SliceKind.ANNOTATION])
    kept &= ~np.isin(slices["name"], trace.rows["steps"]["name"])
    if not (slices["kind"] == SliceKind.OP).any() or not len(windows.starts):
        return None
    window = np.searchsorted(windows.starts, slices["start_ns"], side="right") - 1
    kept &= (window >= 0) & (slices["start_ns"] < windows.ends[np.maximum(window, 0)])
    names = {code: _NUMBER.sub("*", trace.text(code)) for code in np.unique(slices["name"][kept]).tolist()}
    root = CallNode(name="")
    of_row: list[CallNode] = []
    depth: list[int] = []
    for row, (name, parent) in enumerate(zip(slices["name"].tolist(), slices["parent"].tolist(), strict=True)):
        caller, level = (root, 0) if parent == MISSING else (of_row[parent], depth[parent])
        kept[row] &= level < MOST_DEPTH
        if kept[row]:
            caller, level = caller.below.setdefault(names[name], CallNode(name=names[name])), level + 1
            caller.calls += 1
        of_row.append(caller)
        depth.append(level)
    on_device = _add_times(trace, root, of_row, kept)
    steps = max(len(windows.numbers), 1)
    _per_step(root, steps, inclusive=not on_device)
    return root


def _add_times(trace: Trace, root: CallNode, of_row: list[CallNode], kept: np.ndarray) -> bool:
    """Add device time to each node and return ``True``; without device work add whole calls and return ``False``."""
    slices, on_device = trace.rows["slices"], bool(len(trace.rows["kernels"]))
    if on_device:
        for table in ("kernels", "copies"):
            work = trace.rows[table]
            linked = work["op"] != MISSING
            lengths = (work["end_ns"] - work["start_ns"])[linked]
            for row, length in zip(work["op"][linked].tolist(), lengths.tolist(), strict=True):
                if of_row[row] is not root:
                    of_row[row].ns += length
    else:
        for row in np.flatnonzero(kept).tolist():
            of_row[row].ns += int(slices["end_ns"][row] - slices["start_ns"][row])
    return on_device


def _per_step(node: CallNode, steps: int, *, inclusive: bool) -> None:
    """Divide times and calls of all nodes by the steps; a node has at least the time of those below it."""
    for child in node.below.values():
        _per_step(child, steps, inclusive=inclusive)
    below = sum(child.ns for child in node.below.values())
    node.calls /= steps
    own = round(node.ns / steps)
    node.ns = max(own, below) if inclusive else own + below


def tree_change(base: Trace, head: Trace) -> Tree | None:
    """``None`` where a side has no calls, or their times are not of one kind."""
    before, after = base.fact(call_tree), head.fact(call_tree)
    time = _time(base)
    if before is None or after is None or time != _time(head):
        return None
    rows = _moved(list(_differences(before, after, ())), before, after)
    least = LEAST_SHARE * max(before.ns, after.ns)
    unlike = [
        row
        for row in rows
        if row.change in ("added", "removed", "moved") or row.base_calls != row.head_calls or abs(row.delta_ns) > least
    ]
    unlike = sorted(unlike, key=lambda row: (-abs(row.delta_ns), row.path))
    nodes, others = sum(row.nodes for row in rows), unlike[MOST_ROWS:]
    return Tree(
        time=time,
        base_ns=before.ns,
        head_ns=after.ns,
        nodes=nodes,
        equal=nodes - sum(row.nodes for row in unlike),
        equal_ns=after.ns - before.ns - sum(row.delta_ns for row in unlike),
        rows=tuple(unlike[:MOST_ROWS]),
        others=len(others),
        others_ns=sum(row.delta_ns for row in others),
        flame=tuple(_flame(before, after, {path for row in rows if row.was for path in (row.path, row.was)}, least))[
            :MOST_ROWS
        ],
    )


def _flame(base: CallNode, head: CallNode, moved: Set[tuple[str, ...]], least: float) -> Iterator[TreeNode]:
    """Yield the nodes of either tree of ``least`` ns or more. ``moved``: paths of subtrees on either side."""
    waiting: list[tuple[CallNode | None, CallNode | None, int, tuple[str, ...], bool]] = [(base, head, -1, (), False)]
    for number, (mine, theirs, parent, path, elsewhere) in enumerate(waiting):
        node = theirs or mine or base
        base_ns, head_ns = mine.ns if mine else 0, theirs.ns if theirs else 0
        alike = mine is not None and theirs is not None and mine.calls == theirs.calls
        yield TreeNode(
            name=node.name or "all",
            parent=parent,
            change="moved" if elsewhere
            else "added" if mine is None
            else "removed" if theirs is None
            else "equal" if base_ns == head_ns or (alike and abs(head_ns - base_ns) <= least)
            else "slower" if head_ns > base_ns
            else "faster",
            base_calls=mine.calls if mine else 0,
            head_calls=theirs.calls if theirs else 0,
            base_ns=base_ns,
            head_ns=head_ns,
        )  # fmt: skip
        sides = [side.below if side else {} for side in (mine, theirs)]
        below = [(sides[0].get(name), sides[1].get(name), name) for name in dict.fromkeys((*sides[0], *sides[1]))]
        long = [(max(one.ns for one in pair if one), pair, name) for *pair, name in below]
        for _, (left, right), name in sorted(
            (row for row in long if row[0] >= least), key=lambda row: (-row[0], row[2])
        ):
            inner = (*path, name)
            waiting.append((left, right, number, inner, elsewhere or inner in moved))


def _differences(base: CallNode, head: CallNode, path: tuple[str, ...]) -> Iterator[TreeRow]:
    """Yield a row for each node of both trees, and one for each subtree of one side only."""
    delta = head.ns - base.ns
    for name in dict.fromkeys((*base.below, *head.below)):
        mine, theirs = base.below.get(name), head.below.get(name)
        if mine is not None and theirs is not None:
            yield from _differences(mine, theirs, (*path, name))
        else:
            yield _alone(mine, theirs, (*path, name))
        delta -= (theirs.ns if theirs else 0) - (mine.ns if mine else 0)
    yield TreeRow(
        change="slower" if delta > 0 else "faster",
        path=path,
        nodes=1 if path else 0,
        base_calls=base.calls,
        head_calls=head.calls,
        base_ns=base.ns,
        head_ns=head.ns,
        delta_ns=delta,
    )


def _alone(base: CallNode | None, head: CallNode | None, path: tuple[str, ...]) -> TreeRow:
    node = head or base
    return TreeRow(
        change="added" if base is None else "removed",
        path=path,
        nodes=0 if node is None else node.nodes(),
        base_calls=base.calls if base else 0.0,
        head_calls=head.calls if head else 0.0,
        base_ns=base.ns if base else 0,
        head_ns=head.ns if head else 0,
        delta_ns=(head.ns if head else 0) - (base.ns if base else 0),
    )


def _moved(rows: list[TreeRow], base: CallNode, head: CallNode) -> list[TreeRow]:
    """Merge subtrees of one shape that went and came into one row; the largest are merged first."""
    alike: dict[object, tuple[list[TreeRow], list[TreeRow]]] = defaultdict(lambda: ([], []))
    for row in rows:
        if row.change == "removed":
            alike[_at(base, row.path).shape()][0].append(row)
        elif row.change == "added":
            alike[_at(head, row.path).shape()][1].append(row)
    moved: dict[tuple[str, ...], TreeRow] = {}
    for gone, came in alike.values():
        gone.sort(key=lambda row: (-row.base_ns, row.path))
        came.sort(key=lambda row: (-row.head_ns, row.path))
        moved |= {row.path: was for was, row in zip(gone, came, strict=False)}
    taken = {was.path for was in moved.values()}
    result = []
    for row in rows:
        if row.change == "added" and row.path in moved:
            was = moved[row.path]
            row = replace(
                row,
                change="moved",
                was=was.path,
                base_calls=was.base_calls,
                base_ns=was.base_ns,
                delta_ns=row.head_ns - was.base_ns,
            )
        if row.change != "removed" or row.path not in taken:
            result.append(row)
    return result


def _at(tree: CallNode, path: Sequence[str]) -> CallNode:
    for name in path:
        tree = tree.below[name]
    return tree


# The difference of two critical paths.


def path_change(base: Trace, head: Trace) -> CriticalPath | None:
    """``None`` where a side has no path."""
    sides = []
    for trace in (base, head):
        graph = trace.fact(dependency_graph)
        if graph is None:
            return None
        steps = max(len(graph.windows.numbers), 1)
        sides.append({(row.where, row.name): round(row.total_ns / steps) for row in path_rows(trace)})
    rows = [
        PathRow(where=key[0], name=key[1], base_ns=sides[0].get(key, 0), head_ns=sides[1].get(key, 0))
        for key in dict.fromkeys((*sides[0], *sides[1]))
    ]
    rows.sort(key=lambda row: (-abs(row.head_ns - row.base_ns), row.where, row.name))
    others = rows[MOST_ROWS:]
    return CriticalPath(
        base_ns=sum(sides[0].values()),
        head_ns=sum(sides[1].values()),
        rows=tuple(rows[:MOST_ROWS]),
        other_rows=OtherParts(
            count=len(others), base_ns=sum(row.base_ns for row in others), head_ns=sum(row.head_ns for row in others)
        ),
    )
