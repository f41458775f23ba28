"""What a planned rank exchanges with the others, as a comparison counts it: each collective of one step.

Of the step as the program runs it: eagerly where it compiles nothing, else the planned step, with the collectives that
are inside of its graphs. Bytes are those that a device sends, by the factors that compiled programs are counted with
(`hlo/cost_collectives.py`: of nccl-tests, an all-reduce of n devices twice ``(n-1)/n`` of its operand). A collective
blocks where no kernel of the step may run beside it, which follows from the plan; how long the step waits is modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap
from perfscope.analyzers.compare.programs.units import PLAN_BLOCKED, PLAN_BLOCKED_WIRE, PLAN_COLLECTIVES, PLAN_WIRE
from perfscope.analyzers.hlo.cost.collectives import sent_bytes
from perfscope.analyzers.plans import launches
from perfscope.analyzers.plans.collectives import XLA_KINDS, Asked, eager_asked, kernels_beside, planned_asked
from perfscope.analyzers.predict.spans import NO_TIME, Range
from perfscope.model.documents.torch_plan import PlannedCollective
from perfscope.model.op_graph import OpGraph
from perfscope.model.torch_plan import LoadedPlan

WHY_WAITED = "no kernel can run beside it"
WHY_LAST = "no kernel of the step follows it"

_ONE = Range(low=1, high=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanExchange:
    """One run of a collective in a step."""

    collective: PlannedCollective
    ranks: tuple[int, ...]
    """That take part; of ``send`` and ``recv`` the two."""
    beside: int
    """Kernels that may run beside it."""

    @property
    def sent(self) -> int:
        """Bytes a device sends."""
        devices = len(set(self.ranks))
        kind = self.collective.kind
        return sent_bytes(XLA_KINDS.get(kind, kind), self.collective.bytes, devices) if devices > 1 else 0

    @property
    def blocks(self) -> str | None:
        """Why the device waits for it; ``None``: kernels may run beside it, or it is alone in its group."""
        if self.beside or len(set(self.ranks)) < 2:
            return None
        return WHY_LAST if self.collective.until is None else WHY_WAITED

    @property
    def amounts(self) -> dict[str, int]:
        """Of one run."""
        blocks, sent = self.blocks is not None, self.sent
        return {
            PLAN_COLLECTIVES: 1, PLAN_WIRE: sent, PLAN_BLOCKED: int(blocks), PLAN_BLOCKED_WIRE: sent if blocks else 0,
        }  # fmt: skip

    @property
    def who(self) -> tuple[str, str, str]:
        """Its kind, who asks for it and when."""
        return self.collective.kind, self.collective.by, self.collective.phase

    @property
    def what(self) -> tuple[object, ...]:
        """What it exchanges for whom, wherever it is asked for."""
        return *self.who, self.ranks, self.collective.dtype, self.collective.bytes

    def place(self, lines: LineMap = NO_LINES) -> str:
        """Its line, ``lines``: as the other side counts; ``''`` where none is known."""
        file, line = self.collective.file, self.collective.line
        if file is None:
            return ""
        return lines.file(file) if line is None else f"{lines.file(file)}:{lines.line(file, line)}"


def plan_exchanges(held: LoadedPlan) -> tuple[PlanExchange, ...] | None:
    """Collectives of a step in the order of its model; ``None``: a plan of one process, or they are not all known."""
    processes = held.plan.processes
    if processes is None or processes.left:
        return None
    if held.plan.compiled_by == "program":
        if processes.outside is None or held.outside is None:
            return None
        graphs = [
            [NO_TIME if kernel.kind == "collective" else _ONE for kernel in graph.kernels] for graph in held.plan.graphs
        ]
        kernels, asked = planned_asked(processes, _launched(held.outside), graphs)
    else:
        if processes.eager is None or held.eager is None:
            return None
        kernels, asked = _launched(held.eager), eager_asked(processes.eager)
    besides = kernels_beside([one.high > 0 for one in kernels], asked)
    return tuple(
        PlanExchange(collective=one.collective, ranks=_ranks(one, processes.groups), beside=beside)
        for one, beside in zip(asked, besides, strict=True)
    )


def exchange_totals(held: LoadedPlan) -> dict[str, int]:
    """Exact amounts of a step; none where its collectives are not known."""
    found = plan_exchanges(held)
    return {} if found is None else sums_of(found)


def exchange_digest(held: LoadedPlan) -> tuple[object, ...]:
    """What is exchanged, in what order and which of it blocks, without files and lines."""
    found = plan_exchanges(held)
    if found is None:
        return ()
    return tuple((one.what, one.blocks is not None) for one in found)


def step_ops(held: LoadedPlan) -> Iterator[tuple[str, int, str]]:
    """(file, line, op) of what a step of one of several processes does and exchanges; nothing of a job of one."""
    if held.plan.processes is None:
        return
    graph = held.outside if held.plan.compiled_by == "program" else held.eager
    for op in () if graph is None else graph.ops:
        if op.file is not None and op.line is not None:
            yield op.file, op.line, op.name
    for one in plan_exchanges(held) or ():
        if one.collective.file is not None and one.collective.line is not None:
            yield one.collective.file, one.collective.line, one.collective.kind


def not_compared(base: LoadedPlan, head: LoadedPlan) -> str:
    """Why nothing is said of the collectives of two plans; ``''`` where they are compared, or neither has any."""
    sizes = [0 if held.plan.processes is None else held.plan.processes.world_size for held in (base, head)]
    if sizes[0] != sizes[1]:
        return other_jobs(sizes[0], sizes[1])
    lost = [name for name, held in (("base", base), ("head", head)) if sizes[0] and plan_exchanges(held) is None]
    return f"collectives are not compared: not all of {' and '.join(lost)} are in the plan" if lost else ""


def other_jobs(base: int, head: int) -> str:
    """That two plans are of jobs of so many processes (0: of none), in one line."""
    said = ["as one process" if not size else f"as the first of {size:,} processes" for size in (base, head)]
    return f"collectives are not compared: base is planned {said[0]}, head {said[1]}"


def _launched(graph: OpGraph) -> tuple[Range, ...]:
    return tuple(_ONE if launches(op) else NO_TIME for op in graph.ops)


def _ranks(one: Asked, groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    what = one.collective
    return what.pairs or (groups[what.group] if what.group < len(groups) else ())


def sums_of(held: Iterable[PlanExchange]) -> dict[str, int]:
    """Amounts of some of them together."""
    found = dict.fromkeys((PLAN_COLLECTIVES, PLAN_WIRE, PLAN_BLOCKED, PLAN_BLOCKED_WIRE), 0)
    for one in held:
        for name, amount in one.amounts.items():
            found[name] += amount
    return found
