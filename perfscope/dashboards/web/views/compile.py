"""Compilations of torch.compile and JAX: reasons of recompilations and breaks, stages, tables, XLA's programs."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.results import result_table
from perfscope.analyzers.torch_compile import BreakSummary, RecompileSummary, compile_summary
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.results import FEW, place_text
from perfscope.dashboards.report.sections.compile import compile_sections, headline, plain_name
from perfscope.dashboards.report.sections.jax_compile import jax_compile_fact, jax_compile_sections
from perfscope.dashboards.report.sections.programs import programs_sections
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._not_recorded import cards as modelled_cards
from perfscope.dashboards.web.views._tables import MOST_ROWS, result_grid
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

TABLES = (
    "compile_frames", "compile_recompilations", "compile_breaks", "compile_graphs", "compile_kernels", "xla_programs",
    "jax_compilations",
)  # fmt: skip
"""Result tables of the page, in the order of its tabs."""

MOST_REASONS = 6
"""Most recompilations, and most graph breaks, that are explained above the tables, which have all."""

MOST_BARS = 12
"""Most frames drawn, longest compile time first: the table has all."""
MOST_STAGES = 6
"""Most stages with a separate colour; the others are merged."""
REST = "the rest"
NAME_CHARS, VALUE_CHARS = 80, 40


def stages_of(trace: Trace) -> list[dict[str, Any]]:
    """One row per frame with its compile time by stage, which sums to the total; empty if the log has no phases."""
    summary = trace.fact(compile_summary)
    return [
        {
            "function": sanitize(plain_name(summary)),
            "line": place_text(summary.place) if summary.place is not None else "",
            "ns": summary.time_ns,
            "stages": {str(stage): spent for stage, spent in summary.stages_ns.items()},
        }
        for summary in (() if summary is None else summary.frames)
        if summary.stages_ns
    ]


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """The rows of one rank, as many as a grid holds, and how many there are of each table."""
    rows = {name: tuple(result_table(name).rows(trace)) for name in TABLES}
    return {
        "rows": {name: held[:MOST_ROWS] for name, held in rows.items()},
        "counts": {name: len(held) for name, held in rows.items()},
        "stages": stages_of(trace),
        "log": trace.compile_log is not None,
    }


def view(job: Job) -> dict[str, Any]:
    """``said``: sentences; ``again`` and ``broken``: recompilations and graph breaks in words; ``tables``; ``bars``.

    ``html``: cards of programs; ``report``: the card of torch.compile as in the report. ``bars``: compile time by frame
    and stage. ``explained``: rank whose recompilations are in ``again``; ``None`` without ranks.
    """
    section = job.analysis.compile
    programs = (*jax_compile_sections(section.jax), *programs_sections(job.analysis.programs))
    tables = {}
    for name in TABLES:
        rows = [(item.source.rank, row) for item in job.gathered for row in item.held["rows"][name]]
        if rows:
            counted = sum(item.held["counts"][name] for item in job.gathered)
            tables[name] = result_grid(result_table(name), rows, counted)
    first = max(job.gathered, key=_again_ns, default=None)
    held = {} if first is None else first.held["rows"]
    torch = [] if section.detail is None else [headline(section)]
    return {
        "said": [*torch, *([f"JAX: {jax}"] if (jax := jax_compile_fact(section.jax)) else [])],
        "again": [_again(row) for row in held.get("compile_recompilations", ())[:MOST_REASONS]],
        "broken": [_broken(row) for row in held.get("compile_breaks", ())[:MOST_REASONS]],
        "explained": None if first is None or len(job.gathered) == 1 else first.source.rank,
        "logged": section.detail is not None or section.jax is not None,
        "html": "".join([modelled_cards(job.analysis), *sections_html(programs)]),
        "report": "".join(sections_html(compile_sections(section))),
        "tables": tables,
        "bars": _bars(job),
        "log": any(item.held["log"] for item in job.gathered),
        "problems": [*job.analysis.programs.problems, *section.problems],
    }


def _again_ns(item: Gathered) -> int:
    return sum(row.time_ns or 0 for row in item.held["rows"]["compile_recompilations"])


def _again(row: RecompileSummary) -> dict[str, Any]:
    """A recompilation as texts; ``ns``: its time."""
    values = [sanitize(value, VALUE_CHARS) for value in row.values[:FEW]]
    return {
        "function": sanitize(row.function, NAME_CHARS),
        "line": "" if row.place is None else place_text(row.place),
        "count": row.count,
        "ns": row.time_ns,
        "why": sanitize(row.cause or "The log has no reason.", TEXT_LIMIT),
        "values": [*values, "..."] if row.values[FEW:] else values,
        "needed": "" if row.guard_place is None else place_text(row.guard_place),
        "fix": sanitize(row.fix, TEXT_LIMIT),
        "guard": sanitize(row.guard, TEXT_LIMIT),
    }


def _broken(row: BreakSummary) -> dict[str, Any]:
    """A graph break as texts."""
    return {
        "line": "an unknown line" if row.place is None else place_text(row.place),
        "code": "" if row.place is None else sanitize(row.place.code or "", NAME_CHARS),
        "count": row.count,
        "whole": row.whole_frame,
        "why": sanitize(row.reason, TEXT_LIMIT),
        "fix": sanitize(row.hint or "", TEXT_LIMIT),
    }


def _bars(job: Job) -> list[dict[str, Any]]:
    """For the rank that compiled longest, its longest frames; the stages of a frame sum to its time."""
    held = [item for item in job.gathered if item.held["stages"]]
    if not held:
        return []
    longest = max(held, key=lambda item: sum(frame["ns"] for frame in item.held["stages"]))
    frames = longest.held["stages"]
    sums: dict[str, int] = {}
    for frame in frames:
        for stage, spent in frame["stages"].items():
            sums[stage] = sums.get(stage, 0) + spent
    named = sorted(sums, key=lambda stage: -sums[stage])[:MOST_STAGES]
    rows = []
    for frame in sorted(frames, key=lambda item: -item["ns"])[:MOST_BARS]:
        parts = {stage: frame["stages"].get(stage, 0) for stage in named}
        parts[REST] = sum(frame["stages"].values()) - sum(parts.values())
        rows.append({**frame, "stages": parts, "rank": longest.source.rank, "of": len(frames)})
    return rows
