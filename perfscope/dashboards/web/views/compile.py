"""Compilations of torch.compile and JAX: frames, breaks, recompilations, graphs, kernels, XLA's programs, stages."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.results import result_table
from perfscope.analyzers.torch_compile import compile_summary
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.results import place_text
from perfscope.dashboards.report.sections.compile import compile_sections, plain_name
from perfscope.dashboards.report.sections.programs import programs_sections
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._not_recorded import cards as modelled_cards
from perfscope.dashboards.web.views._tables import MOST_ROWS, result_grid
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

TABLES = (
    "compile_frames", "compile_breaks", "compile_recompilations", "compile_graphs", "compile_kernels", "xla_programs",
    "jax_compilations",
)  # fmt: skip
"""Result tables of the page, in the order of its tabs."""

MOST_BARS = 12
"""Most frames drawn, longest compile time first: the table has all."""
MOST_STAGES = 6
"""Most stages with a separate colour; the others are merged."""
REST = "the rest"


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
    """``html``: the cards; ``tables``: non-empty tables; ``bars``: compile time by frame and stage."""
    sections = (*programs_sections(job.analysis.programs), *compile_sections(job.analysis.compile))
    cards = [modelled_cards(job.analysis), *sections_html(sections)]
    tables = {}
    for name in TABLES:
        rows = [(item.source.rank, row) for item in job.gathered for row in item.held["rows"][name]]
        if rows:
            counted = sum(item.held["counts"][name] for item in job.gathered)
            tables[name] = result_grid(result_table(name), rows, counted)
    return {
        "html": "".join(cards),
        "tables": tables,
        "bars": _bars(job),
        "log": any(item.held["log"] for item in job.gathered),
        "problems": [*job.analysis.programs.problems, *job.analysis.compile.problems],
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
