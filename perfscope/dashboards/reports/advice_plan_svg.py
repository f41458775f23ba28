"""The front of the plans as inline SVG: peak against what it adds to the step.

Places along the width are percentages, so that the words keep their size on a phone.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.advice_plan_rows import added_words, signed_time
from perfscope.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfscope.analyzers.advice.plans import Plan
    from perfscope.dashboards.reports.advice_plan_rows import PlanRow, PlansView

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
        said = ' class="ps-said"' if must else ""
        yield f'<text{said} x="{at:.2f}%" dx="{dx}" y="{y + dy:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def caption(view: PlansView) -> str:
    """What the axes of the picture are, in words."""
    plans = view.plans
    first, last, top = _ranges(view)
    added = f", from {signed_time(first)} to {signed_time(last)}" if last > first else ": nothing, whichever it is"
    said = (
        f"Predicted. Upwards: the peak, from nothing to {format_bytes(top)}. To the right: what a plan adds to "
        f"the step{added}; the upright line is today's step. A bar reaches from all transfers hidden to none."
    )
    if plans.budget_bytes is None:
        return said
    if plans.budget_bytes > top:
        return f"{said} The budget, {format_bytes(plans.budget_bytes)}, is above the picture."
    return f"{said} Dashed: the budget, {format_bytes(plans.budget_bytes)}; grey plans do not fit it."


def _ranges(view: PlansView) -> tuple[int, int, int]:
    """Least and most that a plan adds to the step, and the highest peak of the picture (or the budget)."""
    drawn = [_plan_of(view, row) for row in view.rows]
    highs = [plan.added_high_ns for plan in drawn if plan.added_high_ns is not None]
    tallest = max(plan.peak_bytes for plan in drawn)
    budget = view.plans.budget_bytes
    top = max(tallest, budget) if budget is not None and budget <= 2 * tallest else tallest
    lows = [plan.added_low_ns for plan in drawn]
    return min(*lows, 0), max(*lows, *highs, 0), top
