"""Two plans of torch.compile compared kernel by kernel: like `program_diff`, for the planned kernels of inductor."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from perfscope.analyzers.compare.programs.diff import MOST, TOO_LARGE
from perfscope.analyzers.compare.programs.exchange import (
    NO_WAITS,
    StepWaits,
    collective_rows,
    not_compared,
    plan_exchanges,
    step_ops,
    sums_of,
    waits_line,
)
from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap, Lines, OpKey, line_map
from perfscope.analyzers.compare.programs.match import Group, Launch, matched
from perfscope.analyzers.compare.programs.memory import plan_peak_rows
from perfscope.analyzers.compare.programs.row import (
    BREAKS,
    LOST,
    ProgramChange,
    ProgramRow,
    What,
    difference_rows,
    merged,
    some_of,
)
from perfscope.analyzers.compare.programs.units import (
    EXCHANGED,
    PLAN_BREAKS,
    PLAN_BYTES,
    PLAN_FLOPS,
    PLAN_LAUNCHES,
    PLAN_PEAK,
)
from perfscope.analyzers.torch_compile import plain_function, planned_breaks
from perfscope.model.torch_plan import LoadedPlan, PlannedGraph, PlannedKernel, TorchPlan, memory_as_run


class PlanUnit(Struct, frozen=True, eq=False):
    """One kernel of one graph of a plan."""

    graph: PlannedGraph
    kernel: PlannedKernel
    index: int
    """Index in its graph."""

    @property
    def amounts(self) -> dict[str, int]:
        """Amounts of a step."""
        calls, kernel = self.graph.calls, self.kernel
        return {PLAN_BYTES: calls * kernel.bytes, PLAN_FLOPS: calls * (kernel.flops or 0), PLAN_LAUNCHES: calls}


def plan_units(plan: TorchPlan) -> tuple[PlanUnit, ...]:
    """Return every kernel of a plan, in the order of its graphs. The step has the collectives inside of them."""
    return tuple(
        PlanUnit(graph, kernel, index)
        for graph in plan.graphs
        for index, kernel in enumerate(graph.kernels)
        if kernel.kind != "collective"
    )


def plan_totals(loaded: LoadedPlan) -> dict[str, int]:
    """Return exact amounts of one step of a plan."""
    totals = dict.fromkeys((PLAN_BYTES, PLAN_FLOPS, PLAN_LAUNCHES, PLAN_BREAKS), 0)
    for unit in plan_units(loaded.plan):
        for name, amount in unit.amounts.items():
            totals[name] += amount
    totals[PLAN_BREAKS] = sum(len(line.breaks) for line in planned_breaks(loaded))
    step = memory_as_run(loaded.plan)
    if step is not None:
        totals[PLAN_PEAK] = step.peak_bytes
    exchanges = plan_exchanges(loaded)
    return totals if exchanges is None else totals | sums_of(exchanges)


def plan_fingerprint(loaded: LoadedPlan) -> str:
    """Return a digest of the plan, 16 hexadecimal digits, without kernel names, files and lines."""
    plan = loaded.plan
    graphs = [
        (_function(graph), graph.direction, graph.calls, [_digest(kernel) for kernel in graph.kernels])
        for graph in plan.graphs
    ]
    parts: tuple[object, ...] = (graphs, len(plan.breaks))
    exchanges = plan_exchanges(loaded)
    if exchanges:
        parts += (tuple((exchange.what, exchange.blocks is not None) for exchange in exchanges),)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def plan_change(base: LoadedPlan, head: LoadedPlan, waits: StepWaits = NO_WAITS) -> ProgramChange:
    """Return the changes from one plan to another; rows sum to the change of each amount.

    ``waits``: the modelled collectives of both steps as the programs run them.
    """
    sides = plan_units(base.plan), plan_units(head.plan)
    lines = line_map(_lines_of(base, sides[0]), _lines_of(head, sides[1]))
    prints = plan_fingerprint(base), plan_fingerprint(head)
    before, after = plan_totals(base), plan_totals(head)
    blind = not_compared(base, head)
    totals = {
        name: (before[name], after[name]) for name in before if name in after and not (blind and name in EXCHANGED)
    }
    rows: list[ProgramRow] = []
    too_large = max((max(pair) for pair in totals.values()), default=0) > MOST
    failed: Literal["", "base", "head"] = ""  # Work that a side lacks because it failed is not an improvement.
    if (base.plan.failure is None) != (head.plan.failure is None):
        failed = "base" if head.plan.failure is None else "head"
    if too_large or failed:
        return ProgramChange(
            name=head.plan.name,
            base_fingerprint=prints[0],
            head_fingerprint=prints[1],
            totals={},
            notes=tuple(_failed(base, head)) if failed else (TOO_LARGE,),
            lines=lines,
            failed=failed,
        )
    if prints[0] != prints[1]:
        launches = [_launch(unit, lines) for unit in sides[0]], [_launch(unit, NO_LINES) for unit in sides[1]]
        rows += [_row(group, lines) for group in matched(*launches) if not group.same]
        if not blind:
            rows += collective_rows(plan_exchanges(base) or (), plan_exchanges(head) or (), lines, waits)
    rows += plan_peak_rows(base.plan, head.plan, lines)
    rows += difference_rows(_breaks(base, lines), _breaks(head, NO_LINES), PLAN_BREAKS, BREAKS)
    change = ProgramChange(
        name=head.plan.name,
        base_fingerprint=prints[0],
        head_fingerprint=prints[1],
        totals=totals,
        rows=merged(rows, totals),
        notes=tuple(filter(None, (*_failed(base, head), blind or waits_line(waits)))),
        lines=lines,
    )
    change.check()
    return change


def _failed(*sides: LoadedPlan) -> Iterator[str]:
    for which, loaded in zip(("base", "head"), sides, strict=True):
        if loaded.plan.failure is not None:
            yield f"planning of {which} failed: the metrics lack the work after the failure"


def _digest(kernel: PlannedKernel) -> str:
    facts = (
        kernel.kind, len(kernel.members), kernel.ops, kernel.read_bytes, kernel.written_bytes, kernel.reread_bytes,
        kernel.flops, kernel.dtype, kernel.shape,
    )  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _function(graph: PlannedGraph) -> str:
    """Return the function without the line at which it resumes after a graph break, because that line moves."""
    return "" if graph.function is None else plain_function(graph.function)


def _phase(graph: PlannedGraph) -> str:
    return "backward" if graph.direction == "backward" else ""


def _launch(unit: PlanUnit, lines: LineMap) -> Launch[PlanUnit]:
    graph, kernel = unit.graph, unit.kernel
    path, phase = (_function(graph),), _phase(graph)
    places = [(lines.file(line.file), lines.line(line.file, line.line)) for line in kernel.places]
    ops = Counter(OpKey(path, phase, op, op, "", "", -1) for op in kernel.ops)
    ops.update(OpKey((), phase, "line", "line", "", file, line) for file, line in places)
    file, line = places[0] if places else ("", -1)
    result = OpKey(path, phase, ", ".join(kernel.ops), kernel.kind, kernel.shape or "", file, line)
    return Launch(unit, f"{_digest(kernel)} {graph.calls}", ops, result)


def _lines_of(plan: LoadedPlan, units: Sequence[PlanUnit]) -> Lines:
    """Return the lines of a plan with their kernels' ops, and the ops of a step that exchanges."""
    by_file: dict[str, dict[int, set[object]]] = defaultdict(lambda: defaultdict(set))
    for unit in units:
        for code_line in unit.kernel.places:
            by_file[code_line.file][code_line.line].update(unit.kernel.ops)
    for file, line, op in step_ops(plan):
        by_file[file][line].add(op)
    return by_file


