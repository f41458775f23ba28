"""Collectives of one step of a planned rank, as a comparison counts them.

The step is the one that the program runs: eager if it compiles nothing, else the planned step with the collectives
inside its graphs. Bytes are those that a device sends, with the factors used for compiled programs
(`hlo/cost/collectives.py`, from nccl-tests: an all-reduce over n devices sends ``2(n-1)/n`` of its operand). A
collective blocks if no kernel of the step may run at the same time, which follows from the plan. The waiting time of
the step is modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from msgspec import Struct

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap
from perfscope.analyzers.compare.programs.row import (
    BLOCKING,
    COLLECTIVE_GONE,
    MOST_SENTENCES,
    NEW_COLLECTIVE,
    NO_LONGER,
    ProgramRow,
    What,
)
from perfscope.analyzers.compare.programs.units import PLAN_BLOCKED, PLAN_BLOCKED_WIRE, PLAN_COLLECTIVES, PLAN_WIRE
from perfscope.analyzers.hlo import sent_bytes
from perfscope.analyzers.plans import XLA_KINDS, StepExchanges, launches, overlapping_kernels, planned_collectives
from perfscope.analyzers.predict import NO_TIME, Range
from perfscope.model.documents.torch_plan import PlannedCollective
from perfscope.model.op_graph import OpGraph
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.units import format_bytes, format_ns

WHY_WAITED = "no kernel can run at the same time"
WHY_LAST = "no kernel of the step follows it"

_ONE = Range(low=1, high=1)

StepWaits = tuple[StepExchanges | None, StepExchanges | None]
"""The model of both steps, with rows in the order of `plan_exchanges`; ``None`` if not for one target."""

NO_WAITS: StepWaits = (None, None)


class PlanExchange(Struct, frozen=True, kw_only=True, eq=False):
    """One run of a collective in a step."""

    collective: PlannedCollective
    ranks: tuple[int, ...]
    """Ranks that take part; for ``send`` and ``recv``, two."""
    overlapping: int
    """Number of kernels that may run at the same time."""

    @property
    def sent(self) -> int:
        """Bytes that a device sends."""
        devices = len(set(self.ranks))
        kind = self.collective.kind
        return sent_bytes(XLA_KINDS.get(kind, kind), self.collective.bytes, devices) if devices > 1 else 0

    @property
    def blocks(self) -> str | None:
        """Reason that the device waits; ``None`` if kernels may run meanwhile or the group has one rank."""
        if self.overlapping or len(set(self.ranks)) < 2:
            return None
        return WHY_LAST if self.collective.until is None else WHY_WAITED

    @property
    def amounts(self) -> dict[str, int]:
        """Amounts of one run."""
        blocks, sent = self.blocks is not None, self.sent
        return {
            PLAN_COLLECTIVES: 1, PLAN_WIRE: sent, PLAN_BLOCKED: int(blocks), PLAN_BLOCKED_WIRE: sent if blocks else 0,
        }  # fmt: skip

    @property
    def who(self) -> tuple[str, str, str]:
        """Kind, caller and phase."""
        return self.collective.kind, self.collective.by, self.collective.phase

    @property
    def what(self) -> tuple[object, ...]:
        """Kind, caller, phase, ranks and size, independent of the source line."""
        return *self.who, self.ranks, self.collective.dtype, self.collective.bytes

    def place(self, lines: LineMap = NO_LINES) -> str:
        """Return the source line; ``lines`` maps it to the other side. ``''`` if unknown."""
        file = self.collective.file
        return "" if file is None else lines.place(file, self.collective.line)


def plan_exchanges(loaded: LoadedPlan) -> tuple[PlanExchange, ...] | None:
    """Return the collectives of a step in the model's order; ``None`` for one process, or if some are unknown."""
    processes = loaded.plan.processes
    if processes is None or processes.left:
        return None
    if loaded.plan.compiled_by == "program":
        if processes.outside is None or loaded.outside is None:
            return None
        graphs = [
            [NO_TIME if kernel.kind == "collective" else _ONE for kernel in graph.kernels]
            for graph in loaded.plan.graphs
        ]
        kernels, placed = planned_collectives(processes, _launched(loaded.outside), graphs)
    else:
        if processes.eager is None or loaded.eager is None:
            return None
        kernels, placed = _launched(loaded.eager), processes.eager
    counts = overlapping_kernels([kernel.high > 0 for kernel in kernels], placed)
    exchanges = []
    for collective, overlapping in zip(placed, counts, strict=True):
        group = processes.groups[collective.group] if collective.group < len(processes.groups) else ()
        exchanges.append(PlanExchange(collective=collective, ranks=collective.pairs or group, overlapping=overlapping))
    return tuple(exchanges)


