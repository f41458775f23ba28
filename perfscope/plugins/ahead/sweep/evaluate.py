"""Evaluate a variant's run folder: step time, peak, and whether that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from perfscope.analyzers.devices import Target
from perfscope.analyzers.hlo import HloModule
from perfscope.analyzers.plans import PipelineStep, PlanWork, pipeline_step, plan_works
from perfscope.analyzers.predict import NO_TIME, Range, estimate
from perfscope.analyzers.readers import load_one
from perfscope.model.documents import compile_manifest
from perfscope.model.documents.compile_manifest import CompiledProgram
from perfscope.model.errors import PerfscopeError
from perfscope.model.torch_plan import fits, memory_as_run
from perfscope.model.trace import Trace
from perfscope.plugins.ahead.sweep.document import SweptVariant, VariantState

_OUT_OF_MEMORY = re.compile(r"Ran out of memory (?:in memory space|on) hbm|exceed\w* (?:available )?hbm", re.IGNORECASE)
"""libtpu 0.0.42.1 writes the first form. For other memories (vmem) a single kernel ran out, which is a failure."""
_USED = re.compile(r"Used (\d+(?:\.\d+)?)([KMGT]) of (\d+(?:\.\d+)?)([KMGT])", re.I)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class _Program(Struct, frozen=True, kw_only=True):
    module: HloModule
    compiled: CompiledProgram
    time: Range | None
    peak: int | None
    why: str = ""


def evaluate_variant(folder: Path, settings: Mapping[str, str]) -> SweptVariant:
    """The result of a compiled variant; for a failed one with the reason why it cannot be evaluated."""
    try:
        manifest = compile_manifest.load(folder)
        trace = load_one(folder)
    except PerfscopeError as error:
        return SweptVariant(settings=dict(settings), state="failed", reason=str(error).removeprefix(f"{folder}: "))
    point = evaluate_trace(trace, manifest.programs, settings)
    left = [not_compiled for not_compiled in manifest.not_compiled if exceeds_memory(not_compiled.reason)]
    if left:
        used = required_bytes(left[0].reason) or point.peak_bytes
        return SweptVariant(
            settings=dict(settings), state="does not fit", target=point.target, peak_bytes=used,
            memory_bytes=point.memory_bytes, reason=f"{left[0].name}: {left[0].reason}"[:300],
        )  # fmt: skip
    return point


def evaluate_trace(trace: Trace, compiled: Sequence[CompiledProgram], settings: Mapping[str, str]) -> SweptVariant:
    """The result of compiled programs with their target. ``compiled``: the manifest's entries on them."""
    target = trace.target
    if target is None:
        return SweptVariant(settings=dict(settings), state="failed", reason="the run folder does not name its target")
    if not trace.hlo:
        return evaluate_plan(trace, target, settings)
    programs = []
    for module, program in zip(trace.hlo, _match_programs(trace.hlo, compiled), strict=True):
        try:
            result = estimate(module, target)
            programs.append(_Program(module=module, compiled=program, time=result.step_ns, peak=result.peak_bytes))
        except PerfscopeError as error:
            programs.append(_Program(module=module, compiled=program, time=None, peak=None, why=str(error)))
    step = programs_of_step(programs)
    times = [item.time for item in step if item.time is not None]
    peaks = [program.peak for program in programs if program.peak is not None]
    low, high = _ends(sum(times, NO_TIME) if len(times) == len(step) else None)
    peak = max(peaks) if len(peaks) == len(programs) else None
    whys = [program.why for program in programs if program.why]
    if not whys and peak is None:
        whys = ["its memory peak is unknown: there is no buffer assignment that can be replayed"]
    state: VariantState = "compiled"
    if peak is not None and target.memory_bytes is not None:
        state = "fits" if peak <= target.memory_bytes else "does not fit"
    return SweptVariant(
        settings=dict(settings), state=state, target=target.shown, step_low_ns=low, step_high_ns=high,
        peak_bytes=peak, memory_bytes=target.memory_bytes, reason=whys[0] if whys else "",
        inputs=_input_bytes([item.compiled for item in step]), programs=tuple(item.module.name for item in step),
        fingerprints=tuple(item.compiled.fingerprint for item in step),
    )  # fmt: skip


