"""torch.compile: frames, compile time, graph breaks, recompilations and kernels."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfscope.analyzers.results import result_table
from perfscope.dashboards.report.blocks import Column, Command, Listing, Section, notes, table, tables
from perfscope.dashboards.report.renderers.values import span_text
from perfscope.dashboards.report.results import PLACE_LIMIT, place_text, shown
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.analyzers.sections import CompileSection, RankCompile
    from perfscope.analyzers.torch_compile import (
        BreakSummary,
        CompileSummary,
        FrameSummary,
        KernelSummary,
        RecompileSummary,
        Stage,
    )
    from perfscope.dashboards.report.blocks import Block
    from perfscope.model.compile_log import CacheResult, CodeLine

# torch.compile in one sentence, for one process or for the ranks of a job.


MOST_GROUPS = 4
"""Most groups of ranks with equal compilations that are listed."""

ALIKE_NS = 0.01
"""Ranks whose compile times agree to one percent are shown with one time."""

NAME_LIMIT = 40
"""Characters of a function or a kernel in a table."""

SMALL_PART = 0.005
"""Smallest share of the compile time at which a stage is named: below half a percent it shows as 0%."""

REASON_LIMIT = 110
"""Characters of a reason or a guard: about one and a half lines of a narrow terminal."""

_CACHES = {"fx_graph": "FX graph", "aotautograd": "AOTAutograd"}

_EXPLAINED = re.compile(r" \(.*\)|: .*")
"""Parts of a stage's name that its short form leaves out; the JSON report has the full name."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{7,}(?![\w.])")
"""A float written by Python with all its digits: ``0.09000000000000001``."""


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
    """Notes on ranks whose compilations differ."""
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


def rank_schedules(section: CompileSection) -> Iterator[str]:
    """Collectives, tensors and inductor's estimates compared between ranks, if several of them logged these."""
    ranks = [rank for rank in section.ranks if rank.schedules]
    if len(ranks) > 1:
        calls = sum(map(len, ranks[0].schedules))
        alike = len({rank.schedules for rank in ranks}) == 1
        same = f"{counted(calls, 'call')} in the same order on all {len(ranks):,} {_kind(ranks)}"
        yield f"collectives: {same if alike else 'their order differs between ranks'}"
    ranks = [rank for rank in section.ranks if rank.executed]
    if len(ranks) > 1:
        alike = len({rank.executed for rank in ranks}) == 1
        same = f"in the same order on all {_kind(ranks)}: {counted(len(ranks[0].executed), 'call')}"
        yield f"graphs run {same if alike else 'in an order that differs between ranks'}"
    ranks = [rank for rank in section.ranks if rank.tensors]
    if len(ranks) > 1:
        equal = "are equal on all" if len({rank.tensors for rank in ranks}) == 1 else "differ between"
        yield f"shapes, strides and dtypes of what the graphs compute {equal} {_kind(ranks)}"
    ranks = [rank for rank in section.ranks if rank.estimated_ns is not None]
    if len(ranks) > 1:
        low = min(ranks, key=lambda rank: rank.estimated_ns or 0)
        high = max(ranks, key=lambda rank: rank.estimated_ns or 0)
        yield (
            f"inductor's own estimate of all graphs: {format_ns(low.estimated_ns or 0)} ({low.label}) to "
            f"{format_ns(high.estimated_ns or 0)} ({high.label}); modelled"
        )


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
    """``'4 graphs'``, or ``'3 to 5 graphs'`` if ranks differ."""
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


def compile_sections(section: CompileSection) -> tuple[Section, ...]:
    """One section; empty if nothing was compiled and nothing failed."""
    detail = section.detail
    if detail is None:
        return (Section(title="torch.compile", blocks=notes(*section.problems)),) if section.problems else ()
    return (
        Section(
            title="torch.compile",
            summary=headline(section).removeprefix("torch.compile").lstrip(",: "),
            blocks=(*_frames(section, detail), *_events(section, detail), *_kernels(section, detail), *_log(detail)),
        ),
    )


