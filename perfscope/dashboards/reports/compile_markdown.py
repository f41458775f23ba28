"""What torch.compile did in a comment on a pull request: all of it folded below one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.reports.markdown_text import escape, in_html
from perfscope.dashboards.reports.program_markdown import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.compile_rows import CompileView

MOST_FRAMES = 8
"""Frames in a comment: an overview, the other formats hold all."""

MOST_EVENTS = 8
MOST_KERNELS = 8


def compile_details(view: CompileView) -> str:
    """A folded block; its summary is the section's title and what stands out."""
    parts = [f"<details><summary>{in_html(_summary(view))}</summary>\n", *_body(view), "</details>"]
    return "\n".join(parts)


def _summary(view: CompileView) -> str:
    count = len(view.frames) + view.frames_left
    said = f"{view.title}: {count:,} compiled frame{'' if count == 1 else 's'}"
    return f"{said}; {view.events[0]}" if view.events else said


def _body(view: CompileView) -> Iterator[str]:
    rows = view.frames[:MOST_FRAMES]
    if rows:
        yield cells_table([tuple(view.cells_of(row)) for row in rows])
    left = view.frames_left + len(view.frames) - len(rows)
    if left:
        yield f"- and {left:,} more frames"
    events = view.events[:MOST_EVENTS]
    yield from (f"- {escape(said)}" for said in (view.stages, *events) if said)
    if len(events) < len(view.events):
        yield f"- and {len(view.events) - len(events):,} more rows of breaks and recompiles"
    yield from (f"- {escape(said)}" for said in (*view.events_left, *view.notes, view.legend) if said)
    yield ""
    if view.kernels:
        yield f"{escape(view.kernels_title)}\n"
        yield cells_table(view.kernels[:MOST_KERNELS])