def evaluate_plan(trace: Trace, target: Target, settings: Mapping[str, str]) -> SweptVariant:
    """The result of a planned PyTorch program: its step as the program runs it, eager if it compiles nothing."""
    works, pipeline = trace.fact(plan_works), trace.fact(pipeline_step)
    if pipeline is not None:
        return _pipeline(pipeline, works, target, settings)
    if len(works) != 1:
        reason = f"{len(works)} programs and plans are in the run folder, but one is expected"
        return SweptVariant(settings=dict(settings), state="failed", reason=reason)
    work = works[0]
    plan, compiled = work.held.plan, work.held.plan.compiled_by == "program"
    memory, time = memory_as_run(plan), work.compiled if compiled else work.eager
    if plan.failure is not None:
        return SweptVariant(
            settings=dict(settings), state="failed", target=target.shown, reason=f"the program failed: {plan.failure}"
        )  # fmt: skip
    peak = None if memory is None else memory.peak_bytes
    fit = None if memory is None else fits(memory, target.memory_bytes)
    state: VariantState = {True: "fits", False: "does not fit", None: "compiled"}[fit]  # type: ignore[assignment]
    reason = ""
    if memory is None:
        reason = "no complete step was recorded, so its memory peak is unknown"
    elif time is None:
        reason = "the ops of the step were not recorded, so its time cannot be modelled"
    low, high = _ends(None if time is None else time.step)
    return SweptVariant(
        settings=dict(settings), state=state, target=target.shown, step_low_ns=low, step_high_ns=high, peak_bytes=peak,
        memory_bytes=target.memory_bytes, reason=reason,
        inputs=None if memory is None else (memory.given_bytes, 0),
        programs=("compiled step" if compiled else "eager step",), fingerprints=(plan.fingerprint,),
    )  # fmt: skip


def _pipeline(
    pipeline: PipelineStep, works: Sequence[PlanWork], target: Target, settings: Mapping[str, str]
) -> SweptVariant:
    """The result of a pipeline: its step, and the peak of the rank that needs most."""
    peak, (low, high) = pipeline.peak_bytes, _ends(pipeline.step_ns)
    failure = next((one.held.plan.failure for one in works if one.held.plan.failure is not None), None)
    state: VariantState = "compiled"
    if peak is not None and target.memory_bytes is not None:
        state = "fits" if peak <= target.memory_bytes else "does not fit"
    return SweptVariant(
        settings=dict(settings), state="failed" if failure is not None else state, target=target.shown,
        step_low_ns=low, step_high_ns=high, peak_bytes=peak, memory_bytes=target.memory_bytes,
        reason=pipeline.problem if failure is None else f"the program failed: {failure}",
        programs=tuple(f"rank {one.rank}" for one in pipeline.rows),
        fingerprints=tuple(work.held.plan.fingerprint for work in works),
    )  # fmt: skip


def _ends(time: Range | None) -> tuple[int | None, int | None]:
    return (None, None) if time is None else (time.low, time.high)


def programs_of_step(programs: Sequence[_Program]) -> list[_Program]:
    """The programs of one step: the longest, and those with as many calls if it was called again.

    A step may be two programs, for gradients and for the update. A program called once while the step is called several
    times initialises weights; a program called more often than the step does not belong to it alone.
    """
    longest = max(programs, key=lambda item: (item.time is None, 0 if item.time is None else item.time.middle))
    if longest.compiled.calls < 2:
        return [longest]
    return [program for program in programs if program.compiled.calls == longest.compiled.calls]


def exceeds_memory(reason: str) -> bool:
    """Whether a compiler refused a program because it exceeds a device's memory."""
    return _OUT_OF_MEMORY.search(reason) is not None


def required_bytes(reason: str) -> int | None:
    """Bytes needed by a refused program, from the compiler's message: ``Used 21.30G of 15.75G hbm``."""
    match = _USED.search(reason)
    return None if match is None else round(float(match[1]) * _UNITS[match[2].upper()])


def _match_programs(modules: Sequence[HloModule], compiled: Sequence[CompiledProgram]) -> list[CompiledProgram]:
    """The manifest's entry of each module, by file, else by name."""
    result = []
    for module in modules:
        source = str(module.source or "")
        match = next((program for program in compiled if program.file and source.endswith(program.file)), None)
        match = match or next((program for program in compiled if program.name == module.name), None)
        result.append(match or CompiledProgram(file="", name=module.name))
    return result


def _input_bytes(compiled: Sequence[CompiledProgram]) -> tuple[int, int] | None:
    pairs = [(program.argument_bytes, program.output_bytes) for program in compiled]
    known = [(first, second) for first, second in pairs if first is not None and second is not None]
    if len(known) < len(pairs):
        return None
    return sum(first for first, _ in known), sum(second for _, second in known)
