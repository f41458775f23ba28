"""The collectives of a job on a terminal: short by default, every list with ``-v``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.dashboards.reports.collective_rows import CollectivesView

FEW_KINDS = 3
"""Kinds of collectives without ``-v``: those that took longest."""

FEW_PAIRS = 3
"""Kinds of messages between two ranks without ``-v``."""

FEW_NOTES = 2
"""Notes without ``-v``: ranks that are missing and jobs that are mixed come first."""

_GIVE_WAY = ("algorithm", "waiting", "message", "group")
"""Columns that go, in this order, where the terminal is too narrow."""


def collectives_section(view: CollectivesView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Kinds of collectives of each job, and with ``-v`` its ranks and groups. Ends with an empty line."""
    for job in view.jobs:
        yield hanging(f"{job.title}: {job.headline}")
        kinds = job.kinds if verbose else job.kinds[:FEW_KINDS]
        if kinds:
            yield table_of(fitting([dict(cells) for cells in kinds], _GIVE_WAY, width))
        left = job.kinds_left + len(job.kinds) - len(kinds)
        if left:
            yield f"    and {left:,} more kinds, which took less"
        pairs = job.pairs if verbose else job.pairs[:FEW_PAIRS]
        if pairs:
            yield table_of(fitting([dict(cells) for cells in pairs], ("sent ahead", "size"), width))
        unsaid = job.pairs_left + len(job.pairs) - len(pairs)
        if unsaid:
            yield f"    and {unsaid:,} more kinds of messages, which took less"
        if verbose and job.kinds:
            yield table_of(fitting([dict(cells) for cells in job.ranks], (), width))
            if job.ranks_left:
                yield f"    and {job.ranks_left:,} more {job.member}s, which waited less"
            yield from map(hanging, job.groups)
        yield from map(hanging, job.notes if verbose else job.notes[:FEW_NOTES])
        yield ""
    for note in view.notes:
        yield hanging(note)
        yield ""
