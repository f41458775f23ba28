"""The collectives of a job in a comment on a pull request: one line open, the tables folded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.markdown_text import escape, in_html
from perfscope.dashboards.reports.program_markdown import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.collective_rows import CollectivesView, JobView

MOST_KINDS = 8
"""Kinds of collectives in a comment: an overview, the other formats hold all."""

MOST_RANKS = 8
MOST_PAIRS = 8


def collectives_details(view: CollectivesView) -> str:
    """A folded block for each job; its summary is what its ranks did together."""
    parts = [part for job in view.jobs for part in _job(job)]
    return "\n".join([*parts, *(f"{escape(note)}\n" for note in view.notes)])


def _job(job: JobView) -> Iterator[str]:
    yield f"<details><summary>{in_html(f'{job.title}: {job.headline}')}</summary>\n"
    if job.kinds:
        yield cells_table(job.kinds[:MOST_KINDS])
    left = job.kinds_left + len(job.kinds[MOST_KINDS:])
    if left:
        yield f"- and {left:,} more kinds"
    if job.pairs:
        yield cells_table(job.pairs[:MOST_PAIRS])
    unsaid = job.pairs_left + len(job.pairs[MOST_PAIRS:])
    if unsaid:
        yield f"- and {unsaid:,} more kinds of messages"
    if job.ranks:
        yield cells_table(job.ranks[:MOST_RANKS])
    more = job.ranks_left + len(job.ranks[MOST_RANKS:])
    if more:
        yield f"- and {more:,} more {job.member}s"
    yield from (f"- {escape(said)}" for said in (*job.groups, *job.notes))
    yield "</details>"
