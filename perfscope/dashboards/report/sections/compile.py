"""What torch.compile did as rows and sentences, decided once for every report."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from perfscope.dashboards.report.hot_rows import span_text
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
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
    elif len({one.counts() for one in ranks}) == 1:
        whose = f", each of {len(ranks):,} {_kind(ranks)}"
    else:
        whose = f", {len(ranks):,} {_kind(ranks)}"
    return f"torch.compile{whose}: {_counts(ranks)}, {_times(ranks)}"


def rank_notes(section: CompileSection) -> Iterator[str]:
    """Where ranks compile different things: which ranks compile what."""
    groups: dict[tuple[int, ...], list[RankCompile]] = {}
    for one in section.ranks:
        groups.setdefault(one.counts(), []).append(one)
    if len(groups) < 2:
        return
    largest = sorted(groups.values(), key=lambda held: -len(held))
    for held in largest[:MOST_GROUPS]:
        yield f"{_named(held)}: {_counts(held)}"
    if largest[MOST_GROUPS:]:
        yield f"and {len(largest) - MOST_GROUPS:,} more kinds of ranks"


def counted(count: int, what: str) -> str:
    """``'1 graph'``, ``'7 graphs'``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _kind(ranks: Sequence[RankCompile]) -> str:
    return "ranks" if all(one.rank is not None for one in ranks) else "logs"


def _named(ranks: Sequence[RankCompile]) -> str:
    known = [one.rank for one in ranks if one.rank is not None]
    if len(known) == len(ranks):
        return f"rank{'' if len(known) == 1 else 's'} {span_text(known)}"
    return ", ".join(one.label for one in ranks[:MOST_GROUPS]) + (" ..." if ranks[MOST_GROUPS:] else "")


def _counts(ranks: Sequence[RankCompile]) -> str:
    graphs = _spread([one.graphs for one in ranks], "graph")
    frames = _spread([one.frames for one in ranks], "frame")
    said = [f"{graphs} of {frames}"]
    breaks = [one.breaks for one in ranks]
    said.append(_spread(breaks, "graph break") if any(breaks) else "no graph break")
    if any(again := [one.recompiles for one in ranks]):
        said.append(_spread(again, "recompile"))
    if any(eager := [one.eager_frames for one in ranks]):
        said.append(f"{_spread(eager, 'frame')} in eager mode")
    if any(limits := [one.limit_frames for one in ranks]):
        said.append(f"{_spread(limits, 'frame')} at the recompile limit")
    return ", ".join(said)


def _spread(counts: Sequence[int], what: str) -> str:
    """``'4 graphs'``, or ``'3 to 5 graphs'`` where ranks differ."""
    low, high = min(counts), max(counts)
    return counted(high, what) if low == high else f"{low:,} to {high:,} {what}s"


