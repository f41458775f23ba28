"""torch.compile in one sentence, of one process or of the ranks of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.device_rows import span_text
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.compile_section import CompileSection, RankCompile

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