def step_ops(loaded: LoadedPlan) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line, op) of the work and exchanges of a step; empty for a job of one process."""
    if loaded.plan.processes is None:
        return
    graph = loaded.outside if loaded.plan.compiled_by == "program" else loaded.eager
    for op in () if graph is None else graph.ops:
        if op.file is not None and op.line is not None:
            yield op.file, op.line, op.name
    for exchange in plan_exchanges(loaded) or ():
        if exchange.collective.file is not None and exchange.collective.line is not None:
            yield exchange.collective.file, exchange.collective.line, exchange.collective.kind


def not_compared(base: LoadedPlan, head: LoadedPlan) -> str:
    """Return why the collectives of two plans are not compared; ``''`` if they are, or both have none."""
    sizes = [0 if loaded.plan.processes is None else loaded.plan.processes.world_size for loaded in (base, head)]
    if sizes[0] != sizes[1]:
        texts = ["as one process" if not size else f"as the first of {size:,} processes" for size in sizes]
        return f"collectives are not compared: base is planned {texts[0]}, head {texts[1]}"
    lost = [name for name, loaded in (("base", base), ("head", head)) if sizes[0] and plan_exchanges(loaded) is None]
    return f"collectives are not compared: not all of {' and '.join(lost)} are in the plan" if lost else ""


def _launched(graph: OpGraph) -> tuple[Range, ...]:
    return tuple(_ONE if launches(op) else NO_TIME for op in graph.ops)


def sums_of(exchanges: Iterable[PlanExchange]) -> dict[str, int]:
    """Return the summed amounts of some exchanges."""
    result = dict.fromkeys((PLAN_COLLECTIVES, PLAN_WIRE, PLAN_BLOCKED, PLAN_BLOCKED_WIRE), 0)
    for exchange in exchanges:
        for name, amount in exchange.amounts.items():
            result[name] += amount
    return result


# Collectives of two plans as rows that sum to the change: new, larger, another type, newly blocking.
#
# Collectives with the same payload and ranks are paired, wherever they are called. The rest is grouped by kind and
# line, in any number of parts.


def collective_rows(
    base: Sequence[PlanExchange],
    head: Sequence[PlanExchange],
    lines: LineMap,
    waits: StepWaits = NO_WAITS,
) -> Iterator[ProgramRow]:
    """Yield rows that sum to the change of each amount. Linear in the collectives.

    ``waits``: the model of the same two steps.
    """
    exposed = [
        None if step is None else {id(exchange): row.exposed for exchange, row in zip(side, step.rows, strict=True)}
        for side, step in zip((base, head), waits, strict=True)
    ]
    for mine, theirs in _groups(base, head, lines):
        yield _row(mine, theirs, lines, (_waited(mine, exposed[0]), _waited(theirs, exposed[1])))


def waits_line(waits: StepWaits) -> str:
    """Return the time that both steps wait for all collectives; ``''`` if it is not modelled."""
    base, head = waits
    if base is None or head is None or not (base.rows or head.rows):
        return ""
    known = "" if base.known and head.known else ", or more: the network between the devices is unknown"
    return f"the step waits {_span(base.exposed)} → {_span(head.exposed)} for collectives by the model{known}"


_Group = tuple[list[PlanExchange], list[PlanExchange]]
_Key = Callable[[PlanExchange, LineMap], Hashable]


def _groups(base: Sequence[PlanExchange], head: Sequence[PlanExchange], lines: LineMap) -> Iterator[_Group]:
    """Yield groups that differ between the sides, with equal work together; one side may be empty.

    At one line, collectives of one dtype form a group, then the rest. Elsewhere collectives of one caller form a group,
    if each side calls them at a single line.
    """
    left: _Group = (list(base), list(head))
    same: tuple[_Key, ...] = (
        lambda exchange, line_map: (exchange.what, exchange.blocks is None, exchange.place(line_map)),
        lambda exchange, _: (exchange.what, exchange.blocks is None),
    )
    for key in same:
        left = _unpaired(*left, key, lines)
    at_line: tuple[_Key, ...] = (
        lambda exchange, line_map: (*exchange.who, exchange.place(line_map), exchange.collective.dtype),
        lambda exchange, line_map: (*exchange.who, exchange.place(line_map)),
    )
    for key in at_line:
        alone: _Group = ([], [])
        for group in _by_key(*left, key, lines):
            if all(group):
                yield group
            else:
                alone[0].extend(group[0])
                alone[1].extend(group[1])
        left = alone
    for group in _by_key(*left, lambda exchange, _: exchange.who, lines):
        if all(len({exchange.place() for exchange in side}) == 1 for side in group):
            yield group
        else:
            yield from _by_key(*group, at_line[-1], lines)


def _by_key(base: Iterable[PlanExchange], head: Iterable[PlanExchange], key: _Key, lines: LineMap) -> Iterable[_Group]:
    groups: dict[Hashable, _Group] = defaultdict(lambda: ([], []))
    for side, (exchanges, side_lines) in enumerate(((base, lines), (head, NO_LINES))):
        for exchange in exchanges:
            groups[key(exchange, side_lines)][side].append(exchange)
    return groups.values()


def _unpaired(base: Iterable[PlanExchange], head: Iterable[PlanExchange], key: _Key, lines: LineMap) -> _Group:
    """Return the collectives without a partner of this key, in order."""
    left: _Group = ([], [])
    for mine, theirs in _by_key(base, head, key, lines):
        pairs = min(len(mine), len(theirs))
        left[0].extend(mine[pairs:])
        left[1].extend(theirs[pairs:])
    return left


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
        base_names=tuple(exchange.collective.op for exchange in base[:MOST_SENTENCES]),
        head_names=tuple(exchange.collective.op for exchange in head[:MOST_SENTENCES]),
        said=tuple(_sentences(base, head, blocking, waits)),
    )


def _newly(base: dict[str, int], head: dict[str, int]) -> int:
    """Return the number of newly blocking collectives: more of them, or a larger share of the bytes."""
    if not head[PLAN_BLOCKED]:
        return 0
    more = head[PLAN_BLOCKED] - base[PLAN_BLOCKED]
    grown = head[PLAN_BLOCKED_WIRE] - base[PLAN_BLOCKED_WIRE]
    if grown <= 0 and base[PLAN_BLOCKED]:  # The same bytes in more parts do not count; for barriers the number counts.
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
    if {exchange.collective.dtype for exchange in base} != {exchange.collective.dtype for exchange in head}:
        return "type changed"
    if after[PLAN_WIRE] != before[PLAN_WIRE]:
        return "more bytes" if after[PLAN_WIRE] > before[PLAN_WIRE] else "fewer bytes"
    if len(base) != len(head):
        return "exchanged in more parts" if len(head) > len(base) else "exchanged in fewer parts"
    return "changed"


def _sentences(
    base: list[PlanExchange], head: list[PlanExchange], blocking: int, waits: tuple[Range | None, Range | None]
) -> Iterator[str]:
    if blocking:
        why = next((exchange.blocks for exchange in head if exchange.blocks is not None), WHY_WAITED)
        many = sum(exchange.blocks is not None for exchange in head)
        yield f"the device waits for {'it' if len(head) == 1 else f'{many} of them'}: {why}"
    sides = [_payload(side) for side in (base, head) if side]
    yield " → ".join(dict.fromkeys(sides))
    spans = [_span(span) for span, side in zip(waits, (base, head), strict=True) if span is not None and side]
    if len(spans) == bool(base) + bool(head):
        yield f"the step waits {' → '.join(spans)} for {'it' if len(head or base) == 1 else 'them'} by the model"


def _payload(exchanges: list[PlanExchange]) -> str:
    """Return a text such as ``4 of 1.00 MiB to 25.0 MiB, float32``."""
    sizes = sorted(exchange.collective.bytes for exchange in exchanges)
    ends = dict.fromkeys((format_bytes(sizes[0]), format_bytes(sizes[-1])))
    dtypes = sorted({exchange.collective.dtype or "no array" for exchange in exchanges})
    return f"{len(exchanges):,} of {' to '.join(ends)}, {' and '.join(dtypes)}"


def _waited(exchanges: list[PlanExchange], exposed: dict[int, Range] | None) -> Range | None:
    return None if exposed is None else sum((exposed[id(exchange)] for exchange in exchanges), NO_TIME)


def _span(span: Range) -> str:
    return f"{format_ns(span.low)} to {format_ns(span.high)}"
