"""Compiled programs in the HTML page of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.compare_program_rows import (
    ProgramLine,
    modelled_line,
    program_lines,
    program_title,
    written_line,
)
from perfscope.dashboards.reports.html_findings import card
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.dashboards.reports.compare_document import Document
    from perfscope.dashboards.reports.compare_program_types import ProgramDifference

MOST_PROGRAMS = 8
FIRST_ROWS = 8
MOST_ROWS = 60
MOST_NOTES = 20


def program_cards(document: Document) -> Iterator[str]:
    """A card of what changed by instruction; none where no program is on both sides."""
    if document.programs:
        yield card("By instruction", "".join(_programs(document)))


def _programs(document: Document) -> Iterator[str]:
    several = len(document.programs) > 1
    for one in document.programs[:MOST_PROGRAMS]:
        yield f"<p><b>{escape(program_title(one, several=several))}</b></p>"
        for lead, said in (("In the program as written", written_line(one)), ("Modelled", modelled_line(one))):
            if said:
                yield f"<p>{lead}: {escape(said)}</p>"
        yield from (f'<p class="note">{escape(sanitize(note, TEXT_LIMIT))}</p>' for note in one.notes[:MOST_NOTES])
        yield from _rows(one)
    if len(document.programs) > MOST_PROGRAMS:
        yield f'<p class="note">and {len(document.programs) - MOST_PROGRAMS:,} more programs</p>'


def _rows(one: ProgramDifference) -> Iterator[str]:
    lines, left = program_lines(one, MOST_ROWS)
    drawn = [_row(row) for row in lines]
    yield "".join(drawn[:FIRST_ROWS])
    more = f'<p class="note">and {left:,} more</p>' if left else ""
    if drawn[FIRST_ROWS:]:
        rest = "".join(drawn[FIRST_ROWS:])
        yield f"<details><summary>{len(drawn) - FIRST_ROWS} more changes</summary>{rest}{more}</details>"
    else:
        yield more


def _row(row: ProgramLine) -> str:
    lines = [row.title, *([row.amounts] if row.amounts else []), *row.said]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f'<div class="cause"><div><code>{escape(row.where or "no line")}</code></div><div class="time"></div>'
        f"<ul>{items}</ul></div>"
    )