def _row(group: Group[PlanUnit], lines: LineMap) -> ProgramRow:
    mine, theirs = group.base, group.head
    amounts = {}
    for name in (PLAN_BYTES, PLAN_FLOPS, PLAN_LAUNCHES):
        before, after = sum(unit.amounts[name] for unit in mine), sum(unit.amounts[name] for unit in theirs)
        if before != after:
            amounts[name] = (before, after)
    shown = theirs or mine
    # The largest new kernel is first, because its line is the one that was changed.
    known = {op for unit in mine for op in unit.kernel.ops}
    by_share = sorted(shown, key=lambda unit: len(known & {*unit.kernel.ops}) / max(1, len(unit.kernel.ops)))
    places = [line for unit in by_share for line in unit.kernel.places]
    change, texts = _change(mine, theirs, amounts)
    more = amounts.get(PLAN_BYTES, (0, 0))
    return ProgramRow(
        change=change,
        what=some_of(op.removeprefix("aten.") for unit in shown for op in unit.kernel.ops),
        place=(NO_LINES if theirs else lines).place(places[0].file, places[0].line)
        if places
        else _function(shown[0].graph),
        phase=_phase(shown[0].graph),
        amounts=amounts,
        lost=len(theirs) - len(mine) if change == LOST and more[1] > more[0] else 0,
        base_names=tuple(unit.kernel.name for unit in mine),
        head_names=tuple(unit.kernel.name for unit in theirs),
        said=tuple(texts),
    )


def _change(
    base: Sequence[PlanUnit], head: Sequence[PlanUnit], amounts: dict[str, tuple[int, int]]
) -> tuple[What, list[str]]:
    if not base or not head:
        return ("new" if head else "gone"), []
    counts = f"{len(base)} → {len(head)} kernels"
    if len(head) > len(base):
        return LOST, [f"{counts}; was {base[0].kernel.name}", *_refusals(head)]
    if len(head) < len(base):
        return "moved into a fusion", [counts]
    if len(head) > 1:
        return "fused otherwise", [counts]
    kernel, other = base[0].kernel, head[0].kernel
    texts = [f"{word} {some_of(sorted(ops))}" for word, ops in (
        ("with", set(other.ops) - set(kernel.ops)), ("without", set(kernel.ops) - set(other.ops)),
    ) if ops]  # fmt: skip
    if kernel.dtype != other.dtype:
        return "type changed", [f"{kernel.dtype} → {other.dtype}", *texts]
    words: tuple[tuple[str, What, What], ...] = (
        (PLAN_BYTES, "more bytes", "fewer bytes"), (PLAN_FLOPS, "more FLOPs", "fewer FLOPs"),
    )  # fmt: skip
    for name, more, fewer in words:
        if name in amounts:
            return (more if amounts[name][1] > amounts[name][0] else fewer), texts
    return "changed", texts


def _refusals(head: Sequence[PlanUnit]) -> list[str]:
    """Return the reasons of inductor for not fusing two of these kernels."""
    graph = head[0].graph
    mine = {unit.index for unit in head if unit.graph is graph}
    reasons = (refusal.reason for refusal in graph.refusals if {refusal.first, refusal.second} <= mine)
    return [f"inductor: {reason}" for reason in dict.fromkeys(reasons)][:2]


def _breaks(loaded: LoadedPlan, lines: LineMap) -> Counter[tuple[str, str, str]]:
    """Count breaks by (place, reason, "")."""
    return Counter(
        ("" if line.place is None else lines.place(line.place.file, line.place.line), graph_break.reason, "")
        for line in planned_breaks(loaded)
        for graph_break in line.breaks
    )
