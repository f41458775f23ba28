"""A plan of a PyTorch program in a comment on a pull request: all of it folded below one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.markdown_text import escape, in_html
from perfscope.dashboards.reports.program_markdown import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.plan_rows import PlanView

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
