"""The collectives of a job in the HTML report: kinds that stack on a phone, ranks folded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.html_findings import card
from perfscope.dashboards.reports.html_programs import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.collective_rows import CollectivesView, JobView

FIRST_KINDS = 5
"""Kinds of collectives that stand open; the others are folded."""


def collectives_cards(view: CollectivesView) -> Iterator[str]:
    """A card for each job."""
    for job in view.jobs:
        yield card(job.title, "".join(_job(job)))
    if view.notes:
        yield card("Collectives", _list(view.notes))


def _job(job: JobView) -> Iterator[str]:
    yield f"<p>{escape(job.headline[:1].upper() + job.headline[1:])}.</p>"
    if job.kinds:
        yield cells_table(job.kinds[:FIRST_KINDS])
    if job.kinds[FIRST_KINDS:]:
        rest = job.kinds[FIRST_KINDS:]
        yield f"<details><summary>{len(rest)} more kinds</summary>{cells_table(rest)}</details>"
    if job.kinds_left:
        yield f'<p class="note">and {job.kinds_left:,} more kinds</p>'
    if job.pairs:
        yield f"<details><summary>messages between two ranks</summary>{cells_table(job.pairs)}</details>"
    if job.pairs_left:
        yield f'<p class="note">and {job.pairs_left:,} more kinds of messages</p>'
    if job.ranks:
        left = f'<p class="note">and {job.ranks_left:,} more {job.member}s</p>' if job.ranks_left else ""
        yield f"<details><summary>{job.member}s side by side</summary>{cells_table(job.ranks)}{left}</details>"
    if job.groups:
        yield f"<details><summary>process groups</summary>{_list(job.groups)}</details>"
    yield _list(job.notes)


def _list(said: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>" if said else ""
