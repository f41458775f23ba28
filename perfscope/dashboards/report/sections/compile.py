"""What torch.compile did as rows and sentences, decided once for every report."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape as escape_html
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.hot_rows import span_text
from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.program import cells_table, html_cells_table
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.analyzers.sections.compile import CompileSection, RankCompile
    from perfscope.analyzers.torch_compile import (
        BreakSummary,
        CompileSummary,
        FrameSummary,
        GraphGroup,
        KernelSummary,
        RecompileSummary,
    )
    from perfscope.analyzers.torch_compile.phases import Stage
    from perfscope.model.compile_log import CacheResult, CodeLine


# torch.compile in one sentence, of one process or of the ranks of a job.


MOST_GROUPS = 4
"""Groups of ranks that compile alike and are told apart."""

ALIKE_NS = 0.01
"""Ranks whose compile times agree to a percent are said with one time."""


def headline(section: CompileSection) -> str:
    """``'torch.compile: 7 graphs of 3 frames, 2 graph breaks, 5 recompiles, 38.2 s of compiling (...)'``."""
    ranks = section.ranks
    if len(ranks) == 1:
        whose = ""
    elif len({rank.counts() for rank in ranks}) == 1:
        whose = f", each of {len(ranks):,} {_kind(ranks)}"
    else:
        whose = f", {len(ranks):,} {_kind(ranks)}"
    return f"torch.compile{whose}: {_counts(ranks)}, {_times(ranks)}"


def rank_notes(section: CompileSection) -> Iterator[str]:
    """Where ranks compile different things: which ranks compile what."""
    groups: dict[tuple[int, ...], list[RankCompile]] = {}
    for rank in section.ranks:
        groups.setdefault(rank.counts(), []).append(rank)
    if len(groups) < 2:
        return
    largest = sorted(groups.values(), key=lambda compiles: -len(compiles))
    for compiles in largest[:MOST_GROUPS]:
        yield f"{_named(compiles)}: {_counts(compiles)}"
    if largest[MOST_GROUPS:]:
        yield f"and {len(largest) - MOST_GROUPS:,} more kinds of ranks"


def counted(count: int, what: str) -> str:
    """``'1 graph'``, ``'7 graphs'``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _kind(ranks: Sequence[RankCompile]) -> str:
    return "ranks" if all(rank.rank is not None for rank in ranks) else "logs"


def _named(ranks: Sequence[RankCompile]) -> str:
    known = [rank.rank for rank in ranks if rank.rank is not None]
    if len(known) == len(ranks):
        return f"rank{'' if len(known) == 1 else 's'} {span_text(known)}"
    return ", ".join(rank.label for rank in ranks[:MOST_GROUPS]) + (" ..." if ranks[MOST_GROUPS:] else "")


def _counts(ranks: Sequence[RankCompile]) -> str:
    graphs = _spread([rank.graphs for rank in ranks], "graph")
    frames = _spread([rank.frames for rank in ranks], "frame")
    texts = [f"{graphs} of {frames}"]
    breaks = [rank.breaks for rank in ranks]
    texts.append(_spread(breaks, "graph break") if any(breaks) else "no graph break")
    if any(again := [rank.recompiles for rank in ranks]):
        texts.append(_spread(again, "recompile"))
    if any(eager := [rank.eager_frames for rank in ranks]):
        texts.append(f"{_spread(eager, 'frame')} in eager mode")
    if any(limits := [rank.limit_frames for rank in ranks]):
        texts.append(f"{_spread(limits, 'frame')} at the recompile limit")
    return ", ".join(texts)


def _spread(counts: Sequence[int], what: str) -> str:
    """``'4 graphs'``, or ``'3 to 5 graphs'`` where ranks differ."""
    low, high = min(counts), max(counts)
    return counted(high, what) if low == high else f"{low:,} to {high:,} {what}s"


