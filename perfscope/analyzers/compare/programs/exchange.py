"""What a planned rank exchanges with the others, as a comparison counts it: each collective of one step.

Of the step as the program runs it: eagerly where it compiles nothing, else the planned step, with the collectives that
are inside of its graphs. Bytes are those that a device sends, by the factors that compiled programs are counted with
(`hlo/cost_collectives.py`: of nccl-tests, an all-reduce of n devices twice ``(n-1)/n`` of its operand). A collective
blocks where no kernel of the step may run beside it, which follows from the plan; how long the step waits is modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap
from perfscope.analyzers.compare.programs.row import (
    BLOCKING,
    COLLECTIVE_GONE,
    MOST_SAID,
    NEW_COLLECTIVE,
    NO_LONGER,
    ProgramRow,
    What,
)
from perfscope.analyzers.compare.programs.units import PLAN_BLOCKED, PLAN_BLOCKED_WIRE, PLAN_COLLECTIVES, PLAN_WIRE
from perfscope.analyzers.hlo.cost.collectives import sent_bytes
from perfscope.analyzers.plans import launches
from perfscope.analyzers.plans.collectives import (
    XLA_KINDS,
    Asked,
    StepExchanges,
    eager_asked,
    kernels_beside,
    planned_asked,
)
from perfscope.analyzers.predict.spans import NO_TIME, Range
from perfscope.model.documents.torch_plan import PlannedCollective
from perfscope.model.op_graph import OpGraph
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.units import format_bytes, format_ns

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


# Collectives of two plans: which are new, larger, of another type, or block now, as rows that sum to the change.
#
# Those that exchange the same for the same are one another, wherever they are asked for; then those that only block on
# one side; then those of one kind, line and group together, in as many parts as there are.


StepWaits = tuple[StepExchanges | None, StepExchanges | None]
"""The model of both steps, whose rows are in the order of `plan_exchanges`; ``None``: it is not for one target."""

NO_WAITS: StepWaits = (None, None)


def collective_rows(
    base: Sequence[PlanExchange],
    head: Sequence[PlanExchange],
    lines: LineMap,
    waits: StepWaits = NO_WAITS,
) -> Iterator[ProgramRow]:
    """Rows that sum to the change of each amount. Linear in the collectives.

    ``waits``: of the same two steps.
    """
    exposed = [{id(one): row.exposed for one, row in zip(side, step.rows, strict=True)} if step is not None else None
               for side, step in zip((base, head), waits, strict=True)]  # fmt: skip
    for mine, theirs in _groups(base, head, lines):
        yield _row(mine, theirs, lines, (_waited(mine, exposed[0]), _waited(theirs, exposed[1])))


def waits_line(waits: StepWaits) -> str:
    """What both steps wait for all of their collectives; ``''`` where it is not modelled."""
    base, head = waits
    if base is None or head is None or not (base.rows or head.rows):
        return ""
    known = "" if base.known and head.known else ", or more: what joins the devices is not known"
    return f"the step waits {_span(base.exposed)} → {_span(head.exposed)} for collectives by the model{known}"


_Group = tuple[list[PlanExchange], list[PlanExchange]]
_Key = Callable[[PlanExchange, LineMap], Hashable]


def _groups(base: Sequence[PlanExchange], head: Sequence[PlanExchange], lines: LineMap) -> Iterator[_Group]:
    """Those that are not the same on both sides, what does the same work together; one side may have none."""
    left = dict.fromkeys(range(len(base))), dict.fromkeys(range(len(head)))
    same: tuple[_Key, ...] = (
        lambda one, at: (one.what, one.blocks is None, one.place(at)),
        lambda one, _: (one.what, one.blocks is None),
    )
    turned: tuple[_Key, ...] = lambda one, at: (one.what, one.place(at)), lambda one, _: one.what
    for key in same:
        _paired(base, head, left, key, lines)
    for key in turned:
        held: dict[Hashable, _Group] = defaultdict(lambda: ([], []))
        for one, other in _paired(base, head, left, key, lines):
            group = held[_family(other, NO_LINES), other.collective.dtype, other.blocks is None]
            group[0].append(one)
            group[1].append(other)
        yield from held.values()
    families: dict[Hashable, _Group] = defaultdict(lambda: ([], []))
    for side, (every, rows, at) in enumerate(((base, left[0], lines), (head, left[1], NO_LINES))):
        for row in rows:
            families[_family(every[row], at), every[row].collective.dtype][side].append(every[row])
    yield from _met(families.values(), lines)


def _family(one: PlanExchange, lines: LineMap) -> tuple[object, ...]:
    return *one.who, one.place(lines), one.ranks


def _paired(
    base: Sequence[PlanExchange],
    head: Sequence[PlanExchange],
    left: tuple[dict[int, None], dict[int, None]],
    key: _Key,
    lines: LineMap,
) -> list[tuple[PlanExchange, PlanExchange]]:
    """Of what is left those of one key, in order; they are taken out."""
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    for row in reversed(left[0]):
        waiting[key(base[row], lines)].append(row)
    found = []
    for row in list(left[1]):
        partners = waiting.get(key(head[row], NO_LINES))
        if partners:
            partner = partners.pop()
            del left[0][partner], left[1][row]
            found.append((base[partner], head[row]))
    return found


def _met(families: Iterable[_Group], lines: LineMap) -> Iterator[_Group]:
    """Those of one side only join the other side's of another dtype or group at their line, else the only one alike."""
    alone: list[_Group] = []
    for group in families:
        if group[0] and group[1]:
            yield group
        else:
            alone.append(group)
    keys: tuple[tuple[bool, _Key], ...] = (
        (True, _family),
        (True, lambda one, at: (*one.who, one.place(at))),
        (False, lambda one, _: (*one.who, one.ranks)),
    )
    for at_line, key in keys:
        held: dict[Hashable, list[_Group]] = defaultdict(list)
        for group in alone:
            held[key(group[0][0], lines) if group[0] else key(group[1][0], NO_LINES)].append(group)
        alone = []
        for several in held.values():
            sides = [[group for group in several if group[side]] for side in (0, 1)]
            if all(sides) and (at_line or len(several) == 2):
                yield [one for group in sides[0] for one in group[0]], [one for group in sides[1] for one in group[1]]
            else:
                alone += several
    yield from alone


