"""Compiled programs in a comparison's comment: what changed, instruction by instruction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.compare_markdown_parts import MARKS, MOST_NOTES, NAME_LIMIT, NO_MARK, few
from perfscope.dashboards.reports.compare_program_rows import (
    ProgramLine,
    modelled_line,
    program_lines,
    program_title,
    written_line,
)
from perfscope.dashboards.reports.markdown_text import code, inline
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.dashboards.reports.compare_document import Document

MOST_PROGRAMS = 4
MOST_PROGRAM_ROWS = 8


def programs(document: Document, shrink: int) -> Iterator[str]:
    """Paragraphs; ``shrink``: rows are divided by it."""
    several = len(document.programs) > 1
    for one in document.programs[: few(MOST_PROGRAMS, shrink)]:
        yield f"**By instruction**: {inline(program_title(one, several=several))}"
        said = [("In the program as written", written_line(one)), ("Modelled", modelled_line(one))]
        said += [("Note", sanitize(note, TEXT_LIMIT)) for note in one.notes[: few(MOST_NOTES, shrink)]]
        yield from (f"{lead}: {inline(text)}" for lead, text in said if text)
        lines, left = program_lines(one, few(MOST_PROGRAM_ROWS, shrink), limit=NAME_LIMIT)
        if lines:
            yield "\n".join(f"{number}. {_program_row(row)}" for number, row in enumerate(lines, 1))
        if left:
            yield f"and {left:,} more changes"
    if len(document.programs) > MOST_PROGRAMS:
        yield f"and {len(document.programs) - MOST_PROGRAMS} more programs"


def _program_row(row: ProgramLine) -> str:
    mark = MARKS["regression"] if row.is_worse else NO_MARK
    where = f" {code(row.where)}" if row.where else ""
    amounts = f" ({inline(row.amounts)})" if row.amounts else ""
    said = f": {inline('; '.join(row.said))}" if row.said and row.is_worse else ""
    return f"{mark}{where} {inline(row.title)}{amounts}{said}"
