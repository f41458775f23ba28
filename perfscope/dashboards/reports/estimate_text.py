"""Modelled time on a terminal: short by default, instructions, assumptions and blind spots with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.dashboards.reports.estimate_rows import Cells, EstimateView, ProgramView

FEW_PROGRAMS = 2
"""Programs without ``-v``."""

FEW_LINES = 6
"""Lines of a program without ``-v``; the JSON report holds twenty."""

MOST_ROWS = 12
"""Rows of each list with ``-v``."""

_GIVE_WAY = ("instructions", "at", "runs", "each", "bound by", "share")
"""Columns that go, in this order, where the terminal is too narrow."""


def estimate_section(view: EstimateView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """The range of each program, where its time goes, and what the range leaves out. Ends with an empty line."""
    yield f"  {view.title}, a range: the vendor's peaks to what kernels usually reach"
    programs = view.programs if verbose else view.programs[:FEW_PROGRAMS]
    for program in programs:
        yield from _program(program, width, verbose=verbose)
    left = view.programs_left + len(view.programs) - len(programs)
    if left:
        yield f"    and {left:,} more programs, which take less"
    yield from map(hanging, view.notes)
    if verbose:
        yield from (hanging(f"assumed: {text}") for text in view.assumptions)
        yield from (hanging(f"not in it: {text}") for text in view.blind_spots)
    elif view.programs:
        yield hanging("assumptions and what is not in it: -v")
    yield ""


def _program(view: ProgramView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield hanging(view.summary)
    yield from map(hanging, view.warnings)
    yield from map(hanging, view.facts)
    yield from map(hanging, view.errors)
    lines = view.lines[: MOST_ROWS if verbose else FEW_LINES]
    if lines:
        yield _table(lines, width)
        left = view.lines_left + len(view.lines) - len(lines)
        if left:
            yield f"    and {left:,} more lines"
    if verbose and view.instructions:
        yield ""
        yield _table(view.instructions[:MOST_ROWS], width)
        left = view.instructions_left + max(0, len(view.instructions) - MOST_ROWS)
        if left:
            yield f"    and {left:,} more instructions"
    if verbose and view.error_groups:
        yield ""
        yield "  measured against modelled"
        yield _table(view.error_groups, width)
        yield _table(view.error_rows[:MOST_ROWS], width)


def _table(rows: Sequence[Cells], width: int) -> RenderableType:
    return table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))