def _row(
    base: list[PlanExchange], head: list[PlanExchange], lines: LineMap, waits: tuple[Range | None, Range | None]
) -> ProgramRow:
    shown, sums = (head or base)[0], (sums_of(base), sums_of(head))
    blocking = _newly(*sums)
    many = f" over {len(set(shown.ranks)):,} ranks" if shown.ranks else ""
    by = "" if shown.collective.by == "the program" else f" of {shown.collective.by}"
    dtype = f", {shown.collective.dtype}" if shown.collective.dtype else ""
    return ProgramRow(
        change=_change(base, head, sums, blocking),
        what=f"{shown.collective.kind}{by}{dtype}{many}",
        place=shown.place(NO_LINES if head else lines),
        phase="" if shown.collective.phase in ("forward", "other") else shown.collective.phase,
        amounts={name: (sums[0][name], sums[1][name]) for name in sums[0] if sums[0][name] != sums[1][name]},
        blocking=blocking,
        base_names=tuple(one.collective.op for one in base[:MOST_SAID]),
        head_names=tuple(one.collective.op for one in head[:MOST_SAID]),
        said=tuple(_said(base, head, blocking, waits)),
    )


def _newly(base: dict[str, int], head: dict[str, int]) -> int:
    """Collectives that block and did not: more of them, or a larger part of the bytes is in them."""
    if not head[PLAN_BLOCKED]:
        return 0
    more = head[PLAN_BLOCKED] - base[PLAN_BLOCKED]
    grown = head[PLAN_BLOCKED_WIRE] - base[PLAN_BLOCKED_WIRE]
    if grown <= 0 and base[PLAN_BLOCKED]:  # the same bytes in more parts; of barriers, that there are more
        return max(0, more) if not head[PLAN_WIRE] else 0
    part = head[PLAN_BLOCKED_WIRE] * base[PLAN_WIRE] > base[PLAN_BLOCKED_WIRE] * head[PLAN_WIRE]
    return max(more, int(part and base[PLAN_WIRE] > 0), 0)


def _change(
    base: list[PlanExchange], head: list[PlanExchange], sums: tuple[dict[str, int], dict[str, int]], blocking: int
) -> What:
    if not base or not head:
        return NEW_COLLECTIVE if head else COLLECTIVE_GONE
    if blocking:
        return BLOCKING
    before, after = sums
    if after[PLAN_BLOCKED] < before[PLAN_BLOCKED]:
        return NO_LONGER
    if {one.collective.dtype for one in base} != {one.collective.dtype for one in head}:
        return "type changed"
    if after[PLAN_WIRE] != before[PLAN_WIRE]:
        return "more bytes" if after[PLAN_WIRE] > before[PLAN_WIRE] else "fewer bytes"
    if len(base) != len(head):
        return "exchanged in more parts" if len(head) > len(base) else "exchanged in fewer parts"
    return "changed"


def _said(
    base: list[PlanExchange], head: list[PlanExchange], blocking: int, waits: tuple[Range | None, Range | None]
) -> Iterator[str]:
    if blocking:
        why = next((one.blocks for one in head if one.blocks is not None), WHY_WAITED)
        yield f"the device waits for {'it' if len(head) == 1 else f'{_blocked(head)} of them'}: {why}"
    sides = [_payload(side) for side in (base, head) if side]
    yield " → ".join(dict.fromkeys(sides))
    spans = [_span(one) for one, side in zip(waits, (base, head), strict=True) if one is not None and side]
    if len(spans) == bool(base) + bool(head):
        yield f"the step waits {' → '.join(spans)} for {'it' if len(head or base) == 1 else 'them'} by the model"


def _blocked(held: list[PlanExchange]) -> int:
    return sum(one.blocks is not None for one in held)


def _payload(held: list[PlanExchange]) -> str:
    """``4 of 1.00 MiB to 25.0 MiB, float32``."""
    sizes = sorted(one.collective.bytes for one in held)
    ends = dict.fromkeys((format_bytes(sizes[0]), format_bytes(sizes[-1])))
    dtypes = sorted({one.collective.dtype or "no array" for one in held})
    return f"{len(held):,} of {' to '.join(ends)}, {' and '.join(dtypes)}"


def _waited(held: list[PlanExchange], exposed: dict[int, Range] | None) -> Range | None:
    return None if exposed is None else sum((exposed[id(one)] for one in held), NO_TIME)


def _span(held: Range) -> str:
    return f"{format_ns(held.low)} to {format_ns(held.high)}"