def _frames(section: CompileSection, detail: CompileSummary) -> tuple[Block, ...]:
    stages = _stages("compile time", detail.total_ns, detail.stages_ns) if detail.total_ns else ""
    each = tuple(
        f"{plain_name(frame)}: {'. '.join(sentences)}" for frame in detail.frames if (sentences := [*_details(frame)])
    )
    return (
        *tables(
            table(
                _frame_columns(detail), detail.frames, few=3, left=section.left.get("frames", 0),
                rest="frames, which compiled for less time",
            )
        ),
        *notes(stages),
        *((Listing(items=each, rest="frames: compile time and caches of each", detail=True),) if each else ()),
    )  # fmt: skip


def _events(section: CompileSection, detail: CompileSummary) -> tuple[Block, ...]:
    """Graph breaks, frames left in eager mode and recompilations: one sentence per line of the program."""
    events = (*map(_break, detail.break_rows), *map(_recompile, detail.recompile_rows))
    rows = sum(section.left.get(name, 0) for name in ("breaks", "recompiles"))
    listing = Listing(items=events, few=3, left=rows, rest="graph breaks and recompilations")
    return (*((listing,) if events else ()), *notes(*_notes(section, detail)))


def _kernels(section: CompileSection, detail: CompileSummary) -> tuple[Block, ...]:
    timed = any(kernel.time_ns is not None for kernel in detail.kernels)
    order = "by time in the recording (measured)" if timed else "those with most ops first (no time of them is known)"
    return tables(
        table(
            _kernel_columns(timed=timed), detail.kernels, title=f"kernels of inductor, {order}", detail=True,
            left=section.left.get("kernels", 0), rest="kernels",
        )
    )  # fmt: skip


def _log(detail: CompileSummary) -> tuple[Command, ...]:
    """Commands that render the whole log. tlparse reads plain text only, so a compressed log is unpacked first."""
    if not detail.path:
        return ()
    path = sanitize(detail.path, TEXT_LIMIT)
    plain = path.removesuffix(".gz")
    unpack = f"gunzip -k {_quoted(path)} && " if path != plain else ""
    return (Command("the whole log as HTML (pip install tlparse)", f"{unpack}tlparse {_quoted(plain)}"),)


def _frame_columns(detail: CompileSummary) -> tuple[Column[FrameSummary], ...]:
    whole, frames = detail.total_ns, result_table("compile_frames")
    named = ("function", "place", "compiles", "graphs", "ops", "breaks", "recompiles", "fx_cache", "time_ns")
    drop = ("share", "fx_cache", "ops", "graphs", "breaks", "recompiles")
    return (
        *shown(frames, *named, drop=drop, limit=NAME_LIMIT, fx_cache=_fx_cache),
        Column("share", lambda frame: frame.time_ns / whole if whole and frame.time_ns else None, "share", drop=1),
        *shown(frames, "state"),
    )


def plain_name(summary: FrameSummary) -> str:
    """``'forward'``, or ``'forward, after line 41'`` for the part after a graph break."""
    name = shorten(summary.function, NAME_LIMIT)
    return name if summary.after_line is None else f"{name}, after line {summary.after_line}"


def _fx_cache(frame: FrameSummary) -> str:
    return _results(frame.caches.get("fx_graph", {}))


def _results(counts: Mapping[CacheResult, int]) -> str:
    words: tuple[tuple[CacheResult, str], ...] = (("hit", "hits"), ("miss", "misses"), ("bypass", "bypassed"))
    return ", ".join(f"{counts[key]:,} {key if counts[key] == 1 else many}" for key, many in words if counts.get(key))


