"""Plans of PyTorch programs in the JSON report: counts and bytes exact, times modelled as ``{low, high}`` in ns."""

from __future__ import annotations

from dataclasses import asdict
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.html_findings import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.program_formats import cells_table, html_cells_table
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.sections.programs import PlanSection, PlanSummary
    from perfscope.dashboards.report.sections.plan import Cells, PlanView


def plans_document(section: PlanSection) -> dict[str, Any]:
    """The section as dicts and lists."""
    return {"plans": [_plan(plan) for plan in section.plans], "problems": list(section.problems)}


def _plan(plan: PlanSummary) -> dict[str, Any]:
    held = asdict(plan)
    held["known_by"] = "planned"
    held["totals"]["bytes"] = plan.totals.bytes
    held["recompiles"] = [{"function": function, "reason": reason} for function, reason in plan.recompiles]
    held["made_up"] = [
        {"what": what, "at": where, "answer": answer, "times": times} for what, where, answer, times in plan.made_up
    ]
    for name in ("inside", "outside", "compiled", "eager"):
        if held[name] is not None:
            held[name]["device_ns"], held[name]["step_ns"] = held[name].pop("device"), held[name].pop("step")
    return held


# A plan of a PyTorch program on a terminal: short by default, every list with ``-v``.


FEW_GRAPHS = 4
FEW_COLLECTIVES = 6
FEW_KERNELS = 6
FEW_LINES = 3

_GIVE_WAY = (
    "phase",
    "beside it",
    "blocks",
    "block size",
    "asks for it",
    "sizes",
    "nodes",
    "way",
    "FLOPs",
    "of",
    "computes",
    "at",
    "registers",
)
"""Columns that go, in this order, where the terminal is too narrow."""


def plan_part(view: PlanView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """A step eagerly and compiled, graphs, the kernels that move most. Ends with an empty line."""
    if view.headline:
        yield f"  {view.title}"
        yield hanging(view.headline)
    if view.steps:
        yield _table(view.steps, width)
        yield ""
    for rows in (view.peaks, view.holders):
        if rows:
            yield _table(rows, width)
            yield ""
    yield from _list(view.exchanges, FEW_COLLECTIVES, width, "lines of collectives", verbose=verbose)
    if view.exchanged:
        yield from map(hanging, view.exchanged)
        yield ""
    yield from _list(view.graphs, FEW_GRAPHS, width, "graphs", verbose=verbose)
    yield from _list(view.kernels, FEW_KERNELS, width, "kernels, which move less", verbose=verbose)
    for sentences in (view.breaks, view.apart, view.notes):
        few = sentences if verbose else sentences[:FEW_LINES]
        yield from map(hanging, few)
        if len(few) < len(sentences):
            yield f"    and {len(sentences) - len(few):,} more: -v shows all"
    if verbose:
        yield from map(hanging, view.left)
    yield ""


def _list(rows: Sequence[Cells], few: int, width: int, what: str, *, verbose: bool) -> Iterator[RenderableType]:
    shown = rows if verbose else rows[:few]
    if not shown:
        return
    yield _table(_filled(shown), width)
    if len(shown) < len(rows):
        yield f"    and {len(rows) - len(shown):,} more {what}: -v shows all"
    yield ""


def _filled(rows: Sequence[Cells]) -> list[Cells]:
    """Without columns that no row fills."""
    kept = {name for cells in rows for name, text in cells if text}
    return [tuple(cell for cell in cells if cell[0] in kept) for cells in rows]


def _table(rows: Sequence[Cells], width: int) -> RenderableType:
    return table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))


# A plan of a PyTorch program in a comment on a pull request: all of it folded below one line.


MOST_ROWS = 8
"""Rows of each list in a comment: an overview, the other formats hold all."""


def plan_details(view: PlanView) -> str:
    """A folded block; its summary is the plan's title and how many graphs break."""
    said = f"torch.compile, {view.title}: {len(view.graphs):,} graphs"
    if view.breaks:
        said += f", {len(view.breaks):,} breaks or recompilations"
    return "\n".join([f"<details><summary>{in_html(said)}</summary>\n", *_body(view), "</details>"])


def _body(view: PlanView) -> Iterator[str]:
    if view.headline:
        yield f"{escape(view.headline)}\n"
    for rows in (view.steps, view.peaks, view.holders, view.exchanges, view.graphs, view.kernels):
        if rows:
            yield cells_table(rows[:MOST_ROWS])
            if len(rows) > MOST_ROWS:
                yield f"- and {len(rows) - MOST_ROWS:,} more\n"
    for sentences in (view.exchanged, view.breaks, view.apart, view.notes):
        yield from (f"- {escape(text)}" for text in sentences[:MOST_ROWS])
        if len(sentences) > MOST_ROWS:
            yield f"- and {len(sentences) - MOST_ROWS:,} more"
    yield ""


# A plan of a PyTorch program in the HTML report.


FIRST_COLLECTIVES = 8
FIRST_GRAPHS = 6
FIRST_KERNELS = 8
FIRST_LINES = 6


def plan_card(view: PlanView) -> str:
    """The section's card."""
    return card(f"torch.compile, {view.title}" if view.headline else view.title, "".join(_body_html_plan(view)))


def _body_html_plan(view: PlanView) -> Iterator[str]:
    if view.headline:
        yield f"<p>{escape_html(view.headline[:1].upper() + view.headline[1:])}.</p>"
    if view.steps:
        yield html_cells_table(view.steps)
    yield from (html_cells_table(rows) for rows in (view.peaks, view.holders) if rows)
    yield from _table_html_plan(view.exchanges, FIRST_COLLECTIVES, "lines of collectives")
    if view.exchanged:
        yield _list_html_plan(view.exchanged)
    yield from _table_html_plan(view.graphs, FIRST_GRAPHS, "graphs")
    yield from _table_html_plan(view.kernels, FIRST_KERNELS, "kernels, which move less")
    for sentences in (view.breaks, view.apart):
        yield _list_html_plan(sentences[:FIRST_LINES])
        if sentences[FIRST_LINES:]:
            yield _folded(f"{len(sentences) - FIRST_LINES:,} more", _list_html_plan(sentences[FIRST_LINES:]))
    notes = (*view.notes, *view.left)
    if notes:
        yield f'<p class="note">{escape_html(" ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))}</p>'


def _table_html_plan(rows: Sequence[Cells], few: int, what: str) -> Iterator[str]:
    if rows:
        yield html_cells_table(rows[:few])
    if rows[few:]:
        yield _folded(f"{len(rows) - few:,} more {what}", html_cells_table(rows[few:]))


def _list_html_plan(said: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in said)}</ul>" if said else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{body}</details>"
