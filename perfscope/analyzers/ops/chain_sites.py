"""Fusion groups gathered by the function that wrote them: one place to change, however often it runs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from perfscope.analyzers.ops.attention import graph_attentions
from perfscope.analyzers.ops.fusion import FusionGroup, fusion_groups
from perfscope.analyzers.ops.graph_time import short_name
from perfscope.model.op_graph import OpGraph, Phase
from perfscope.model.trace import Trace

LONGEST_CHAIN = 6
"""Names shown of a chain: what a line of a report holds."""

GRADIENT_SUM = frozenset({"add", "add_"})
"""A backward chain of these alone is autograd adding up gradients as they arrive: one kernel for all of them
would have to hold every one of them until the last is there."""

Place = tuple[str | None, str | None, str]
"""(file, function, module with its numbers left out)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Groups of one place that are the same: same phase, ops and bytes."""

    phase: Phase
    names: tuple[str, ...]
    groups: tuple[FusionGroup, ...]
    lines: tuple[int, ...]
    """Lines of its ops in the place, those with most ops first."""

    @property
    def saved_bytes(self) -> int:
        """In one step, over all its groups."""
        return sum(group.saved_bytes for group in self.groups)

    @property
    def kernels_saved(self) -> int:
        """Kernels fewer in one step if each group became one."""
        return sum(len(group.ops) - 1 for group in self.groups)

    @property
    def ops(self) -> list[int]:
        """Indices of all ops of all its groups."""
        return [index for group in self.groups for index in group.ops]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The patterns of one place, most saved bytes first."""

    file: str | None
    function: str | None
    module: str
    line: int | None
    """The line of most ops in the pattern that saves most, the first of several."""
    patterns: tuple[Pattern, ...]


def chain_sites(trace: Trace) -> tuple[Site, ...]:
    """The places that write chains of elementwise ops, most saved bytes first.

    The optimizer's and those inside written-out attention are left out: they have rules of their own.
    """
    graph = trace.op_graph
    if graph is None:
        return ()
    attention = _attention_ops(trace, graph)
    places: dict[Place, dict[tuple[Phase, tuple[str, ...], int, int], list[FusionGroup]]] = {}
    for group in trace.fact(fusion_groups):
        phase = graph.ops[group.ops[0]].phase
        names = tuple(short_name(graph.ops[index]) for index in group.ops)
        if phase == "optimizer" or group.saved_bytes <= 0 or not attention.isdisjoint(group.ops):
            continue
        if phase == "backward" and GRADIENT_SUM.issuperset(names):
            continue
        same = places.setdefault(_place(graph, group), {})
        same.setdefault((phase, names, group.eager_bytes, group.fused_bytes), []).append(group)
    sites = [_site(graph, place, same) for place, same in places.items()]
    return tuple(sorted(sites, key=lambda site: -sum(pattern.saved_bytes for pattern in site.patterns)))


def _attention_ops(trace: Trace, graph: OpGraph) -> set[int]:
    """Score ops, and all that torch's own math fallback runs on its line."""
    found = trace.fact(graph_attentions)
    fallback = {(graph.ops[one.softmax].file, graph.ops[one.softmax].line) for one in found if one.by_sdpa}
    on_line = {index for index, op in enumerate(graph.ops) if (op.file, op.line) in fallback and op.file is not None}
    return on_line | {index for one in found for index in one.ops}


def chain_text(names: tuple[str, ...]) -> str:
    """``add -> mul -> silu``: names in order, repeats of a run left out, the tail as ``...``."""
    shown: list[str] = []
    for name in names:
        if name not in shown or len(names) <= LONGEST_CHAIN:
            shown.append(name)
    return " -> ".join((*shown[:LONGEST_CHAIN], "...") if len(shown) > LONGEST_CHAIN else shown)


def _place(graph: OpGraph, group: FusionGroup) -> Place:
    """The function that wrote most of the group's ops."""
    written = Counter((graph.ops[index].file, graph.ops[index].function) for index in group.ops)
    file, function = max(written, key=lambda place: (written[place], place[0] is not None))
    modules = Counter(graph.ops[index].module for index in group.ops)
    return file, function, re.sub(r"\d+", "*", max(modules, key=lambda name: modules[name]))


def _site(graph: OpGraph, place: Place, same: dict[tuple[Phase, tuple[str, ...], int, int], list[FusionGroup]]) -> Site:
    file, function, module = place
    patterns = []
    for (phase, names, _, _), groups in same.items():
        ops = [graph.ops[index] for group in groups for index in group.ops]
        lines = Counter(op.line for op in ops if (op.file, op.function) == (file, function) and op.line is not None)
        busiest = tuple(sorted(lines, key=lambda line: (-lines[line], line)))
        patterns.append(Pattern(phase=phase, names=names, groups=tuple(groups), lines=busiest))
    patterns.sort(key=lambda pattern: (-pattern.saved_bytes, pattern.names))
    leading = next((pattern for pattern in patterns if pattern.phase != "backward"), patterns[0])
    return Site(
        file=file,
        function=function,
        module=module,
        line=leading.lines[0] if leading.lines else None,
        patterns=(leading, *(pattern for pattern in patterns if pattern is not leading)),
    )
