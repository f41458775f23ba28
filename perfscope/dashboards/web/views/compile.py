"""What torch.compile and JAX compiled: frames, breaks, recompilations, graphs, kernels, XLA's programs, stages."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.report.sections.compile import compile_view
from perfscope.dashboards.report.sections.compile_formats import compile_card
from perfscope.dashboards.report.sections.program import programs_view
from perfscope.dashboards.report.sections.program_formats import programs_cards
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._compile_rows import HEADS, rows_of, stages_of
from perfscope.dashboards.web.views._planned import cards as modelled_cards
from perfscope.dashboards.web.views._tables import MOST_ROWS, table
from perfscope.model.trace import Trace

MOST_BARS = 12
"""Frames that are drawn, those that took longest to compile: the table has all."""
MOST_STAGES = 6
"""Stages that have a colour; the others are one."""
REST = "the rest"


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """The rows of one rank, as many as a table holds, and how many there are of each."""
    rows = rows_of(trace)
    return {
        "rows": {name: held[:MOST_ROWS] for name, held in rows.items()},
        "counts": {name: len(held) for name, held in rows.items()},
        "stages": stages_of(trace),
        "log": trace.compile_log is not None,
    }


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``tables``: those that have rows; ``bars``: compile time by frame and stage."""
    programs, compiled = programs_view(job.analysis.programs), compile_view(job.analysis.compile)
    cards = [modelled_cards(job.analysis), *([] if programs is None else programs_cards(programs))]
    if compiled is not None:
        cards.append(compile_card(compiled))
    tables = {}
    for name, heads in HEADS.items():
        rows = [row for one in job.gathered for row in one.held["rows"][name]]
        if not rows:
            continue
        ranked = len({row[0] for row in rows}) > 1
        made = table(heads, rows) if ranked else table(heads[1:], [row[1:] for row in rows])
        counted = sum(one.held["counts"][name] for one in job.gathered)
        tables[name] = {**made, "left": counted - len(made["rows"])}
    return {
        "html": "".join(cards),
        "tables": tables,
        "bars": _bars(job),
        "log": any(one.held["log"] for one in job.gathered),
        "problems": [*job.analysis.programs.problems, *job.analysis.compile.problems],
    }


def _bars(job: Job) -> list[dict[str, Any]]:
    """Of the rank that compiled longest, the frames that took longest; the stages of a frame sum to its time."""
    held = [one for one in job.gathered if one.held["stages"]]
    if not held:
        return []
    longest = max(held, key=lambda one: sum(frame["ns"] for frame in one.held["stages"]))
    frames = longest.held["stages"]
    sums: dict[str, int] = {}
    for frame in frames:
        for stage, spent in frame["stages"].items():
            sums[stage] = sums.get(stage, 0) + spent
    named = sorted(sums, key=lambda stage: -sums[stage])[:MOST_STAGES]
    rows = []
    for frame in sorted(frames, key=lambda one: -one["ns"])[:MOST_BARS]:
        parts = {stage: frame["stages"].get(stage, 0) for stage in named}
        parts[REST] = sum(frame["stages"].values()) - sum(parts.values())
        rows.append({**frame, "stages": parts, "rank": longest.source.rank, "of": len(frames)})
    return rows
