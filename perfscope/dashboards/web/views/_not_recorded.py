"""Missing recordings, in a few words each, with the command or option that records them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from perfscope.analyzers.coverage import logs_alone, memory_alone, programs_alone
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.sections import PlanSummary
from perfscope.dashboards.report.blocks import Tile, notes
from perfscope.dashboards.report.renderers.charts import chart_html
from perfscope.dashboards.report.renderers.html import blocks_html, card, sections_html
from perfscope.dashboards.report.renderers.values import range_text
from perfscope.dashboards.report.sections.estimate import estimate_sections, stream_lanes
from perfscope.dashboards.report.sections.plan import (
    ends,
    memory_notes,
    memory_tables,
    peak_moment,
    plan_sections,
    planned_steps,
)
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import sanitize

# Programs compiled for an absent machine, which never ran: their modelled values.

RUN = "perfscope run -- python train.py"
WHY_CHARS = 300
MOST = 6
"""Most lines of the list; the rules' reasons contain all."""

TORCH = (
    ("memory", "memory over time", "torch.profiler.profile(profile_memory=True)"),
    ("python_stack", "lines of the program", "torch.profiler.profile(with_stack=True)"),
    ("shapes", "input shapes of ops", "torch.profiler.profile(record_shapes=True)"),
    ("steps", "steps", "profiler.step() after each step"),
    ("op_graph", "the op graph of a step: fusion, FLOPs, checkpointing", RUN),
)
JAX = (
    ("hlo", "the compiled programs", RUN),
    ("memory", "memory over time", RUN),
    ("compile_events", "compilations and retraces", RUN),
    ("host_reads", "reads of arrays by the host", RUN),
)
OF_RUN = (
    ("memory", "memory over time", "perfscope run --level deep train.py"),
    ("shapes", "input shapes of ops", "perfscope run --level deep train.py"),
    ("steps", "steps", "perfscope run --step-annotation NAME train.py"),
    ("op_graph", "the op graph of a step: fusion, FLOPs, checkpointing", "perfscope run --level deep train.py"),
)
NSYS = (
    ("memory", "memory taken from the driver", "nsys profile --cuda-memory-usage=true"),
    ("steps", "steps (an NVTX range named like one does)", "perfscope.step()"),
    ("op_graph", "the op graph of a step, lines of the program, shapes of ops", RUN),
)
"""(key of `Trace.recorded`, what it is, how to record it), most useful first."""


def plan_banner(analysis: Analysis) -> str:
    """Banner for programs that recorded no device work; ``''`` if something ran."""
    if analysis.steps or analysis.devices:
        return ""
    targets = [program.estimate.target.shown for program in analysis.estimate.programs]
    targets += [plan.target for plan in analysis.plans.plans]
    if not targets:
        return ""
    named = sanitize(", ".join(dict.fromkeys(targets)), 120)
    return f"Compiled for {named} and never run: every time of a run on these pages is modelled, none is measured."


def tiles(analysis: Analysis) -> list[Tile]:
    """(name, value, note): the modelled step, as a range, of the plan with most time; a program's is in the title."""
    return [tile for plan in analysis.plans.plans[:1] for tile in _plan_tiles(plan)]


def _plan_tiles(plan: PlanSummary) -> list[Tile]:
    named = sanitize(plan.name.rpartition(".")[2], 40)
    held = [
        ("Step compiled, modelled", plan.compiled or plan.inside, "torch.compile's plan"),
        ("Step eager, modelled", plan.eager, "op by op"),
    ]
    results = [
        Tile(name, range_text(ends(work.step)), f"{named} on {sanitize(plan.target, 40)}, {how}, launches included")
        for name, work, how in held
        if work is not None
    ]
    most = plan.memory_bytes
    return results + [
        Tile(
            f"Peak {name}, planned",
            format_bytes(step.peak_bytes),
            f"{format_share(step.peak_bytes, most) if most else '-'} of the device's, in {sanitize(peak_moment(step))}",
        )
        for name, step in planned_steps(plan)
    ]


def cards(analysis: Analysis) -> str:
    """The report's cards of modelled time and of plans, as HTML."""
    return "".join(sections_html((*estimate_sections(analysis.estimate), *plan_sections(analysis.plans))))


def memory_cards(analysis: Analysis) -> str:
    """Planned peaks of each plan's step, and the owners at the relevant one, as HTML; ``''`` without plans."""
    return "".join(
        card(f"Peak of a step, planned: {sanitize(plan.name, 80)}", _memory(plan)) for plan in analysis.plans.plans
    )


def _memory(plan: PlanSummary) -> str:
    made = tuple(block for block in memory_tables(plan) if block.rows)
    return "".join(blocks_html((*made, *notes(*memory_notes(plan)))))


def schedules(analysis: Analysis) -> str:
    """The timeline of a program that never ran: its streams in one modelled run, as HTML; ``''`` if unknown."""
    return "".join(
        f'<section class="card"><h2>{escape(sanitize(program.label))}: one run, modelled</h2>{drawn}</section>'
        for program in analysis.estimate.programs
        if (drawn := "".join(chart_html(stream_lanes(view)) for view in program.estimate.pictures))
    )


def is_jax(trace: Trace) -> bool:
    """Whether it belongs to a JAX program."""
    return bool(trace.hlo or len(trace.rows["hlo_ops"]) or "compile_events" in trace.recorded)


def facts_of(trace: Trace) -> dict[str, Any]:
    """The facts on one rank that `missing` needs."""
    passes = (trace,) if trace.detail is None else (trace, trace.detail)
    return {
        "recorded": sorted({key for pass_ in passes for key in pass_.recorded}),
        "jax": is_jax(trace),
        "timed": bool(trace.step_times_ns or trace.window_steps),
        "world": trace.source.world_size,
        "why": trace.why_no_step or "",
    }


def missing(analysis: Analysis, held: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """``what`` and ``command`` of each recording that every rank lacks; ``held``: `facts_of` all ranks.

    ``command`` is empty if ``what`` explains why a similar recording would lack it too.
    """
    return [{"what": what, "command": command} for what, command in _missing(analysis, list(held))][:MOST]


def _missing(analysis: Analysis, held: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    if plan_banner(analysis):
        yield "a run: nothing was measured; on the machine itself", RUN
        return
    if programs_alone(analysis) or logs_alone(analysis) or memory_alone(analysis):
        yield "a recording of the run: times of steps, ops and kernels", RUN
        return
    recorded = {key for item in held for key in item["recorded"]}
    nsys = {source.format for source in analysis.sources} == {"nsys"}
    ours = analysis.run is not None
    torch = NSYS if nsys else OF_RUN if ours else TORCH
    for key, what, command in JAX if any(item["jax"] for item in held) else torch:
        if key not in recorded:
            why = next((item["why"] for item in held if item["why"]), "") if key == "op_graph" else ""
            yield (f"{what} ({sanitize(why, WHY_CHARS)})", "") if why else (what, command)
    if not any(item["timed"] for item in held) and not ours:
        yield "steps without a profiler on: tracing makes them longer", RUN
    world = max((item["world"] or 0 for item in held), default=0)
    if world > len(held):
        text = f"{world - len(held):,} of {world:,} ranks"
        jax = any(item["jax"] for item in held)
        yield text, "srun perfscope run train.py" if jax else "perfscope run -- torchrun --nproc-per-node 8 train.py"
