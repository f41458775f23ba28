"""What was not recorded, in a few words each, with the command or the option that records it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from perfscope.analyzers.engine import Analysis
from perfscope.dashboards.report.abstained import logs_alone
from perfscope.dashboards.report.remarks import memory_alone, programs_alone
from perfscope.dashboards.web.views._planned import told_of
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

RUN = "perfscope run -- python train.py"
WHY_CHARS = 300
MOST = 6
"""Lines of the list: all of it is in what the rules say."""

TORCH = (
    ("memory", "memory over time", "torch.profiler.profile(profile_memory=True)"),
    ("python_stack", "lines of the program", "torch.profiler.profile(with_stack=True)"),
    ("shapes", "input shapes of ops", "torch.profiler.profile(record_shapes=True)"),
    ("steps", "steps", "profiler.step() behind each step"),
    ("op_graph", "the op graph of a step: fusion, FLOPs, checkpointing", RUN),
)
JAX = (
    ("hlo", "the compiled programs", RUN),
    ("memory", "memory over time", RUN),
    ("compile_events", "compilations and retraces", RUN),
    ("host_reads", "reads of arrays by the host", RUN),
)
NSYS = (
    ("memory", "memory taken from the driver", "nsys profile --cuda-memory-usage=true"),
    ("steps", "steps (an NVTX range named like one does)", "perfscope.step()"),
    ("op_graph", "the op graph of a step, lines of the program, shapes of ops", RUN),
)
"""(key of `Trace.recorded`, what it is, how to record it), what is missed most first."""


def is_jax(trace: Trace) -> bool:
    """Whether it is of a program of JAX."""
    return bool(trace.hlo or len(trace.rows["hlo_ops"]) or "compile_events" in trace.recorded)


def facts_of(trace: Trace) -> dict[str, Any]:
    """What `missing` must know of one rank."""
    passes = (trace,) if trace.detail is None else (trace, trace.detail)
    return {
        "recorded": sorted({key for one in passes for key in one.recorded}),
        "jax": is_jax(trace),
        "timed": bool(trace.step_times_ns or trace.window_steps),
        "world": trace.source.world_size,
        "why": trace.why_no_step or "",
    }


def missing(analysis: Analysis, held: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """``what`` and ``command`` of each thing that no rank recorded; ``held``: of all ranks, as of `facts_of`.

    ``command`` is empty where ``what`` says why another recording alike would not have it.
    """
    return [{"what": what, "command": command} for what, command in _missing(analysis, list(held))][:MOST]


def _missing(analysis: Analysis, held: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    if told_of(analysis):
        yield "a run: nothing was measured; on the machine itself", RUN
        return
    if programs_alone(analysis) or logs_alone(analysis) or memory_alone(analysis):
        yield "a recording of the run: times of steps, ops and kernels", RUN
        return
    recorded = {key for one in held for key in one["recorded"]}
    nsys = {source.format for source in analysis.sources} == {"nsys"}
    for key, what, command in JAX if any(one["jax"] for one in held) else NSYS if nsys else TORCH:
        if key not in recorded:
            why = next((one["why"] for one in held if one["why"]), "") if key == "op_graph" else ""
            yield (f"{what} ({sanitize(why, WHY_CHARS)})", "") if why else (what, command)
    if not any(one["timed"] for one in held):
        yield "steps without a profiler on: tracing makes them longer", RUN
    world = max((one["world"] or 0 for one in held), default=0)
    if world > len(held):
        told = f"{world - len(held):,} of {world:,} ranks"
        jax = any(one["jax"] for one in held)
        yield told, "srun perfscope run train.py" if jax else "perfscope run -- torchrun --nproc-per-node 8 train.py"
