"""A sweep as one HTML file: opens offline, loads nothing, reads well on a phone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.html_page import page
from perfscope.dashboards.reports.sweep_document import dump
from perfscope.dashboards.reports.sweep_rows import facts, headline, rows_of
from perfscope.dashboards.reports.sweep_svg import STYLE, key_of, sweep_picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.sweep_document import Sweep
    from perfscope.dashboards.reports.sweep_rows import SweepRow

_NUMBERS = ("step, modelled", "peak", "of memory")


def render(sweep: Sweep) -> str:
    """The page. Every text is escaped; the policy forbids any request."""
    data = dump(sweep).decode().replace("<", "\\u003c")
    return page(_page(sweep), title=headline(sweep), data_id="perfscope-sweep", data=data, style=STYLE)


def _page(sweep: Sweep) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(headline(sweep))}</span></h1>"
    yield f'<p class="sub">{" · ".join(escape(fact) for fact in facts(sweep))}</p></header>'
    if sweep.said:
        items = "".join(f"<li>{escape(one)}</li>" for one in sweep.said)
        yield f'<section class="card"><h2>What follows</h2><ul>{items}</ul></section>'
    picture = sweep_picture(sweep)
    if picture:
        yield '<section class="card"><h2>Peak against modelled time</h2>'
        yield (
            '<p class="note">Upwards: the peak of one device. To the right: the modelled time of a step; a bar reaches '
            "from all peaks of the vendor reached to what kernels usually reach. Ringed: the front, which nothing that "
            "does the same work beats. Grey: it does not fit.</p>"
        )
        yield key_of(sweep) + picture + "</section>"
    yield '<section class="card"><h2>Variants</h2><div class="scroll"><table class="stacks">'
    yield _head(sweep)
    yield "<tbody>" + "".join(_row(sweep, row) for row in rows_of(sweep)) + "</tbody></table></div></section>"
    if sweep.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in sweep.notes)
        yield f'<section class="card unseen"><h2>How it is known</h2><ul>{items}</ul></section>'


def _columns(sweep: Sweep) -> tuple[str, ...]:
    return (*(axis.name for axis in sweep.axes), *_NUMBERS, "fits", "note")


def _head(sweep: Sweep) -> str:
    heads = "".join(
        f'<th scope="col"{" class=n" if name in _NUMBERS else ""}>{escape(name)}</th>' for name in _columns(sweep)
    )
    return f"<thead><tr>{heads}</tr></thead>"


def _row(sweep: Sweep, row: SweepRow) -> str:
    chip = ' <span class="chip ok">front</span>' if row.on_front else ""
    note = row.note.removeprefix("front").removeprefix("; ")
    cells = [*map(escape, row.settings), row.step, row.peak, row.share, row.fits, escape(note) + chip]
    names = _columns(sweep)
    body = "".join(
        f'<td data-name="{escape(name)}" class="{"n" if name in _NUMBERS else "t" if at == 0 else ""}">{cell}</td>'
        for at, (name, cell) in enumerate(zip(names, cells, strict=True))
    )
    return f"<tr{' class=mark' if row.on_front else ''}>{body}</tr>"