def _details(summary: FrameSummary) -> Iterator[str]:
    if summary.stages_ns:
        yield _stages("compile time", summary.time_ns, summary.stages_ns)
    texts = [f"{_CACHES.get(name, name)} cache: {_results(counts)}" for name, counts in summary.caches.items()]
    if summary.restarts:
        texts.append(f"dynamo restarted {summary.restarts:,}x")
    if texts:
        yield "; ".join(texts)
    if summary.cache_reasons:
        yield f"cache: {sanitize(summary.cache_reasons[0], REASON_LIMIT)}"


def _stages(what: str, total_ns: int, stages_ns: Mapping[Stage, int]) -> str:
    """``'compile time 38.2 s: building kernels 30.1 s, AOT autograd 2.0 s ...'``, largest first."""
    large = [(name, spent) for name, spent in stages_ns.items() if total_ns and spent >= SMALL_PART * total_ns]
    rest = sum(stages_ns.values()) - sum(spent for _, spent in large)
    texts = [f"{_EXPLAINED.sub('', name)} {format_ns(spent)}" for name, spent in large]
    if rest:
        texts.append(f"the rest {format_ns(rest)}")
    return f"{what} {format_ns(total_ns)}" + (f": {', '.join(texts)}" if texts else "")


def _break(summary: BreakSummary) -> str:
    doc = f" ({summary.doc_id})" if summary.doc_id else ""
    what = "frame left to eager mode" if summary.whole_frame else "graph break"
    return f"{summary.count:,}x {what} at {_at(summary.place)}: {sanitize(summary.reason, REASON_LIMIT)}{doc}"


def _recompile(summary: RecompileSummary) -> str:
    """The guard that failed; if several guards differ only in a value, that guard with all values."""
    made = ""
    if summary.guard_place is not None:
        needed = _at(summary.guard_place)
        made = "" if needed == _at(summary.place) else f", needed at {needed}"
    values = f"; values {', '.join(map(_short, summary.values))}" if len(summary.values) > 2 else ""
    guard = sanitize(_short(summary.guard), REASON_LIMIT)
    frame = f"{sanitize(summary.function, NAME_LIMIT)} ({_at(summary.place)})"
    return f"{summary.count:,}x recompiled: {frame}, guard {guard}{sanitize(values, REASON_LIMIT)}{made}"


def _short(text: str) -> str:
    """Floats with six digits: ``0.09`` for ``0.09000000000000001``."""
    return _NUMBER.sub(lambda match: f"{float(match[0]):g}", text)


def _kernel_columns(*, timed: bool) -> tuple[Column[KernelSummary], ...]:
    kernels = result_table("compile_kernels")
    return (
        *(shown(kernels, "time_ns", time_ns=lambda kernel: kernel.time_ns or "-") if timed else ()),
        *shown(kernels, "name", "backend", "calls", drop=("ops", "backend", "calls"), limit=NAME_LIMIT),
        *shown(kernels, "lines", limit=2 * PLACE_LIMIT),
        *shown(kernels, "ops", drop=("ops",), limit=120),
    )


def _at(line: CodeLine | None) -> str:
    return "an unknown line" if line is None else place_text(line)


def _notes(section: CompileSection, detail: CompileSummary) -> Iterator[str]:
    yield from rank_notes(section)
    yield from rank_schedules(section)
    if len(section.ranks) > 1:
        yield f"frames, breaks, recompiles and kernels are those of {section.detail_label}, which compiled longest"
    if detail.unowned_ns > SMALL_PART * detail.total_ns:
        yield f"{format_ns(detail.unowned_ns)} of compiling that the log attributes to no frame"
    if detail.unknown:
        kinds = ", ".join(sorted(detail.unknown))
        yield f"{counted(sum(detail.unknown.values()), 'record')} of kinds that are not known here: {kinds}"
    if any(len(frame.graphs) > 1 for frame in detail.frames):
        yield "graphs and ops: forward + backward"
    yield from section.problems


def _quoted(path: str) -> str:
    """Quote for a shell, leaving ``~`` of a home folder unquoted."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
