"""What inductor's scheduler did not fuse, and why, graph by graph.

The scheduler says so of pairs of nodes, again in each round, also of pairs that a later round fuses by another
way. What counts is the end: a refusal is kept where its two nodes ended in different kernels, once for the two
kernels and the reason. The file grows with each graph and is whole but for the last line after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any

from perfscope.profiler.torch import compat

FILE = "fusion.jsonl"
SCHEMA = "perfscope.fusion/1"

MOST_PAIRS = 20_000
"""Different refusals that are held of one graph; the scheduler itself looks at no more than some 64 neighbours of
a buffer, so only graphs of thousands of nodes come here."""
MOST_KEPT = 1_000
"""Refusals that are written of one graph, those with the most shared bytes first."""
MOST_BYTES = 32 << 20
"""Of the file: some 60,000 refusals."""
MOST_NODES = 64
"""Names of nodes that are written of one kernel."""
MOST_REASON = 500
"""Characters of a reason: some print whole index expressions."""


@dataclass(slots=True)
class Refusal:
    """A reason that was given for a pair of scheduler nodes."""

    first: Any
    second: Any
    reason: str
    arguments: tuple[Any, ...]
    times: int = 1


class FusionLog:
    """Listens to the scheduler. ``place``: the folder of the file, which exists by then."""

    def __init__(self) -> None:
        """Nothing is hooked yet."""
        self._held: dict[tuple[str, str, str], Refusal] = {}
        self._overflow = 0
        self._undo: compat.Undo | None = None
        self._bytes = 0
        self.place: Path | None = None
        self.graphs = 0
        """Graphs that were scheduled while this listened."""
        self.left_out = 0
        """Refusals that there was no room for."""
        self.problem: str | None = None
        """Why nothing is written, or nothing more."""

    def start(self) -> None:
        """Inductor is imported: listen to it."""
        hooked = compat.hook_scheduler(self._refused, self._decided)
        if isinstance(hooked, str):
            self.problem = hooked
        else:
            self._undo = hooked

    def stop(self) -> None:
        """Leave inductor as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _refused(self, first: Any, second: Any, reason: str, arguments: tuple[Any, ...]) -> None:
        try:
            key = (first.get_name(), second.get_name(), reason)
            refusals = self._held.get(key)
            if refusals is not None:
                refusals.times += 1
            elif len(self._held) < MOST_PAIRS:
                self._held[key] = Refusal(first, second, reason, arguments)
            else:
                self._overflow += 1
        except Exception as error:  # the program compiles: nothing of ours may stop it
            self.problem = f"{type(error).__name__}: {error}"

    def _decided(self, scheduler: Any) -> None:
        refusals, self._held = self._held, {}
        overflow, self._overflow = self._overflow, 0
        try:
            self.graphs += 1
            if self.place is not None and self.problem is None:
                self._write(scheduler, list(refusals.values()), overflow)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _write(self, scheduler: Any, refusals: list[Refusal], left_out: int) -> None:
        assert self.place is not None
        path = self.place / FILE
        where = {"compile_id": compat.compile_id(), "direction": compat.direction()}
        records, fused_after_all = kernels_apart(scheduler, refusals)
        records.sort(key=lambda one: -(one["shared_bytes"] or one["common_read_bytes"] or 0))
        left_out += len(records[MOST_KEPT:])
        lines = []
        for record in records[:MOST_KEPT]:
            line = json.dumps({"kind": "refusal", **where, **record}) + "\n"
            if self._bytes + len(line) > MOST_BYTES:
                left_out += 1
                continue
            self._bytes += len(line)
            lines.append(line)
        self.left_out += left_out
        graph = {
            "kind": "graph",
            **where,
            "time_ns": time_ns(),
            "nodes": sum(len(kernel.get_nodes()) for kernel in scheduler.nodes),
            "kernels": len(scheduler.nodes),
            "refusals": len(lines),
            "fused_after_all": fused_after_all,
            "left_out": left_out,
        }
        head = "" if path.exists() else json.dumps({"schema": SCHEMA, "torch": compat.torch_version()}) + "\n"
        with path.open("a") as stream:
            stream.write("".join((head, json.dumps(graph) + "\n", *lines)))


def kernels_apart(scheduler: Any, refusals: Iterable[Refusal]) -> tuple[list[dict[str, Any]], int]:
    """The refusals by the kernels their nodes ended in, and how many are of nodes that ended in one."""
    kernel_of = {node.get_name(): kernel for kernel in scheduler.nodes for node in kernel.get_nodes()}
    pairs: dict[tuple[str, str, str], dict[str, Any]] = {}
    fused_after_all = 0
    for refusal in refusals:
        first = _final_kernel(refusal.first, kernel_of)
        second = _final_kernel(refusal.second, kernel_of)
        if first is second:
            fused_after_all += 1
            continue
        key = (first.get_name(), second.get_name(), refusal.reason)
        if key in pairs:
            pairs[key]["times"] += refusal.times
            continue
        pairs[key] = {
            "first": key[0],
            "second": key[1],
            "reason": _reason_text(refusal),
            "times": refusal.times,
            "first_nodes": _nodes(first),
            "second_nodes": _nodes(second),
            "shared_bytes": _bytes(first, second, writes=True),
            "common_read_bytes": _bytes(first, second, writes=False),
        }
    return list(pairs.values()), fused_after_all


def _final_kernel(node: Any, kernel_of: dict[str, Any]) -> Any:
    """The one kernel that all parts of a node ended in; the node itself where that is not so."""
    kernels = {id(kernel): kernel for part in node.get_nodes() if (kernel := kernel_of.get(part.get_name()))}
    return next(iter(kernels.values())) if len(kernels) == 1 else node


def _reason_text(refusal: Refusal) -> str:
    try:
        text = refusal.reason % refusal.arguments
    except (TypeError, ValueError):  # the words alone, where torch's own would not print
        text = refusal.reason
    return " ".join(text.split())[:MOST_REASON]


def _nodes(kernel: Any) -> list[str]:
    """Names of the nodes of the graph that a kernel computes."""
    names = {
        str(origin.name)
        for part in kernel.get_nodes()
        for origin in getattr(getattr(part, "node", None), "origins", None) or ()
    }
    return sorted(names)[:MOST_NODES]


def _bytes(first: Any, second: Any, *, writes: bool) -> int | None:
    """Bytes the second reads of what the first writes, or of what both read; ``None`` if torch cannot say.

    A buffer counts once, with the most that is read of it by one access.
    """
    try:
        if writes:
            shared = {str(name) for name in first.get_buffer_names()}
        else:
            shared = {str(dep.name) for dep in first.read_writes.reads if _is_data(dep)}
        read: dict[str, int] = {}
        for dep in second.read_writes.reads:
            if dep.name in shared and _is_data(dep):
                read[dep.name] = max(read.get(dep.name, 0), int(dep.numbytes_hint()))
        return sum(read.values())
    except Exception:  # sizes that depend on data have no hint, and torch says so in errors of many kinds
        return None


def _is_data(dep: Any) -> bool:
    """Whether a dependency moves data; a ``WeakDep`` only keeps an order."""
    return type(dep).__name__ != "WeakDep"
