"""Findings of ``unfused_ops`` from an op graph: fusion groups by the function that wrote them, with their cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.ops.attention import graph_attentions
from perfscope.analyzers.ops.finding_spans import spans_of_ops
from perfscope.analyzers.ops.fusion import FusionGroup, chain_text, fusion_groups
from perfscope.analyzers.ops.graph_time import removed_ops
from perfscope.analyzers.plans import Saving, how_joined, saving, step_bytes, step_ns, steps_in
from perfscope.model.finding import MOST_ROWS, Cell, Finding, Where, fit_title
from perfscope.model.op_graph import OpGraph, Phase
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

GRADIENT_SUM = frozenset({"add", "add_"})
"""A backward chain of only these is autograd adding gradients as they arrive: one kernel for all would have to keep
every gradient until the last arrives.
"""

Place = tuple[str | None, str | None, str]
"""(file, function, module without its numbers)."""


class Pattern(Struct, frozen=True, kw_only=True):
    """Equal groups of one place: same phase, ops and bytes."""

    phase: Phase
    names: tuple[str, ...]
    groups: tuple[FusionGroup, ...]
    lines: tuple[int, ...]
    """Lines of its ops at the place, most ops first."""

    @property
    def saved_bytes(self) -> int:
        """Bytes per step, over all its groups."""
        return sum(group.saved_bytes for group in self.groups)

    @property
    def kernels_saved(self) -> int:
        """Number of kernels saved per step if each group became one."""
        return sum(len(group.ops) - 1 for group in self.groups)

    @property
    def ops(self) -> list[int]:
        """Indices of all ops of all its groups."""
        return [index for group in self.groups for index in group.ops]


class Site(Struct, frozen=True, kw_only=True):
    """The patterns of one place, most saved bytes first."""

    file: str | None
    function: str | None
    module: str
    line: int | None
    """Line of most ops in the pattern with the largest saving; the first of several."""
    patterns: tuple[Pattern, ...]


def chain_sites(trace: Trace) -> tuple[Site, ...]:
    """Return the places that write chains of elementwise ops, most saved bytes first.

    Chains of the optimizer, inside unfused attention and in checks of arguments are excluded, because they have
    separate rules.
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
        if any(graph.ops[index].checks for index in group.ops):
            continue
        same = places.setdefault(_place(graph, group), {})
        same.setdefault((phase, names, group.eager_bytes, group.fused_bytes), []).append(group)
    sites = [_site(graph, place, same) for place, same in places.items()]
    return tuple(sorted(sites, key=lambda site: -sum(pattern.saved_bytes for pattern in site.patterns)))


def _attention_ops(trace: Trace, graph: OpGraph) -> set[int]:
    """Return the score ops, and all ops of torch's math fallback on its line."""
    attentions = trace.fact(graph_attentions)
    fallback = {
        (graph.ops[attention.softmax].file, graph.ops[attention.softmax].line)
        for attention in attentions
        if attention.by_sdpa
    }
    on_line = {index for index, op in enumerate(graph.ops) if (op.file, op.line) in fallback and op.file is not None}
    return on_line | {index for attention in attentions for index in attention.ops}


def _place(graph: OpGraph, group: FusionGroup) -> Place:
    """Return the function that wrote most of the group's ops."""
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


def graph_findings(trace: Trace, *, least: float) -> Iterator[Finding]:
    """Yield one finding per function whose chains cost at least ``least`` of a step."""
    for site in chain_sites(trace):
        if sum(pattern.saved_bytes for pattern in site.patterns) > 0:
            yield from _from_site(trace, site, least)


def _from_site(trace: Trace, site: Site, least: float) -> Iterator[Finding]:
    priced = [
        (
            pattern,
            saving(
                trace,
                pattern.ops,
                saved_bytes=pattern.saved_bytes,
                saved_part=pattern.groups[0].saved_share,
                fewer=pattern.kernels_saved,
            ),
        )
        for pattern in site.patterns
    ]
    timed = all(saved.ns is not None for _, saved in priced)
    total_bytes = sum(saved.bytes for _, saved in priced)
    total_ns = sum(saved.ns or 0 for _, saved in priced)
    whole = step_ns(trace)
    share = (total_ns / whole if whole else 0.0) if timed else total_bytes / (trace.fact(step_bytes) or 1)
    if share < least:
        return
    groups = sum(len(pattern.groups) for pattern in site.patterns)
    fewer = sum(pattern.kernels_saved for pattern in site.patterns)
    chain = chain_text(site.patterns[0].names)
    moved = "" if timed else f"{format_bytes(total_bytes)} per step ({100 * share:.1f}% of its bytes), "
    severity = severity_of(share, 1)
    yield Finding(
        subject=chain,
        title=fit_title(f"{chain} runs op by op: {moved}{groups:,} time{'' if groups == 1 else 's'}", chain),
        detail=f"{fewer + groups:,} ops per step where {groups:,} would do: {format_bytes(total_bytes)} of avoidable "
        "memory traffic.",
        severity=severity if timed or severity != "high" else "medium",
        basis="modelled" if timed else "structural",
        cost_ns=total_ns * steps_in(trace) if timed else None,
        cost_ns_per_step=total_ns if timed else None,
        cost_bytes=total_bytes,
        where=Where(file=site.file, line=site.line, module=site.module or None),
        evidence=tuple(_row(trace, pattern, saved) for pattern, saved in sorted(priced, key=_by_gain)[:MOST_ROWS]),
        spans=spans_of_ops(trace, (op for pattern in site.patterns for group in pattern.groups for op in group.ops)),
        removes=removed_ops(trace, [op for pattern in site.patterns for op in pattern.ops]),
        advice=_advice(site),
    )


def _by_gain(pair: tuple[Pattern, Saving]) -> tuple[int, int]:
    return (-(pair[1].ns or 0), -pair[1].bytes)


def _row(trace: Trace, pattern: Pattern, saved: Saving) -> dict[str, Cell]:
    eager = sum(group.eager_bytes for group in pattern.groups)
    return {
        "chain": chain_text(pattern.names),
        "phase": pattern.phase,
        "times": len(pattern.groups),
        "ops": len(pattern.names),
        "lines": ", ".join(map(str, sorted(pattern.lines[:6]))),
        "eager_bytes": eager,
        "fused_bytes": eager - pattern.saved_bytes,
        "time_ns": None if saved.time is None else saved.time.sum_ns,
        "saved_ns": saved.ns,
        "time_known_by": how_joined(trace),
    }


def _advice(site: Site) -> str:
    what = f"{site.function}()" if site.function and not site.function.startswith("<") else "the function around it"
    return (
        f"Compile it: put @torch.compile on {what.rpartition('.')[2]}, or model = torch.compile(model). Where the "
        "chain is a norm, call torch.nn.functional.rms_norm or layer_norm instead of writing it out."
    )
