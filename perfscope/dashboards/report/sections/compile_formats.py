"""What torch.compile did, in the JSON report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.html_findings import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.program_formats import cells_table, html_cells_table
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.analyzers.sections.compile import CompileSection
    from perfscope.analyzers.torch_compile import CompileSummary, FrameSummary, KernelSummary
    from perfscope.analyzers.torch_compile.phases import Stage
    from perfscope.dashboards.report.sections.compile import CompileView
    from perfscope.model.compile_log import CodeLine


def compile_document(section: CompileSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns."""
    return {
        "ranks": [asdict(one) for one in section.ranks],
        "detail": None if section.detail is None else {"of": section.detail_label, **_detail(section.detail)},
        "left": dict(section.left),
        "left_records": dict(section.left_records),
        "problems": list(section.problems),
    }


def _detail(detail: CompileSummary) -> dict[str, Any]:
    return {
        "path": detail.path,
        "torch_version": detail.torch_version,
        "compiles": detail.compiles,
        "graphs": detail.graphs,
        "graph_kind": detail.graph_kind,
        "total_ns": detail.total_ns,
        "unowned_ns": detail.unowned_ns,
        "stages_ns": _stages(detail.stages_ns),
        "frames": [_frame(one) for one in detail.frames],
        "breaks": [{**asdict(one), "place": _place(one.place)} for one in detail.break_rows],
        "recompiles": [
            {**asdict(one), "place": _place(one.place), "guard_place": _place(one.guard_place)}
            for one in detail.recompile_rows
        ],
        "kernels": [_kernel(one) for one in detail.kernels],
        "corrupt_records": detail.corrupt,
        "unknown_records": dict(detail.unknown),
    }


def _frame(one: FrameSummary) -> dict[str, Any]:
    return {**asdict(one), "place": _place(one.place), "stages_ns": _stages(one.stages_ns)}


def _kernel(one: KernelSummary) -> dict[str, Any]:
    return {**asdict(one), "places": [_place(place) for place in one.places]}


def _stages(stages_ns: Mapping[Stage, int]) -> dict[str, int]:
    """By the stage's name in the code: the words of a stage may change, a key may not."""
    return {stage.name.lower(): spent for stage, spent in stages_ns.items()}


def _place(place: CodeLine | None) -> dict[str, Any] | None:
    """Where it is; the text of the line is the program's and stays there."""
    return None if place is None else {"file": place.file, "line": place.line, "function": place.function}


# What torch.compile did, on a terminal: short by default, every list with ``-v``.


FEW_FRAMES = 3
"""Frames without ``-v``: those that compiled longest."""

FEW_EVENTS = 3
"""Graph breaks and recompiles without ``-v``; those that cost are findings above."""

FEW_KERNELS = 10
"""Kernels with ``-v``; the JSON report holds twice as many."""

_GIVE_WAY = ("share", "FX cache", "ops", "graphs", "breaks", "recompiled")
"""Columns of frames that go, in this order, where the terminal is too narrow; the first sentence has their sums."""

_KERNEL_GIVE_WAY = ("ATen ops", "backend", "calls")


def compile_section(view: CompileView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Frames, where the time went, graph breaks and recompiles; with ``-v`` kernels too. Ends with an empty line."""
    rows = view.frames if verbose else view.frames[:FEW_FRAMES]
    if rows:
        yield table_of(fitting([dict(view.cells_of(row)) for row in rows], _GIVE_WAY, width))
    left = view.frames_left + len(view.frames) - len(rows)
    if left:
        yield f"    and {left:,} more, which compiled for less time"
    if verbose:
        for row in rows:
            if row.details:
                yield hanging(f"{dict(row.cells)['frame']}: {'. '.join(row.details)}")
    if view.stages and not (verbose and len(view.frames) == 1):
        yield hanging(view.stages)
    events = view.events if verbose else view.events[:FEW_EVENTS]
    yield from map(hanging, events)
    if len(events) < len(view.events):
        yield f"    and {len(view.events) - len(events):,} more of breaks and recompiles: -v shows all"
    if verbose:
        yield from map(hanging, view.events_left)
    yield from map(hanging, view.notes)
    if verbose and view.legend:
        yield hanging(view.legend)
    if verbose and view.kernels:
        yield ""
        yield f"  {view.kernels_title}"
        yield table_of(fitting([dict(cells) for cells in view.kernels[:FEW_KERNELS]], _KERNEL_GIVE_WAY, width))
        more = view.kernels_left + len(view.kernels[FEW_KERNELS:])
        if more:
            yield f"    and {more:,} more"
    if verbose and view.hint:
        yield hanging(view.hint)
    yield ""


# What torch.compile did in a comment on a pull request: all of it folded below one line.


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


# What torch.compile did in the HTML report: a table that stacks on a phone, breaks and recompiles, kernels folded.


FIRST_FRAMES = 5
"""Frames that stand open; the others are folded."""

FIRST_EVENTS = 6
"""Lines of breaks and recompiles that stand open."""


def compile_card(view: CompileView) -> str:
    """The section's card."""
    return card(view.title, "".join(_body_html_compile(view)))


def _body_html_compile(view: CompileView) -> Iterator[str]:
    if view.headline:
        said = view.headline.removeprefix(view.title).lstrip(",: ")
        yield f"<p>{escape_html(said[:1].upper() + said[1:])}.</p>"
    frames = [view.cells_of(row) for row in view.frames]
    if frames:
        yield html_cells_table(frames[:FIRST_FRAMES])
    if view.stages:
        yield f'<p class="note">{escape_html(view.stages[:1].upper() + view.stages[1:])}.</p>'
    if frames[FIRST_FRAMES:]:
        yield _folded(f"{len(frames) - FIRST_FRAMES} more frames", html_cells_table(frames[FIRST_FRAMES:]))
    if view.frames_left:
        yield f'<p class="note">and {view.frames_left:,} more</p>'
    yield _list(view.events[:FIRST_EVENTS])
    if view.events[FIRST_EVENTS:]:
        rest = view.events[FIRST_EVENTS:]
        yield _folded(f"{len(rest)} more rows of breaks and recompiles", _list(rest))
    notes = [note for note in (*view.events_left, *view.notes, view.legend) if note]
    if notes:
        yield f'<p class="note">{escape_html(" ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))}</p>'
    details = [(dict(row.cells)["frame"], ". ".join(row.details)) for row in view.frames if row.details]
    if details:
        said = "".join(f"<li><b>{escape_html(name)}</b> {escape_html(detail)}</li>" for name, detail in details)
        yield _folded("compile time and caches of each frame", f"<ul>{said}</ul>")
    if view.kernels:
        left = f'<p class="note">and {view.kernels_left:,} more</p>' if view.kernels_left else ""
        yield _folded(view.kernels_title, html_cells_table(view.kernels) + left)
    if view.hint:
        what, _, command = view.hint.partition(": ")
        yield f'<p class="note">{escape_html(what)}: <code>{escape_html(command)}</code></p>'


def _list(said: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in said)}</ul>" if said else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{body}</details>"
