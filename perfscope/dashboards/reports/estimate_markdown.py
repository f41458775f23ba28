"""Modelled time in a comment on a pull request: all of it folded below one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.estimate_rows import largest
from perfscope.dashboards.reports.markdown_text import escape, in_html
from perfscope.dashboards.reports.program_markdown import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.estimate_rows import EstimateView, ProgramView

MOST_PROGRAMS = 3
"""Programs in a comment: an overview, the other formats hold all."""

MOST_LINES = 8


def estimate_details(view: EstimateView) -> str:
    """A folded block; its summary is the range of the first program."""
    summary = in_html(view.headline or view.title)
    return "\n".join([f"<details><summary>{summary}</summary>\n", *_body(view), "</details>"])


def _body(view: EstimateView) -> Iterator[str]:
    for program in view.programs[:MOST_PROGRAMS]:
        yield from _program(program)
    left = view.programs_left + max(0, len(view.programs) - MOST_PROGRAMS)
    if left:
        yield f"- and {left:,} more programs"
    yield from (f"- {escape(note)}" for note in view.notes)
    if view.blind_spots:
        yield f"- not in it: {escape('; '.join(view.blind_spots))}"
    yield ""


def _program(program: ProgramView) -> Iterator[str]:
    yield f"{escape(program.summary)}; {escape(largest(program))}\n" if program.lines else escape(program.summary)
    yield from (f"- {escape(text)}" for text in (*program.warnings, *program.facts, *program.errors))
    yield ""
    if program.lines:
        yield cells_table(program.lines[:MOST_LINES])
