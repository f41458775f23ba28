"""Two plans of torch.compile, explained kernel by kernel: as `program_diff`, of what inductor would make."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.compare.programs.diff import MOST, TOO_LARGE
from perfscope.analyzers.compare.programs.exchange import (
    NO_WAITS,
    StepWaits,
    collective_rows,
    exchange_digest,
    exchange_totals,
    not_compared,
    plan_exchanges,
    step_ops,
    waits_line,
)
from perfscope.analyzers.compare.programs.keys import LineMap, OpKey, lines_between
from perfscope.analyzers.compare.programs.match import Alike, Launch, alike
from perfscope.analyzers.compare.programs.memory import plan_peak_rows
from perfscope.analyzers.compare.programs.row import LOST, ProgramChange, ProgramRow, What, merged
from perfscope.analyzers.compare.programs.units import (
    EXCHANGED,
    PLAN_BREAKS,
    PLAN_BYTES,
    PLAN_FLOPS,
    PLAN_LAUNCHES,
    PLAN_PEAK,
)
from perfscope.analyzers.compare.runs.align import same_files
from perfscope.analyzers.torch_compile import planned_breaks
from perfscope.model.torch_plan import LoadedPlan, PlanLine, PlannedGraph, PlannedKernel, TorchPlan, memory_as_run

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")
"""Of a function that goes on behind a graph break: the line in it moves with the code."""

MOST_NAMED = 4


@dataclass(frozen=True, slots=True, eq=False)
class PlanUnit:
    """One kernel of one graph of a plan."""

    graph: PlannedGraph
    kernel: PlannedKernel
    index: int
    """In its graph."""

    @property
    def amounts(self) -> dict[str, int]:
        """Of a step."""
        calls, one = self.graph.calls, self.kernel
        return {PLAN_BYTES: calls * one.bytes, PLAN_FLOPS: calls * (one.flops or 0), PLAN_LAUNCHES: calls}


def plan_units(plan: TorchPlan) -> tuple[PlanUnit, ...]:
    """Every kernel of a plan, in the order of its graphs. Collectives inside of them are with those of the step."""
    return tuple(
        PlanUnit(graph, kernel, at)
        for graph in plan.graphs
        for at, kernel in enumerate(graph.kernels)
        if kernel.kind != "collective"
    )


def plan_totals(held: LoadedPlan) -> dict[str, int]:
    """Exact amounts of one step of a plan."""
    found = dict.fromkeys((PLAN_BYTES, PLAN_FLOPS, PLAN_LAUNCHES, PLAN_BREAKS), 0)
    for unit in plan_units(held.plan):
        for name, amount in unit.amounts.items():
            found[name] += amount
    found[PLAN_BREAKS] = sum(len(line.breaks) for line in planned_breaks(held))
    step = memory_as_run(held.plan)
    if step is not None:
        found[PLAN_PEAK] = step.peak_bytes
    return found | exchange_totals(held)


def plan_fingerprint(held: LoadedPlan) -> str:
    """What is planned, as 16 hexadecimal digits: no names of kernels, no files and no lines."""
    plan = held.plan
    said = [
        (
            plain_function(graph.function),
            graph.direction,
            graph.calls,
            [_digest(one) for one in graph.kernels],
        )
        for graph in plan.graphs
    ]
    parts: tuple[object, ...] = (said, len(plan.breaks))
    exchanged = exchange_digest(held)
    if exchanged:
        parts += (exchanged,)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def plain_function(name: str | None) -> str:
    """A function without the line at which it goes on."""
    return _RESUMED.sub(r"\1", name or "")


def plan_change(base: LoadedPlan, head: LoadedPlan, waits: StepWaits = NO_WAITS) -> ProgramChange:
    """What changed from one plan to another; its rows sum to the change of each amount.

    ``waits``: what the model says of the collectives of both steps, as the programs run them.
    """
    sides = plan_units(base.plan), plan_units(head.plan)
    lines = _line_map((base, sides[0]), (head, sides[1]))
    prints = plan_fingerprint(base), plan_fingerprint(head)
    before, after = plan_totals(base), plan_totals(head)
    blind = not_compared(base, head)
    totals = {
        name: (before[name], after[name]) for name in before if name in after and not (blind and name in EXCHANGED)
    }
    rows: list[ProgramRow] = []
    too_large = max((max(pair) for pair in totals.values()), default=0) > MOST
    failed = failed_alone(base.plan, head.plan)
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
        launches = [_launch(unit, lines) for unit in sides[0]], [_launch(unit, None) for unit in sides[1]]
        rows += [row for one in alike(*launches) for row in _rows(one, *sides, lines)]
        if not blind:
            rows += collective_rows(plan_exchanges(base) or (), plan_exchanges(head) or (), lines, waits)
    rows += plan_peak_rows(base.plan, head.plan, lines)
    broken = _breaks(base, lines), _breaks(head, None)
    rows += _counted(*broken, PLAN_BREAKS, ("new graph break", "graph break gone"))
    found = ProgramChange(
        name=head.plan.name,
        base_fingerprint=prints[0],
        head_fingerprint=prints[1],
        totals=totals,
        rows=merged(rows, totals),
        notes=tuple(filter(None, (*_failed(base, head), blind or waits_line(waits)))),
        lines=lines,
    )
    found.check()
    return found


def failed_alone(base: TorchPlan, head: TorchPlan) -> Literal["", "base", "head"]:
    """Which side failed while it was planned, where the other did not: what it lacks is no improvement."""
    if (base.failure is None) == (head.failure is None):
        return ""
    return "base" if head.failure is None else "head"


def _failed(*sides: LoadedPlan) -> Iterator[str]:
    for which, held in zip(("base", "head"), sides, strict=True):
        if held.plan.failure is not None:
            yield f"{which} failed while it was planned: what it would have done from there on is in no metric"


def _digest(one: PlannedKernel) -> str:
    said = (
        one.kind, len(one.members), one.ops, one.read_bytes, one.written_bytes, one.reread_bytes, one.flops, one.dtype,
        one.shape,
    )  # fmt: skip
    return hashlib.sha256(repr(said).encode()).hexdigest()


def _phase(graph: PlannedGraph) -> str:
    return "backward" if graph.direction == "backward" else ""


def _place(place: PlanLine, lines: LineMap | None) -> tuple[str, int]:
    if lines is None:
        return place.file, place.line
    return lines.file(place.file), lines.line(place.file, place.line)


def _launch(unit: PlanUnit, lines: LineMap | None) -> Launch:
    graph, one = unit.graph, unit.kernel
    path, phase = (plain_function(graph.function),), _phase(graph)
    places = [_place(place, lines) for place in one.places]
    ops = Counter(OpKey(path, phase, op, op, "", "", -1) for op in one.ops)
    ops.update(OpKey((), phase, "line", "line", "", file, line) for file, line in places)
    file, line = places[0] if places else ("", -1)
    result = OpKey(path, phase, ", ".join(one.ops), one.kind, one.shape or "", file, line)
    return Launch(f"{_digest(one)} {graph.calls}", ops, result)


def _line_map(*both: tuple[LoadedPlan, Sequence[PlanUnit]]) -> LineMap:
    """How lines moved, told from the ops of the kernels that are of each line, and the ops of a step that exchanges."""
    sides = []
    for plan, units in both:
        held: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for unit in units:
            for place in unit.kernel.places:
                held[place.file][place.line].update(unit.kernel.ops)
        for file, line, op in step_ops(plan):
            held[file][line].add(op)
        sides.append({
            file: {line: frozenset[object](ops) for line, ops in sorted(lines.items())} for file, lines in held.items()
        })  # fmt: skip
    files = same_files(set(sides[0]), set(sides[1]))
    found = {
        file: lines_between(lines, sides[1][files.get(file, file)])
        for file, lines in sides[0].items()
        if files.get(file, file) in sides[1]
    }
    return LineMap(files, found)


def _rows(one: Alike, base: Sequence[PlanUnit], head: Sequence[PlanUnit], lines: LineMap) -> Iterator[ProgramRow]:
    if one.same:
        return
    mine, theirs = [base[at] for at in one.base], [head[at] for at in one.head]
    amounts = {}
    for name in (PLAN_BYTES, PLAN_FLOPS, PLAN_LAUNCHES):
        before, after = sum(unit.amounts[name] for unit in mine), sum(unit.amounts[name] for unit in theirs)
        if before != after:
            amounts[name] = (before, after)
    shown = theirs or mine
    places = [
        _place(place, None if theirs else lines) for unit in _telling(mine, shown) for place in unit.kernel.places
    ]
    change, said = _change(mine, theirs, amounts)
    more = amounts.get(PLAN_BYTES, (0, 0))
    yield ProgramRow(
        change=change,
        what=_some(dict.fromkeys(op.removeprefix("aten.") for unit in shown for op in unit.kernel.ops)),
        place=f"{places[0][0]}:{places[0][1]}" if places else plain_function(shown[0].graph.function),
        phase=_phase(shown[0].graph),
        amounts=amounts,
        lost=len(theirs) - len(mine) if change == LOST and more[1] > more[0] else 0,
        base_names=tuple(unit.kernel.name for unit in mine),
        head_names=tuple(unit.kernel.name for unit in theirs),
        said=tuple(said),
    )


def _telling(base: Sequence[PlanUnit], shown: Sequence[PlanUnit]) -> list[PlanUnit]:
    """Kernels by how much of what they compute is new, most first: theirs is the line that was changed."""
    known = {op for unit in base for op in unit.kernel.ops}
    return sorted(shown, key=lambda unit: len(known & {*unit.kernel.ops}) / max(1, len(unit.kernel.ops)))


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
    one, other = base[0].kernel, head[0].kernel
    said = [f"{word} {_some(dict.fromkeys(sorted(ops)))}" for word, ops in (
        ("with", set(other.ops) - set(one.ops)), ("without", set(one.ops) - set(other.ops)),
    ) if ops]  # fmt: skip
    if one.dtype != other.dtype:
        return "type changed", [f"{one.dtype} → {other.dtype}", *said]
    words: tuple[tuple[str, What, What], ...] = (
        (PLAN_BYTES, "more bytes", "fewer bytes"), (PLAN_FLOPS, "more FLOPs", "fewer FLOPs"),
    )  # fmt: skip
    for name, more, fewer in words:
        if name in amounts:
            return (more if amounts[name][1] > amounts[name][0] else fewer), said
    return "changed", said


def _refusals(head: Sequence[PlanUnit]) -> list[str]:
    """What inductor says of two of these kernels that it did not fuse."""
    graph = head[0].graph
    mine = {unit.index for unit in head if unit.graph is graph}
    found = (one.reason for one in graph.refusals if {one.first, one.second} <= mine)
    return [f"inductor: {reason}" for reason in dict.fromkeys(found)][:2]


def _breaks(held: LoadedPlan, lines: LineMap | None) -> Counter[tuple[str, str]]:
    """(place, what ended the graph) -> how often."""
    found: Counter[tuple[str, str]] = Counter()
    for line in planned_breaks(held):
        at = ""
        if line.place is not None:
            file, number = line.place.file, line.place.line
            at = f"{file}:{number}" if lines is None else f"{lines.file(file)}:{lines.line(file, number)}"
        for one in line.breaks:
            found[at, one.reason] += 1
    return found


def _counted(
    base: Counter[tuple[str, str]], head: Counter[tuple[str, str]], name: str, words: tuple[What, What]
) -> Iterator[ProgramRow]:
    for place, what in dict.fromkeys((*head, *base)):
        before, after = base[place, what], head[place, what]
        if before != after:
            change = words[0] if after > before else words[1]
            yield ProgramRow(change=change, what=what, place=place, amounts={name: (before, after)})


def _some(names: dict[str, None]) -> str:
    held = list(names)
    more = f" and {len(held) - MOST_NAMED} more" if len(held) > MOST_NAMED else ""
    return ", ".join(held[:MOST_NAMED]) + more
