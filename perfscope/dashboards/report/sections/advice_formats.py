"""Advice taken apart: paragraphs, and code to copy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.analyzers.checkpointing.wording import describe
from perfscope.dashboards.report.html_page import page
from perfscope.dashboards.report.renderers.text import WIDTH, hanging, printed
from perfscope.dashboards.report.sections.advice import (
    COLUMNS,
    NOTE,
    added_words,
    shown_code,
    signed_time,
    verified_data,
    verified_rows,
)
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.checkpointing.plans import Plan, Plans
    from perfscope.dashboards.report.sections.advice import PlanRow, PlansView


# Plans for the memory of a step as JSON.


SCHEMA = "perfscope.advice.memory/1"


def render_json(view: PlansView) -> str:
    """The document as text."""
    return json.dumps(document(view), indent=2) + "\n"


def document(view: PlansView) -> dict[str, Any]:
    """All of it: bytes and nanoseconds as integers, ``None`` for what is not known."""
    plans = view.plans
    model = plans.model
    return {
        "schema": SCHEMA,
        "subject": view.subject,
        "memory": sanitize(model.label),
        "basis": "modelled",
        "op_times": model.basis,
        "budget_bytes": plans.budget_bytes,
        "budget_from": plans.budget_from,
        "measured_peak_bytes": model.measured_peak_bytes,
        "step_ns": model.step_ns,
        "parameter_bytes": model.parameter_bytes,
        "gradient_bytes": model.gradient_bytes,
        "optimizer_bytes": model.optimizer_bytes,
        "other_bytes": model.other_bytes,
        "reserve_share": model.reserve_share,
        "plans_looked_at": plans.looked_at,
        "complete": plans.complete,
        "today": _plan(plans, plans.today),
        "recommended": None if plans.recommended is None else _plan(plans, plans.recommended),
        "front": [_plan(plans, plan) for plan in plans.front],
        "verified": verified_data(model, view.verified),
        "notes": list(view.notes),
    }


def _plan(plans: Plans, plan: Plan) -> dict[str, Any]:
    model, step = plans.model, plans.step_ns(plan)
    return {
        "plan": sanitize(describe(model, plan)),
        "regions": [
            {"module": sanitize(region.name), "policy": policy}
            for region, policy in zip(model.regions, plan.policies, strict=True)
            if policy != "keep"
        ],
        "zero_level": plan.placement.level,
        "devices": plan.placement.devices,
        "optimizer_on_host": plan.placement.optimizer_on_host,
        "peak_bytes": plan.peak_bytes,
        "needs_bytes": plans.needs(plan),
        "fits": plans.fits(plan),
        "peak_in": plan.simulation.part,
        "peak_region": None if plan.simulation.region is None else sanitize(model.regions[plan.simulation.region].name),
        "recompute_ns": plan.simulation.recompute_ns,
        "stored_ns": plan.simulation.stored_ns,
        "host_bytes": plan.transfer.host_bytes,
        "between_bytes": plan.transfer.between_bytes,
        "added_low_ns": plan.added_low_ns,
        "added_high_ns": plan.added_high_ns,
        "step_low_ns": None if step is None else step[0],
        "step_high_ns": None if step is None else step[1],
        "code": list(shown_code(model, plan)),
    }


# Plans for the memory of a step on a terminal: the one to take, its code, and all that are worth having.


BAR = 12
"""Characters of a whole bar."""

BAR_FROM = 100
"""Columns from which the peaks are drawn and the step is told: in fewer the words of the plan need the room."""


def render_text(view: PlansView, *, width: int = WIDTH, color: bool = False) -> str:
    """The plans as text for ``width`` columns."""
    return printed(lambda columns: _parts(view, columns), width=width, color=color)


def _parts(view: PlansView, width: int) -> Iterator[RenderableType]:
    yield Text(f"perfscope: {view.headline}", style="bold")
    yield from (Padding(Text(fact), (0, 0, 0, 2)) for fact in view.facts)
    yield ""
    yield _labelled("do", view.verdict)
    if view.code:
        yield ""
        yield from (Text(f"      {line}") for line in view.code)
    yield ""
    yield _table(view, width)
    yield ""
    yield from _verified(view)
    yield from (hanging(note) for note in view.notes)


def _labelled(label: str, text: str) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(f"  {label}", style="dim"), Text(text, style="bold"))
    return table


def _table(view: PlansView, width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    bars, fits = width >= BAR_FROM, view.plans.budget_bytes is not None
    if bars:
        table.add_column("", no_wrap=True, width=BAR)
    names = ("peak", "change", "step", "added") if width >= BAR_FROM else ("peak", "change", "added")
    for name in names:
        table.add_column(name, justify="right", overflow="fold", max_width=18)
    if fits:
        table.add_column("budget", no_wrap=True)
    table.add_column("plan (predicted)", overflow="fold", ratio=1)
    for row in view.rows:
        cells = [Text(_mark(row))]
        if bars:
            cells.append(Text("█" * max(1, round(BAR * row.share)), style="green" if row.recommended else "dim"))
        cells += [Text(str(getattr(row, name))) for name in names]
        if fits:
            cells.append(Text(row.fits))
        table.add_row(*cells, Text(row.words + (" (today)" if row.today else "")), style=_style(row))
    return Padding(table, (0, 0, 0, 2))


def _verified(view: PlansView) -> Iterator[RenderableType]:
    """Plans that were compiled, if it was asked for."""
    if view.verified is None:
        return
    rows = verified_rows(view.plans.model, view.verified)
    if not rows:
        yield Text("  nothing to verify: no plan but today's")
        yield ""
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in COLUMNS:
        words = name in ("plan", "--checkpoint")
        table.add_column(
            name, justify="left" if words else "right", overflow="fold", ratio=1 if name == "plan" else None
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.cells))
    yield Text("  verified", style="bold")
    yield Padding(table, (0, 0, 0, 2))
    yield from (hanging(f"Not compiled: {row.cells[0]}: {row.reason}.") for row in rows if row.reason)
    yield hanging(NOTE)
    yield ""


def _mark(row: PlanRow) -> str:
    return ">" if row.recommended else ""


def _style(row: PlanRow) -> str:
    return "bold" if row.recommended else ""


# The front of the plans as inline SVG: peak against what it adds to the step.
#
# Places along the width are percentages, so that the words keep their size on a phone.


_TOP, _BOTTOM = 26, 262
_LEFT, _RIGHT = 6.0, 95.0
_POINT, _RING = 5, 10
"""Pixels: radius of a plan's point, and of the ring around the one to take."""

