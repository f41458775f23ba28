"""Programs that were compiled for a machine that is not there, and never ran: what is modelled of them."""

from __future__ import annotations

from html import escape

from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.sections.programs import PlanSummary
from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.sections.estimate import estimate_card, estimate_view, picture
from perfscope.dashboards.report.sections.plan import holder_rows, memory_notes, peak_rows, plan_card, plan_views
from perfscope.dashboards.report.sections.plan import range_text as plan_range_text
from perfscope.dashboards.report.sections.program import html_cells_table
from perfscope.model.untrusted_text import sanitize

Tile = tuple[str, str, str]


def told_of(analysis: Analysis) -> str:
    """What stands above every page of such programs; ``''`` where something ran."""
    if analysis.steps or analysis.devices:
        return ""
    targets = [one.estimate.target.shown for one in analysis.estimate.programs]
    targets += [plan.target for plan in analysis.plans.plans]
    if not targets:
        return ""
    named = sanitize(", ".join(dict.fromkeys(targets)), 120)
    return f"Compiled for {named} and never run: every time of a run on these pages is modelled, none is measured."


def tiles(analysis: Analysis) -> list[Tile]:
    """(name, value, note): the modelled step, a range, of the plan with most time; a program's is in the headline."""
    return [tile for plan in analysis.plans.plans[:1] for tile in _plan_tiles(plan)]


def _plan_tiles(plan: PlanSummary) -> list[Tile]:
    named = sanitize(plan.name.rpartition(".")[2], 40)
    held = [
        ("Step compiled, modelled", plan.compiled or plan.inside, "torch.compile's plan"),
        ("Step eager, modelled", plan.eager, "op by op"),
    ]
    found = [
        (name, plan_range_text(work.step), f"{named} on {sanitize(plan.target, 40)}, {how}, launches included")
        for name, work, how in held
        if work is not None
    ]
    return found + [
        (f"Peak {row['a step']}, planned", row["peak, planned"], f"{row['of memory']} of the device's, in {row['in']}")
        for row in map(dict, peak_rows(plan))
    ]


def cards(analysis: Analysis) -> str:
    """The report's cards of modelled time and of plans, as HTML."""
    view = estimate_view(analysis.estimate)
    modelled = "" if view is None else estimate_card(view)
    return modelled + "".join(map(plan_card, plan_views(analysis.plans)))


def memory_cards(analysis: Analysis) -> str:
    """The planned peaks of each plan's step, and who holds the one that counts, as HTML; ``''`` without plans."""
    return "".join(
        card(f"Peak of a step, planned: {sanitize(plan.name, 80)}", _memory(plan)) for plan in analysis.plans.plans
    )


def _memory(plan: PlanSummary) -> str:
    tables = "".join(html_cells_table(rows) for rows in (list(peak_rows(plan)), list(holder_rows(plan))) if rows)
    notes = " ".join(f"{note[:1].upper()}{note[1:]}." for note in memory_notes(plan))
    return tables + (f'<p class="note">{escape(notes)}</p>' if notes else "")


def schedules(analysis: Analysis) -> str:
    """What the timeline of such a program would be, as HTML: its streams in one modelled run; ``''``: none."""
    return "".join(
        f'<section class="card"><h2>{escape(sanitize(one.label))}: one run, modelled</h2>{drawn}</section>'
        for one in analysis.estimate.programs
        if (drawn := "".join(map(picture, one.estimate.pictures)))
    )
