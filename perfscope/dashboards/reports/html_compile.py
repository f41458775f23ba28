"""What torch.compile did in the HTML report: a table that stacks on a phone, breaks and recompiles, kernels folded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.html_findings import card
from perfscope.dashboards.reports.html_programs import cells_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.dashboards.reports.compile_rows import CompileView

FIRST_FRAMES = 5
"""Frames that stand open; the others are folded."""

FIRST_EVENTS = 6
"""Lines of breaks and recompiles that stand open."""


def compile_card(view: CompileView) -> str:
    """The section's card."""
    return card(view.title, "".join(_body(view)))


def _body(view: CompileView) -> Iterator[str]:
    if view.headline:
        said = view.headline.removeprefix(view.title).lstrip(",: ")
        yield f"<p>{escape(said[:1].upper() + said[1:])}.</p>"
    frames = [view.cells_of(row) for row in view.frames]
    if frames:
        yield cells_table(frames[:FIRST_FRAMES])
    if view.stages:
        yield f'<p class="note">{escape(view.stages[:1].upper() + view.stages[1:])}.</p>'
    if frames[FIRST_FRAMES:]:
        yield _folded(f"{len(frames) - FIRST_FRAMES} more frames", cells_table(frames[FIRST_FRAMES:]))
    if view.frames_left:
        yield f'<p class="note">and {view.frames_left:,} more</p>'
    yield _list(view.events[:FIRST_EVENTS])
    if view.events[FIRST_EVENTS:]:
        rest = view.events[FIRST_EVENTS:]
        yield _folded(f"{len(rest)} more rows of breaks and recompiles", _list(rest))
    notes = [note for note in (*view.events_left, *view.notes, view.legend) if note]
    if notes:
        yield f'<p class="note">{escape(" ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))}</p>'
    details = [(dict(row.cells)["frame"], ". ".join(row.details)) for row in view.frames if row.details]
    if details:
        said = "".join(f"<li><b>{escape(name)}</b> {escape(detail)}</li>" for name, detail in details)
        yield _folded("compile time and caches of each frame", f"<ul>{said}</ul>")
    if view.kernels:
        left = f'<p class="note">and {view.kernels_left:,} more</p>' if view.kernels_left else ""
        yield _folded(view.kernels_title, cells_table(view.kernels) + left)
    if view.hint:
        what, _, command = view.hint.partition(": ")
        yield f'<p class="note">{escape(what)}: <code>{escape(command)}</code></p>'


def _list(said: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>" if said else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