def _times(ranks: Sequence[RankCompile]) -> str:
    text = f"{_time_span([rank.total_ns for rank in ranks])} of compiling"
    inside = [rank.in_steps_ns for rank in ranks if rank.in_steps_ns is not None]
    more = []
    if inside:
        more.append(
            f"{_time_span(inside)} of it inside the traced steps" if any(inside) else "none in the traced steps"
        )
    fx: Counter[str] = Counter()
    for rank in ranks:
        fx.update(rank.caches.get("fx_graph", {}))
    words = (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
    results = ", ".join(f"{fx[key]:,} {key if fx[key] == 1 else many}" for key, many in words if fx[key])
    if results:
        more.append(f"FX graph cache: {results}" + (" in all" if len(ranks) > 1 else ""))
    return text + (f" ({'; '.join(more)})" if more else "")


def _time_span(times_ns: Sequence[int]) -> str:
    low, high = min(times_ns), max(times_ns)
    alike = high - low <= ALIKE_NS * high or format_ns(low) == format_ns(high)
    return format_ns(high) if alike else f"{format_ns(low)} to {format_ns(high)}"


SMALL_PART = 0.005
"""A stage of compiling below half a percent shows as 0% and is left out of the sentence."""

NAME_LIMIT = 40
"""Characters of a function or a kernel in a table."""

PLACE_LIMIT = 34
"""Characters of a place: the file's name, its folder and the line."""

REASON_LIMIT = 110
"""Characters of a reason or a guard: one line and a half of a narrow terminal."""

BY_TIME = "by time in the recording (measured)"
BY_OPS = "those with most ops first (no time of them is known)"
"""How kernels are ordered."""

FEW_OPS = 6
"""ATen ops of a kernel that are named."""

_CACHES = {"fx_graph": "FX graph", "aotautograd": "AOTAutograd"}

_EXPLAINED = re.compile(r" \(.*\)|: .*")
"""What a stage's name says beyond its short form; the JSON report has all of it."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{7,}(?![\w.])")
"""A float that Python wrote with all its digits: ``0.09000000000000001``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRow:
    """A frame as cells; ``''``: none, or not logged."""

    cells: tuple[tuple[str, str], ...]
    """(column, cell); the same columns in every row."""
    details: tuple[str, ...]
    """Sentences: where its compile time went, what the caches said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileView:
    """The whole section."""

    headline: str
    """The one sentence that stands with the facts on the whole run."""
    title: str
    frames: tuple[FrameRow, ...]
    frames_left: int
    columns: tuple[str, ...]
    """Columns that any frame fills."""
    stages: str
    """Where all compile time went."""
    events: tuple[str, ...]
    """Graph breaks, frames left to eager mode, and recompilations: a sentence a line of the program."""
    events_left: tuple[str, ...]
    """How many are not in ``events``."""
    kernels: tuple[tuple[tuple[str, str], ...], ...]
    """Kernels as cells, the ones with most measured time first, or those with most ops where no time is known."""
    kernels_left: int
    kernels_title: str
    legend: str
    """What the columns mean."""
    notes: tuple[str, ...]
    hint: str
    """How to see the whole log: the command."""

    def cells_of(self, row: FrameRow) -> list[tuple[str, str]]:
        """The cells of a row in columns that hold something."""
        return [(name, cell) for name, cell in row.cells if name in self.columns]


def compile_view(section: CompileSection) -> CompileView | None:
    """The section as rows; ``None`` where nothing was compiled and nothing went wrong."""
    detail = section.detail
    if detail is None:
        return None if not section.problems else _problems(section)
    rows = tuple(_frame(frame, detail) for frame in detail.frames)
    events = (*map(_break, detail.break_rows), *map(_recompile, detail.recompile_rows))
    timed = any(kernel.time_ns is not None for kernel in detail.kernels)
    return CompileView(
        headline=headline(section),
        title="torch.compile",
        frames=rows,
        frames_left=section.left.get("frames", 0),
        columns=tuple(name for name, _ in rows[0].cells if any(dict(row.cells)[name] for row in rows)) if rows else (),
        stages=_stages("compile time", detail.total_ns, detail.stages_ns),
        events=events,
        events_left=tuple(_events_left(section)),
        kernels=tuple(_kernel(kernel, timed=timed) for kernel in detail.kernels),
        kernels_left=section.left.get("kernels", 0),
        kernels_title=f"compiled kernels, {BY_TIME if timed else BY_OPS}",
        legend="graphs and ops: forward + backward" if any(len(frame.graphs) > 1 for frame in detail.frames) else "",
        notes=tuple(_notes(section, detail)),
        hint=_hint(detail),
    )


def _problems(section: CompileSection) -> CompileView:
    return CompileView(
        headline="", title="torch.compile", frames=(), frames_left=0, columns=(), stages="", events=(), events_left=(),
        kernels=(), kernels_left=0, kernels_title="", legend="", notes=section.problems, hint="",
    )  # fmt: skip


def _frame(summary: FrameSummary, whole: CompileSummary) -> FrameRow:
    name = shorten(sanitize(summary.function), NAME_LIMIT)
    return FrameRow(
        cells=(
            ("frame", name if summary.after_line is None else f"{name}, behind line {summary.after_line}"),
            ("at", place_text(summary.place)),
            ("compiled", f"{summary.compiles:,}x"),
            ("graphs", _graphs(summary)),
            ("ops", " + ".join(_ops(group) for group in summary.graphs)),
            ("breaks", f"{summary.breaks:,}" if summary.breaks else ""),
            ("recompiled", f"{summary.recompiles:,}x" if summary.recompiles else ""),
            ("FX cache", _results(summary.caches.get("fx_graph", {}))),
            ("time", format_ns(summary.time_ns) if summary.time_ns else ""),
            ("share", format_share(summary.time_ns, whole.total_ns) if whole.total_ns else ""),
            ("state", summary.state),
        ),
        details=tuple(_details(summary)),
    )


def _graphs(summary: FrameSummary) -> str:
    """``'8 + 8'``: of the forward and of the backward; dynamo's where inductor compiled none."""
    if summary.graphs:
        return " + ".join(f"{group.count:,}" for group in summary.graphs)
    return f"{summary.dynamo_graphs:,}" if summary.dynamo_graphs else ""


def _ops(group: GraphGroup) -> str:
    least, most = group.ops_least, group.ops_most
    return f"{most:,}" if least == most else f"{least:,}-{most:,}"


def _results(counts: Mapping[CacheResult, int]) -> str:
    words: tuple[tuple[CacheResult, str], ...] = (("hit", "hits"), ("miss", "misses"), ("bypass", "bypassed"))
    return ", ".join(f"{counts[key]:,} {key if counts[key] == 1 else many}" for key, many in words if counts.get(key))


def _details(summary: FrameSummary) -> Iterator[str]:
    if summary.stages_ns:
        yield _stages("compile time", summary.time_ns, summary.stages_ns)
    texts = [
        f"{_CACHES.get(name, sanitize(name))} cache: {_results(counts)}" for name, counts in summary.caches.items()
    ]
    if summary.restarts:
        texts.append(f"dynamo began anew {summary.restarts:,}x")
    if texts:
        yield "; ".join(texts)
    if summary.cache_reasons:
        yield f"cache: {sanitize(summary.cache_reasons[0], REASON_LIMIT)}"


def _stages(what: str, total_ns: int, stages_ns: Mapping[Stage, int]) -> str:
    """``'compile time 38.2 s: building kernels 30.1 s, AOT autograd 2.0 s ...'``, the largest first."""
    large = [(name, spent) for name, spent in stages_ns.items() if total_ns and spent >= SMALL_PART * total_ns]
    rest = sum(stages_ns.values()) - sum(spent for _, spent in large)
    texts = [f"{_EXPLAINED.sub('', sanitize(name))} {format_ns(spent)}" for name, spent in large]
    if rest:
        texts.append(f"the rest {format_ns(rest)}")
    return f"{what} {format_ns(total_ns)}" + (f": {', '.join(texts)}" if texts else "")


def _break(summary: BreakSummary) -> str:
    doc = f" ({sanitize(summary.doc_id)})" if summary.doc_id else ""
    what = "frame left to eager mode" if summary.whole_frame else "graph break"
    return f"{summary.count:,}x {what} at {place_text(summary.place)}: {sanitize(summary.reason, REASON_LIMIT)}{doc}"


def _recompile(summary: RecompileSummary) -> str:
    """The first guard; of several that differ in a value alone, the values behind it."""
    made = ""
    if summary.guard_place is not None:
        needed = place_text(summary.guard_place)
        made = "" if needed == place_text(summary.place) else f", needed at {needed}"
    values = f"; values {', '.join(map(_short, summary.values))}" if len(summary.values) > 2 else ""
    guard = sanitize(_short(summary.guard), REASON_LIMIT)
    frame = f"{sanitize(summary.function, NAME_LIMIT)} ({place_text(summary.place)})"
    return f"{summary.count:,}x recompiled: {frame}, guard {guard}{sanitize(values, REASON_LIMIT)}{made}"


def _short(text: str) -> str:
    """Floats with six digits: ``0.09`` for ``0.09000000000000001``."""
    return _NUMBER.sub(lambda match: f"{float(match[0]):g}", text)


def _events_left(section: CompileSection) -> Iterator[str]:
    for name, what in (("breaks", "graph breaks"), ("recompiles", "recompilations")):
        if count := section.left.get(name, 0):
            yield f"and {count:,} more rows of {what}, {counted(section.left_records.get(name, 0), 'record')}"


def _kernel(summary: KernelSummary, *, timed: bool) -> tuple[tuple[str, str], ...]:
    named = [op.removeprefix("aten.").removesuffix(".default").removesuffix(".Tensor") for op in summary.ops]
    ops = ", ".join(dict.fromkeys(named[:FEW_OPS])) + (f" and {len(named) - FEW_OPS} more" if named[FEW_OPS:] else "")
    lines = list(dict.fromkeys(map(place_text, summary.places)))
    time = "-" if summary.time_ns is None else format_ns(summary.time_ns)
    return (
        *((("time", time),) if timed else ()),
        ("kernel", shorten(sanitize(summary.name), NAME_LIMIT)),
        ("backend", summary.backend),
        ("calls", f"{summary.calls:,}"),
        ("lines", ", ".join(lines[:2]) + (f" and {len(lines) - 2} more" if lines[2:] else "")),
        ("ATen ops", sanitize(ops)),
    )


def place_text(code_line: CodeLine | None) -> str:
    """``'model/mlp.py:41'``: the file with the folder it lies in."""
    if code_line is None:
        return "an unknown line"
    parts = PurePath(sanitize(code_line.file)).parts or (
        "",
    )  # a home is ~ before it is cut: its folder is a user's name
    whole = f"{'/'.join(parts[-2:]).lstrip('/')}:{code_line.line}"
    return whole if len(whole) <= PLACE_LIMIT else f"{shorten(parts[-1], PLACE_LIMIT)}:{code_line.line}"


def _notes(section: CompileSection, detail: CompileSummary) -> Iterator[str]:
    yield from rank_notes(section)
    if len(section.ranks) > 1:
        yield f"frames, breaks, recompiles and kernels are those of {section.detail_label}, which compiled longest"
    if detail.unowned_ns > SMALL_PART * detail.total_ns:
        yield f"{format_ns(detail.unowned_ns)} of compiling that the log says of no frame"
    if detail.unknown:
        kinds = ", ".join(sorted(sanitize(kind) for kind in detail.unknown))
        yield f"{counted(sum(detail.unknown.values()), 'record')} of kinds that are not known here: {sanitize(kinds)}"
    yield from section.problems


def _hint(detail: CompileSummary) -> str:
    """tlparse reads plain text alone, so a log that is compressed needs a step before."""
    path = sanitize(detail.path, TEXT_LIMIT)
    plain = path.removesuffix(".gz")
    unpack = f"gunzip -k {_quoted(path)} && " if path != plain else ""
    return f"the whole log as HTML (pip install tlparse): {unpack}tlparse {_quoted(plain)}"


def _quoted(path: str) -> str:
    """For a shell, which must still see the ``~`` of a home."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


# What torch.compile did, in the JSON report.


def compile_document(section: CompileSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns."""
    return {
        "ranks": [asdict(rank) for rank in section.ranks],
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
        "stages_ns": _stages_compile_formats(detail.stages_ns),
        "frames": [_frame_compile_formats(frame) for frame in detail.frames],
        "breaks": [{**asdict(break_row), "place": _place(break_row.place)} for break_row in detail.break_rows],
        "recompiles": [
            {**asdict(row), "place": _place(row.place), "guard_place": _place(row.guard_place)}
            for row in detail.recompile_rows
        ],
        "kernels": [_kernel_compile_formats(kernel) for kernel in detail.kernels],
        "corrupt_records": detail.corrupt,
        "unknown_records": dict(detail.unknown),
    }


def _frame_compile_formats(summary: FrameSummary) -> dict[str, Any]:
    return {**asdict(summary), "place": _place(summary.place), "stages_ns": _stages_compile_formats(summary.stages_ns)}


def _kernel_compile_formats(summary: KernelSummary) -> dict[str, Any]:
    return {**asdict(summary), "places": [_place(code_line) for code_line in summary.places]}


def _stages_compile_formats(stages_ns: Mapping[Stage, int]) -> dict[str, int]:
    """By the stage's name in the code: the words of a stage may change, a key may not."""
    return {stage.name.lower(): spent for stage, spent in stages_ns.items()}


def _place(code_line: CodeLine | None) -> dict[str, Any] | None:
    """Where it is; the text of the line is the program's and stays there."""
    return (
        None if code_line is None else {"file": code_line.file, "line": code_line.line, "function": code_line.function}
    )


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
    text = f"{view.title}: {count:,} compiled frame{'' if count == 1 else 's'}"
    return f"{text}; {view.events[0]}" if view.events else text


def _body(view: CompileView) -> Iterator[str]:
    rows = view.frames[:MOST_FRAMES]
    if rows:
        yield cells_table([tuple(view.cells_of(row)) for row in rows])
    left = view.frames_left + len(view.frames) - len(rows)
    if left:
        yield f"- and {left:,} more frames"
    events = view.events[:MOST_EVENTS]
    yield from (f"- {escape(text)}" for text in (view.stages, *events) if text)
    if len(events) < len(view.events):
        yield f"- and {len(view.events) - len(events):,} more rows of breaks and recompiles"
    yield from (f"- {escape(text)}" for text in (*view.events_left, *view.notes, view.legend) if text)
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
        text = view.headline.removeprefix(view.title).lstrip(",: ")
        yield f"<p>{escape_html(text[:1].upper() + text[1:])}.</p>"
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
        text = "".join(f"<li><b>{escape_html(name)}</b> {escape_html(detail)}</li>" for name, detail in details)
        yield _folded("compile time and caches of each frame", f"<ul>{text}</ul>")
    if view.kernels:
        left = f'<p class="note">and {view.kernels_left:,} more</p>' if view.kernels_left else ""
        yield _folded(view.kernels_title, html_cells_table(view.kernels) + left)
    if view.hint:
        what, _, command = view.hint.partition(": ")
        yield f'<p class="note">{escape_html(what)}: <code>{escape_html(command)}</code></p>'


def _list(texts: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in texts)}</ul>" if texts else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{body}</details>"
