"""Plans for the memory of a step as one HTML file: opens offline, loads nothing, reads well on a phone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.advice_plan_json import render as render_json
from perfscope.dashboards.reports.advice_plan_svg import STYLE as PICTURE_STYLE
from perfscope.dashboards.reports.advice_plan_svg import caption, front_picture
from perfscope.dashboards.reports.advice_verified_rows import COLUMNS, NOTE, verified_rows
from perfscope.dashboards.reports.html_page import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.advice_plan_rows import PlanRow, PlansView


def render(view: PlansView) -> str:
    """The page. Every text of the recording is escaped; the policy forbids any request."""
    data = render_json(view).replace("<", "\\u003c")
    return page(_page(view), title=view.headline, data_id="perfscope-advice", data=data, style=PICTURE_STYLE)


def _page(view: PlansView) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(view.headline)}</span></h1>"
    yield f'<p class="sub">{" · ".join(escape(fact) for fact in view.facts)}</p></header>'
    yield f'<section class="card"><h2>Do</h2><p>{escape(view.verdict)}</p>'
    if view.code:
        lines = escape("\n".join(view.code))
        yield f'<div class="code"><button class="copy" type="button">copy</button><pre>{lines}</pre></div>'
    yield "</section>"
    yield '<section class="card"><h2>Peak against time</h2>'
    yield f'<p class="note">{escape(caption(view))}</p>'
    yield front_picture(view) + "</section>"
    yield '<section class="card"><h2>Plans worth having</h2><div class="scroll"><table class="stacks">'
    yield _head(view)
    yield "<tbody>" + "".join(_row(view, row) for row in view.rows) + "</tbody></table></div></section>"
    yield from _verified(view)
    items = "".join(f"<li>{escape(note)}</li>" for note in view.notes)
    yield f'<section class="card unseen"><h2>How it is known</h2><ul>{items}</ul></section>'


def _verified(view: PlansView) -> Iterator[str]:
    """Plans that were compiled, if it was asked for."""
    if view.verified is None:
        return
    yield '<section class="card"><h2>Verified</h2>'
    rows = verified_rows(view.plans.model, view.verified)
    if not rows:
        yield '<p class="note">Nothing to verify: no plan but today\'s.</p></section>'
        return
    heads = "".join(f'<th scope="col"{_verified_side(name)}>{escape(name)}</th>' for name in COLUMNS)
    yield f'<p class="note">{escape(NOTE)}</p>'
    yield f'<div class="scroll"><table class="stacks"><thead><tr>{heads}</tr></thead><tbody>'
    for row in rows:
        cells = "".join(
            f'<td data-name="{escape(name)}" class="{"n" if _verified_side(name) else "t" if name == "plan" else ""}">'
            f"{escape(cell)}</td>"
            for name, cell in zip(COLUMNS, row.cells, strict=True)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"
    left = "".join(
        f"<li>Not compiled: {escape(row.cells[0])}: {escape(row.reason)}.</li>" for row in rows if row.reason
    )
    yield (f"<ul>{left}</ul>" if left else "") + "</section>"


def _verified_side(name: str) -> str:
    return "" if name in ("plan", "--checkpoint") else ' class="n"'


def _columns(view: PlansView) -> tuple[str, ...]:
    budget = ("budget",) if view.plans.budget_bytes is not None else ()
    return ("plan", "peak", "change", "step", "added", *budget)


def _head(view: PlansView) -> str:
    heads = "".join(f'<th scope="col"{_side(name)}>{name}</th>' for name in _columns(view))
    return f"<thead><tr>{heads}</tr></thead>"


def _side(name: str) -> str:
    return "" if name in ("plan", "budget") else ' class="n"'


def _row(view: PlansView, row: PlanRow) -> str:
    chips = (' <span class="chip">today</span>' if row.today else "") + (
        ' <span class="chip ok">recommended</span>' if row.recommended else ""
    )
    cells = {
        "plan": f"<span>{row.number}. {escape(row.words)}{chips}</span>",
        "peak": escape(row.peak),
        "change": escape(row.change),
        "step": escape(row.step),
        "added": escape(row.added),
        "budget": escape(row.fits),
    }
    mark = ' class="mark"' if row.recommended else ""
    body = "".join(
        f'<td data-name="{name}" class="{"t" if name == "plan" else "n" if _side(name) else ""}">{cells[name]}</td>'
        for name in _columns(view)
    )
    return f"<tr{mark}>{body}</tr>"
