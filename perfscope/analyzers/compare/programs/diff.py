"""Two compiled programs, explained by instruction: every launch of both in one row, or the same on both sides."""

from __future__ import annotations

from perfscope.analyzers.compare.programs.changes import group_rows
from perfscope.analyzers.compare.programs.keys import line_map
from perfscope.analyzers.compare.programs.match import matched
from perfscope.analyzers.compare.programs.memory import peak_rows
from perfscope.analyzers.compare.programs.row import ProgramChange, ProgramRow, merged
from perfscope.analyzers.compare.programs.units import PEAK, units_of
from perfscope.analyzers.compare.programs.written import written_change
from perfscope.analyzers.hlo.cost.module import ModuleCost, module_cost
from perfscope.analyzers.hlo.module import HloModule

MOST = 1 << 62
"""Of an amount: what a document holds exactly."""

TOO_LARGE = "its amounts are too large to be taken apart"


def program_change(
    base: HloModule,
    head: HloModule,
    *,
    before: tuple[HloModule | None, HloModule | None] = (None, None),
    costs: tuple[ModuleCost, ModuleCost] | None = None,
    name: str = "",
) -> ProgramChange:
    """What changed from one scheduled program to another.

    ``before``: both as they were before optimization, where that is known: the lines that were changed are told from
    them. ``costs``: where they are counted already. About n log n of n instructions. ``ValueError`` where rows and
    totals are not one, which would be a mistake of ours.
    """
    costs = costs or (module_cost(base), module_cost(head))
    units = units_of(costs[0]), units_of(costs[1])
    prints = units[0].digests[base.entry][:16], units[1].digests[head.entry][:16]
    written = before if before[0] is not None and before[1] is not None else None
    lines = line_map([base], [head]) if written is None else line_map([_known(written[0])], [_known(written[1])])
    source = written_change(_known(written[0]), _known(written[1]), lines) if written is not None else None
    peak, live = peak_rows(base, head, lines)
    totals = {key: (units[0].totals[key], units[1].totals[key]) for key in units[0].totals}
    if peak is not None:
        totals[PEAK] = peak
    notes: list[str] = []
    rows: list[ProgramRow] = []
    if max(max(both) for both in totals.values()) > MOST:
        totals, notes = {}, [TOO_LARGE]
    else:
        if prints[0] != prints[1]:
            near = (lambda keys: "") if source is None else source.source_of
            rows += group_rows(matched(*units, lines), units[1], lines, near)
        rows += live
    found = ProgramChange(
        name=name or head.name,
        base_fingerprint=prints[0],
        head_fingerprint=prints[1],
        totals=totals,
        rows=merged(rows, totals),
        written=None if source is None else source.rows,
        notes=tuple(notes),
        lines=lines,
    )
    found.check()
    return found


def _known(module: HloModule | None) -> HloModule:
    assert module is not None
    return module
