"""Collectives of two plans: which are new, larger, of another type, or block now, as rows that sum to the change.

Those that exchange the same for the same are one another, wherever they are asked for; then those that only block on
one side; then those of one kind, line and group together, in as many parts as there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from perfscope.analyzers.compare.programs.exchange import WHY_WAITED, PlanExchange, sums_of
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
from perfscope.analyzers.compare.programs.units import PLAN_BLOCKED, PLAN_BLOCKED_WIRE, PLAN_WIRE
from perfscope.analyzers.plans.collectives import StepExchanges
from perfscope.analyzers.predict.spans import NO_TIME, Range
from perfscope.model.units import format_bytes, format_ns

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
