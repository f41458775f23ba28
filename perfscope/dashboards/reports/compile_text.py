"""What torch.compile did, on a terminal: short by default, every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.dashboards.reports.compile_rows import CompileView

FEW_FRAMES = 3
"""Frames without ``-v``: those that compiled longest."""

FEW_EVENTS = 3
"""Graph breaks and recompiles without ``-v``; those that cost are findings above."""

FEW_KERNELS = 10
"""Kernels with ``-v``; the JSON report holds twice as many."""

_GIVE_WAY = ("share", "FX cache", "ops", "graphs", "breaks", "recompiled")
"""Columns of frames that go, in this order, where the terminal is too narrow; the first sentence has their sums."""

_KERNEL_GIVE_WAY = ("ATen ops", "backend", "calls")


def compile_section(view: CompileView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Frames, where the time went, graph breaks and recompiles; with ``-v`` kernels too. Ends with an empty line."""
    rows = view.frames if verbose else view.frames[:FEW_FRAMES]
    if rows:
        yield table_of(fitting([dict(view.cells_of(row)) for row in rows], _GIVE_WAY, width))
    left = view.frames_left + len(view.frames) - len(rows)
    if left:
        yield f"    and {left:,} more, which compiled for less time"
    if verbose:
        for row in rows:
            if row.details:
                yield hanging(f"{dict(row.cells)['frame']}: {'. '.join(row.details)}")
    if view.stages and not (verbose and len(view.frames) == 1):
        yield hanging(view.stages)
    events = view.events if verbose else view.events[:FEW_EVENTS]
    yield from map(hanging, events)
    if len(events) < len(view.events):
        yield f"    and {len(view.events) - len(events):,} more of breaks and recompiles: -v shows all"
    if verbose:
        yield from map(hanging, view.events_left)
    yield from map(hanging, view.notes)
    if verbose and view.legend:
        yield hanging(view.legend)
    if verbose and view.kernels:
        yield ""
        yield f"  {view.kernels_title}"
        yield table_of(fitting([dict(cells) for cells in view.kernels[:FEW_KERNELS]], _KERNEL_GIVE_WAY, width))
        more = view.kernels_left + len(view.kernels[FEW_KERNELS:])
        if more:
            yield f"    and {more:,} more"
    if verbose and view.hint:
        yield hanging(view.hint)
    yield ""
