"""Compiled programs in the document of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare.programs.units import UNITS
from perfscope.dashboards.report.compare.document import (
    ProgramLine,
    modelled_line,
    program_lines,
    program_title,
    written_line,
)
from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.markdown_text import code, inline
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.compare.programs.row import Amounts, ProgramChange, ProgramRow
    from perfscope.dashboards.report.compare.document import Document, ProgramDifference


# What the parts of a comparison's comment share: marks, what is folded, how many rows there is room for.


NAME_LIMIT = 90
"""Characters of a name: in a comment a mangled one is there to be recognised, not to be copied."""
MOST_NOTES = 20

MARKS = {
    "regression": "\N{LARGE RED CIRCLE}",
    "improvement": "\N{LARGE GREEN CIRCLE}",
    "no change": "\N{MEDIUM WHITE CIRCLE}",
    "inconclusive": "\N{LARGE YELLOW CIRCLE}",
    "differs": "\N{LARGE BLUE CIRCLE}",
}
NO_MARK = "\N{WHITE SMALL SQUARE}"


def few(most: int, shrink: int) -> int:
    """Rows there is room for: at least one."""
    return max(1, most // shrink)


def folded(title: str, body: str) -> str:
    """``title`` is HTML, no Markdown is read in it."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


MOST_ROWS = 2_000
"""Rows of a program that are written; the rest is one, so that they sum to the whole still."""

MOST_WRITTEN = 500


def programs(changes: Iterable[ProgramChange]) -> list[dict[str, Any]]:
    """Each program as plain dicts and lists."""
    return [_program(change) for change in changes]


def _program(change: ProgramChange) -> dict[str, Any]:
    kept, rest = change.rows[:MOST_ROWS], change.rows[MOST_ROWS:]
    left = {name: (_sum(rest, name, 0), _sum(rest, name, 1)) for name in change.totals}
    modelled = [None, None] if change.modelled_ns is None else [{"low": a, "high": b} for a, b in change.modelled_ns]
    return {
        "name": change.name,
        "base_fingerprint": change.base_fingerprint,
        "head_fingerprint": change.head_fingerprint,
        "identical": change.identical,
        "amounts": _amounts(change.totals),
        "rows": [_row(row) for row in kept],
        "other_rows": {
            "count": len(rest),
            "amounts": _amounts({name: both for name, both in left.items() if both[0] != both[1]}),
        },
        "written": None if change.written is None else [asdict(written) for written in change.written[:MOST_WRITTEN]],
        "base_modelled": modelled[0],
        "head_modelled": modelled[1],
        "notes": list(change.notes),
    }


def _sum(rows: Iterable[ProgramRow], name: str, side: int) -> int:
    return sum(row.amounts.get(name, (0, 0))[side] for row in rows)


def _amounts(amounts: Amounts) -> list[dict[str, Any]]:
    return [{"name": name, "unit": UNITS[name], "base": base, "head": head} for name, (base, head) in amounts.items()]


def _row(row: ProgramRow) -> dict[str, Any]:
    return {
        "change": row.change,
        "what": row.what,
        "place": row.place,
        "source": row.source,
        "phase": row.phase,
        "count": row.count,
        "amounts": _amounts(row.amounts),
        "lost": row.lost,
        "blocking": row.blocking,
        "base_names": list(row.base_names),
        "head_names": list(row.head_names),
        "said": list(row.said),
        "is_worse": row.is_worse,
    }


# Compiled programs in the HTML page of a comparison.


MOST_PROGRAMS = 8
FIRST_ROWS = 8
MOST_CARD_ROWS = 60


def program_cards(document: Document) -> Iterator[str]:
    """A card of what changed by instruction; none where no program is on both sides."""
    if document.programs:
        yield card("By instruction", "".join(_programs(document)))


def _programs(document: Document) -> Iterator[str]:
    several = len(document.programs) > 1
    for program in document.programs[:MOST_PROGRAMS]:
        yield f"<p><b>{escape(program_title(program, several=several))}</b></p>"
        for lead, text in (("In the program as written", written_line(program)), ("Modelled", modelled_line(program))):
            if text:
                yield f"<p>{lead}: {escape(text)}</p>"
        yield from (f'<p class="note">{escape(sanitize(note, TEXT_LIMIT))}</p>' for note in program.notes[:MOST_NOTES])
        yield from _rows(program)
    if len(document.programs) > MOST_PROGRAMS:
        yield f'<p class="note">and {len(document.programs) - MOST_PROGRAMS:,} more programs</p>'


def _rows(program: ProgramDifference) -> Iterator[str]:
    lines, left = program_lines(program, MOST_CARD_ROWS)
    drawn = [_card_row(row) for row in lines]
    yield "".join(drawn[:FIRST_ROWS])
    more = f'<p class="note">and {left:,} more</p>' if left else ""
    if drawn[FIRST_ROWS:]:
        rest = "".join(drawn[FIRST_ROWS:])
        yield f"<details><summary>{len(drawn) - FIRST_ROWS} more changes</summary>{rest}{more}</details>"
    else:
        yield more


def _card_row(row: ProgramLine) -> str:
    lines = [row.title, *([row.amounts] if row.amounts else []), *row.said]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f'<div class="cause"><div><code>{escape(row.where or "no line")}</code></div><div class="time"></div>'
        f"<ul>{items}</ul></div>"
    )


# Compiled programs in a comparison's comment: what changed, instruction by instruction.


MOST_COMMENT_PROGRAMS = 4
MOST_PROGRAM_ROWS = 8


def program_paragraphs(document: Document, shrink: int) -> Iterator[str]:
    """Paragraphs; ``shrink``: rows are divided by it."""
    several = len(document.programs) > 1
    for program in document.programs[: few(MOST_COMMENT_PROGRAMS, shrink)]:
        yield f"**By instruction**: {inline(program_title(program, several=several))}"
        parts = [("In the program as written", written_line(program)), ("Modelled", modelled_line(program))]
        parts += [("Note", sanitize(note, TEXT_LIMIT)) for note in program.notes[: few(MOST_NOTES, shrink)]]
        yield from (f"{lead}: {inline(text)}" for lead, text in parts if text)
        lines, left = program_lines(program, few(MOST_PROGRAM_ROWS, shrink), limit=NAME_LIMIT)
        if lines:
            yield "\n".join(f"{number}. {_program_row(row)}" for number, row in enumerate(lines, 1))
        if left:
            yield f"and {left:,} more changes"
    if len(document.programs) > MOST_COMMENT_PROGRAMS:
        yield f"and {len(document.programs) - MOST_COMMENT_PROGRAMS} more programs"


def _program_row(row: ProgramLine) -> str:
    mark = MARKS["regression"] if row.is_worse else NO_MARK
    where = f" {code(row.where)}" if row.where else ""
    amounts = f" ({inline(row.amounts)})" if row.amounts else ""
    text = f": {inline('; '.join(row.said))}" if row.said and row.is_worse else ""
    return f"{mark}{where} {inline(row.title)}{amounts}{text}"
