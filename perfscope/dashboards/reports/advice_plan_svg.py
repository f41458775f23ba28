"""The front of the plans as inline SVG: peak against what it adds to the step.

Places along the width are percentages, so that the words keep their size on a phone.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.analyzers.units import format_bytes, format_ns
from perfscope.dashboards.reports.advice_plan_rows import added_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscope.analyzers.advice.plans import Plan
    from perfscope.dashboards.reports.advice_plan_rows import PlanRow, PlansView

_TOP, _BOTTOM = 26, 262
_LEFT, _RIGHT = 6.0, 95.0
APART = 6.0
"""Percent of the width between two numbers: they are readable on a phone."""

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
        return _LEFT + (_RIGHT - _LEFT) * (value - first) / (last - first)

    def down(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / top if top else _BOTTOM

    shapes = [
        f'<line class="ps-axis" x1="0" x2="100%" y1="{_BOTTOM}" y2="{_BOTTOM}"/>',
        f'<line class="ps-axis" x1="{across(0):.2f}%" x2="{across(0):.2f}%" y1="{_TOP - 8}" y2="{_BOTTOM}"/>',
    ]
    if budget is not None and budget <= top:
        y = down(budget)
        shapes.append(f'<line class="ps-budget" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
    named: list[float] = []
    # What must be named comes first, and what lies too close to it has its number in the table alone.
    for row, plan in sorted(drawn, key=lambda item: not (item[0].recommended or item[0].today)):
        at = across(plan.added_high_ns if plan.added_high_ns is not None else last)
        free = all(abs(at - other) >= APART for other in named)
        named += [at] * free
        shapes += _point(row, plan, across, down, last, labelled=free or row.recommended)
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
    *,
    labelled: bool,
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
        shapes.append(f'<circle class="ps-chosen" cx="{high:.2f}%" cy="{y:.1f}" r="10"/>')
    shapes.append(f'<circle cx="{high:.2f}%" cy="{y:.1f}" r="5" fill="{color}"><title>{escape(title)}</title></circle>')
    if not labelled:
        return shapes
    label = f"{row.number}" + (" today" if row.today else "")
    said = ' class="ps-said"' if row.recommended or row.today else ""
    shapes.append(f'<text{said} x="{high:.2f}%" y="{y - 14:.1f}" text-anchor="middle">{escape(label)}</text>')
    return shapes


def caption(view: PlansView) -> str:
    """What the axes of the picture are, in words."""
    plans = view.plans
    first, last, top = _ranges(view)
    said = (
        f"Predicted. Upwards: the peak, from nothing to {format_bytes(top)}. To the right: what a plan adds to "
        f"the step, from {format_ns(first)} to {format_ns(last)}; the upright line is today's step. A bar reaches "
        "from all transfers hidden to none."
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
    return min(*(plan.added_low_ns for plan in drawn), 0), max(*(plan.added_low_ns for plan in drawn), *highs, 1), top