def _times(ranks: Sequence[RankCompile]) -> str:
    said = f"{_time_span([one.total_ns for one in ranks])} of compiling"
    inside = [one.in_steps_ns for one in ranks if one.in_steps_ns is not None]
    more = []
    if inside:
        more.append(
            f"{_time_span(inside)} of it inside the traced steps" if any(inside) else "none in the traced steps"
        )
    fx: Counter[str] = Counter()
    for one in ranks:
        fx.update(one.caches.get("fx_graph", {}))
    words = (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
    results = ", ".join(f"{fx[key]:,} {key if fx[key] == 1 else many}" for key, many in words if fx[key])
    if results:
        more.append(f"FX graph cache: {results}" + (" in all" if len(ranks) > 1 else ""))
    return said + (f" ({'; '.join(more)})" if more else "")


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
    rows = tuple(_frame(one, detail) for one in detail.frames)
    events = (*map(_break, detail.break_rows), *map(_recompile, detail.recompile_rows))
    timed = any(one.time_ns is not None for one in detail.kernels)
    return CompileView(
        headline=headline(section),
        title="torch.compile",
        frames=rows,
        frames_left=section.left.get("frames", 0),
        columns=tuple(name for name, _ in rows[0].cells if any(dict(row.cells)[name] for row in rows)) if rows else (),
        stages=_stages("compile time", detail.total_ns, detail.stages_ns),
        events=events,
        events_left=tuple(_events_left(section)),
        kernels=tuple(_kernel(one, timed=timed) for one in detail.kernels),
        kernels_left=section.left.get("kernels", 0),
        kernels_title=f"compiled kernels, {BY_TIME if timed else BY_OPS}",
        legend="graphs and ops: forward + backward" if any(len(one.graphs) > 1 for one in detail.frames) else "",
        notes=tuple(_notes(section, detail)),
        hint=_hint(detail),
    )


def _problems(section: CompileSection) -> CompileView:
    return CompileView(
        headline="", title="torch.compile", frames=(), frames_left=0, columns=(), stages="", events=(), events_left=(),
        kernels=(), kernels_left=0, kernels_title="", legend="", notes=section.problems, hint="",
    )  # fmt: skip


def _frame(one: FrameSummary, whole: CompileSummary) -> FrameRow:
    name = shorten(sanitize(one.function), NAME_LIMIT)
    return FrameRow(
        cells=(
            ("frame", name if one.after_line is None else f"{name}, behind line {one.after_line}"),
            ("at", place_text(one.place)),
            ("compiled", f"{one.compiles:,}x"),
            ("graphs", _graphs(one)),
            ("ops", " + ".join(_ops(group) for group in one.graphs)),
            ("breaks", f"{one.breaks:,}" if one.breaks else ""),
            ("recompiled", f"{one.recompiles:,}x" if one.recompiles else ""),
            ("FX cache", _results(one.caches.get("fx_graph", {}))),
            ("time", format_ns(one.time_ns) if one.time_ns else ""),
            ("share", format_share(one.time_ns, whole.total_ns) if whole.total_ns else ""),
            ("state", one.state),
        ),
        details=tuple(_details(one)),
    )


def _graphs(one: FrameSummary) -> str:
    """``'8 + 8'``: of the forward and of the backward; dynamo's where inductor compiled none."""
    if one.graphs:
        return " + ".join(f"{group.count:,}" for group in one.graphs)
    return f"{one.dynamo_graphs:,}" if one.dynamo_graphs else ""


def _ops(group: GraphGroup) -> str:
    least, most = group.ops_least, group.ops_most
    return f"{most:,}" if least == most else f"{least:,}-{most:,}"


def _results(counts: Mapping[CacheResult, int]) -> str:
    words: tuple[tuple[CacheResult, str], ...] = (("hit", "hits"), ("miss", "misses"), ("bypass", "bypassed"))
    return ", ".join(f"{counts[key]:,} {key if counts[key] == 1 else many}" for key, many in words if counts.get(key))


def _details(one: FrameSummary) -> Iterator[str]:
    if one.stages_ns:
        yield _stages("compile time", one.time_ns, one.stages_ns)
    said = [f"{_CACHES.get(name, sanitize(name))} cache: {_results(counts)}" for name, counts in one.caches.items()]
    if one.restarts:
        said.append(f"dynamo began anew {one.restarts:,}x")
    if said:
        yield "; ".join(said)
    if one.cache_reasons:
        yield f"cache: {sanitize(one.cache_reasons[0], REASON_LIMIT)}"


def _stages(what: str, total_ns: int, stages_ns: Mapping[Stage, int]) -> str:
    """``'compile time 38.2 s: building kernels 30.1 s, AOT autograd 2.0 s ...'``, the largest first."""
    large = [(name, spent) for name, spent in stages_ns.items() if total_ns and spent >= SMALL_PART * total_ns]
    rest = sum(stages_ns.values()) - sum(spent for _, spent in large)
    said = [f"{_EXPLAINED.sub('', sanitize(name))} {format_ns(spent)}" for name, spent in large]
    if rest:
        said.append(f"the rest {format_ns(rest)}")
    return f"{what} {format_ns(total_ns)}" + (f": {', '.join(said)}" if said else "")


def _break(one: BreakSummary) -> str:
    doc = f" ({sanitize(one.doc_id)})" if one.doc_id else ""
    what = "frame left to eager mode" if one.whole_frame else "graph break"
    return f"{one.count:,}x {what} at {place_text(one.place)}: {sanitize(one.reason, REASON_LIMIT)}{doc}"


def _recompile(one: RecompileSummary) -> str:
    """The first guard; of several that differ in a value alone, the values behind it."""
    made = ""
    if one.guard_place is not None:
        needed = place_text(one.guard_place)
        made = "" if needed == place_text(one.place) else f", needed at {needed}"
    values = f"; values {', '.join(map(_short, one.values))}" if len(one.values) > 2 else ""
    guard = sanitize(_short(one.guard), REASON_LIMIT)
    frame = f"{sanitize(one.function, NAME_LIMIT)} ({place_text(one.place)})"
    return f"{one.count:,}x recompiled: {frame}, guard {guard}{sanitize(values, REASON_LIMIT)}{made}"


def _short(text: str) -> str:
    """Floats with six digits: ``0.09`` for ``0.09000000000000001``."""
    return _NUMBER.sub(lambda found: f"{float(found[0]):g}", text)


def _events_left(section: CompileSection) -> Iterator[str]:
    for name, what in (("breaks", "graph breaks"), ("recompiles", "recompilations")):
        if count := section.left.get(name, 0):
            yield f"and {count:,} more rows of {what}, {counted(section.left_records.get(name, 0), 'record')}"


def _kernel(one: KernelSummary, *, timed: bool) -> tuple[tuple[str, str], ...]:
    named = [op.removeprefix("aten.").removesuffix(".default").removesuffix(".Tensor") for op in one.ops]
    ops = ", ".join(dict.fromkeys(named[:FEW_OPS])) + (f" and {len(named) - FEW_OPS} more" if named[FEW_OPS:] else "")
    lines = list(dict.fromkeys(map(place_text, one.places)))
    time = "-" if one.time_ns is None else format_ns(one.time_ns)
    return (
        *((("time", time),) if timed else ()),
        ("kernel", shorten(sanitize(one.name), NAME_LIMIT)),
        ("backend", one.backend),
        ("calls", f"{one.calls:,}"),
        ("lines", ", ".join(lines[:2]) + (f" and {len(lines) - 2} more" if lines[2:] else "")),
        ("ATen ops", sanitize(ops)),
    )


def place_text(place: CodeLine | None) -> str:
    """``'model/mlp.py:41'``: the file with the folder it lies in."""
    if place is None:
        return "an unknown line"
    parts = PurePath(sanitize(place.file)).parts or ("",)  # a home is ~ before it is cut: its folder is a user's name
    whole = f"{'/'.join(parts[-2:]).lstrip('/')}:{place.line}"
    return whole if len(whole) <= PLACE_LIMIT else f"{shorten(parts[-1], PLACE_LIMIT)}:{place.line}"


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