PHONE = 330
"""Pixels that the picture is wide on a phone of 390: words that are apart there are apart where there is more room."""
MARGIN = 14
"""Pixels on both sides of the picture that are the card's, and may be written on."""
_LETTER, _LINE = 7, 12
"""Pixels of a letter, as wide as the widest digits in bold, and of a line of words."""

FITS, TOO_MUCH = "#3f7fd6", "#9aa3af"

STYLE = """
.ps-front{display:block;overflow:visible;width:100%;height:270px;margin:4px 0 10px}
.ps-front text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
.ps-front .ps-said{fill:var(--ink);font-weight:600}
.ps-front .ps-axis{stroke:var(--line)}
.ps-front .ps-budget{stroke:var(--high);stroke-dasharray:6 4}
.ps-front .ps-reach{stroke:var(--soft);stroke-width:2px;stroke-opacity:.6}
.ps-front .ps-chosen{fill:none;stroke:var(--ink);stroke-width:2px}
.mark{font-weight:650}
"""


def front_picture(view: PlansView) -> str:
    """Peak upwards, added time to the right; a bar reaches from the best to the worst case of a plan."""
    plans = view.plans
    drawn = [(row, _plan_of(view, row)) for row in view.rows]
    first, last, top = _ranges(view)
    budget = plans.budget_bytes

    def across(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - first) / max(last - first, 1)

    def down(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top if top else _BOTTOM

    shapes = [
        f'<line class="ps-axis" x1="0" x2="100%" y1="{_BOTTOM}" y2="{_BOTTOM}"/>',
        f'<line class="ps-axis" x1="{across(0):.2f}%" x2="{across(0):.2f}%" y1="{_TOP - 8}" y2="{_BOTTOM}"/>',
    ]
    if budget is not None and budget <= top:
        y = down(budget)
        shapes.append(f'<line class="ps-budget" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
    places = [
        (across(plan.added_high_ns if plan.added_high_ns is not None else last), down(plan.peak_bytes))
        for _, plan in drawn
    ]
    for row, plan in drawn:
        shapes += _point(row, plan, across, down, last)
    shapes += _labels([row for row, _ in drawn], places)
    words = f"{len(drawn)} plans: peak of memory against time added to the step; the table has the numbers"
    return f'<svg class="ps-front" role="img" aria-label="{escape(words)}">{"".join(shapes)}</svg>'


def _plan_of(view: PlansView, row: PlanRow) -> Plan:
    plans = view.plans
    shown = plans.front if len(view.rows) == len(plans.front) else (plans.today, *plans.front)
    return shown[row.number - 1]


def _point(
    row: PlanRow,
    plan: Plan,
    across: Callable[[float], float],
    down: Callable[[float], float],
    last: int,
) -> list[str]:
    y, low = down(plan.peak_bytes), across(plan.added_low_ns)
    high = across(plan.added_high_ns if plan.added_high_ns is not None else last)
    color = TOO_MUCH if row.fits == "no" else FITS
    title = f"{row.number}. {row.words}: {row.peak}, {added_words(plan)}"
    shapes = []
    if high > low:
        dashes = ' stroke-dasharray="3 3"' if plan.added_high_ns is None else ""
        shapes.append(f'<line class="ps-reach" x1="{low:.2f}%" x2="{high:.2f}%" y1="{y:.1f}" y2="{y:.1f}"{dashes}/>')
    if row.recommended:
        shapes.append(f'<circle class="ps-chosen" cx="{high:.2f}%" cy="{y:.1f}" r="{_RING}"/>')
    shapes.append(
        f'<circle cx="{high:.2f}%" cy="{y:.1f}" r="{_POINT}" fill="{color}"><title>{escape(title)}</title></circle>'
    )
    return shapes


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle in the pixels of a phone."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def _labels(rows: Sequence[PlanRow], places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """The numbers of the plans beside their points; ``places``: percent of the width, pixels downwards.

    The front falls to the right, so above a point on its right and below it on its left is most room. What must be
    named comes first; what finds no room has its number in the table alone.
    """
    taken = []
    for row, (at, y) in zip(rows, places, strict=True):
        x, reach = at * PHONE / 100, _RING if row.recommended else _POINT
        taken.append(_Box(x - reach, y - reach, x + reach, y + reach))
    order = sorted(range(len(rows)), key=lambda index: not (rows[index].recommended or rows[index].today))
    for index in order:
        row, (at, y) = rows[index], places[index]
        must = row.recommended or row.today
        words = f"{row.number}" + (" today" if row.today else "")
        away = (_RING if row.recommended else _POINT) + 3
        x, wide = at * PHONE / 100, _LETTER * len(words)
        spots = [
            (_Box(x + away, y - 3 - _LINE, x + away + wide, y - 3), away, "start", -5),
            (_Box(x - away - wide, y + 3, x - away, y + 3 + _LINE), -away, "end", 3 + _LINE - 2),
            (_Box(x + away, y + 3, x + away + wide, y + 3 + _LINE), away, "start", 3 + _LINE - 2),
            (_Box(x - away - wide, y - 3 - _LINE, x - away, y - 3), -away, "end", -5),
        ]
        inside = [spot for spot in spots if spot[0].left >= -MARGIN and spot[0].right <= PHONE + MARGIN]
        free = [spot for spot in inside if not any(spot[0].meets(other) for other in taken)]
        if not free and not must:
            continue
        box, dx, anchor, dy = (free or inside or spots)[0]
        taken.append(box)
        text = ' class="ps-said"' if must else ""
        yield f'<text{text} x="{at:.2f}%" dx="{dx}" y="{y + dy:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def caption(view: PlansView) -> str:
    """What the axes of the picture are, in words."""
    plans = view.plans
    first, last, top = _ranges(view)
    added = f", from {signed_time(first)} to {signed_time(last)}" if last > first else ": nothing, whichever it is"
    text = (
        f"Predicted. Upwards: the peak, from nothing to {format_bytes(top)}. To the right: what a plan adds to "
        f"the step{added}; the upright line is today's step. A bar reaches from all transfers hidden to none."
    )
    if plans.budget_bytes is None:
        return text
    if plans.budget_bytes > top:
        return f"{text} The budget, {format_bytes(plans.budget_bytes)}, is above the picture."
    return f"{text} Dashed: the budget, {format_bytes(plans.budget_bytes)}; grey plans do not fit it."


def _ranges(view: PlansView) -> tuple[int, int, int]:
    """Least and most that a plan adds to the step, and the highest peak of the picture (or the budget)."""
    drawn = [_plan_of(view, row) for row in view.rows]
    highs = [plan.added_high_ns for plan in drawn if plan.added_high_ns is not None]
    tallest = max(plan.peak_bytes for plan in drawn)
    budget = view.plans.budget_bytes
    top = max(tallest, budget) if budget is not None and budget <= 2 * tallest else tallest
    lows = [plan.added_low_ns for plan in drawn]
    return min(*lows, 0), max(*lows, *highs, 0), top


# Plans for the memory of a step as one HTML file: opens offline, loads nothing, reads well on a phone.


def render_html(view: PlansView) -> str:
    """The page. Every text of the recording is escaped; the policy forbids any request."""
    data = render_json(view).replace("<", "\\u003c")
    return page(_page(view), title=view.headline, data_id="perfscope-advice", data=data, style=STYLE)


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
    yield from _verified_advice_plan_html(view)
    items = "".join(f"<li>{escape(note)}</li>" for note in view.notes)
    yield f'<section class="card unseen"><h2>How it is known</h2><ul>{items}</ul></section>'


def _verified_advice_plan_html(view: PlansView) -> Iterator[str]:
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
