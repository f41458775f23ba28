"""The report as JSON: stable, documented by ``docs/report-schema.json``, made for programs.

Times are integer nanoseconds, modelled ones may be fractions. Keys are only added within a schema version, never
renamed; a reader ignores those it does not know.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.coverage import programs_alone
from perfscope.dashboards.report.sections.account import accounts_document
from perfscope.dashboards.report.sections.generation import generation_document
from perfscope.dashboards.report.sections.host import hosts_document
from perfscope.dashboards.report.sections.top_work import top_document
from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfscope.analyzers.engine import Analysis, Step
    from perfscope.analyzers.memory import HeldCategory, Holders, Memory, Reserved
    from perfscope.analyzers.memory.holders import Holder
    from perfscope.analyzers.memory.picture import MemoryPicture
    from perfscope.analyzers.predict import Estimate, Row
    from perfscope.analyzers.predict.calibrate import Calibration, InstructionError
    from perfscope.analyzers.programs import HotSpots, Program
    from perfscope.analyzers.ranks import CollectiveKind, PairKind
    from perfscope.analyzers.sections.collectives import CollectivesSection, JobCollectives
    from perfscope.analyzers.sections.compile import CompileSection
    from perfscope.analyzers.sections.memory import MemoryEntry, MemorySection, RankMemory
    from perfscope.analyzers.sections.programs import (
        EstimateSection,
        PlanSection,
        PlanSummary,
        ProgramsSection,
        ProgramTime,
    )
    from perfscope.analyzers.time import DeviceTime
    from perfscope.analyzers.torch_compile import CompileSummary, FrameSummary, KernelSummary
    from perfscope.analyzers.torch_compile.phases import Stage
    from perfscope.model.compile_log import CodeLine
    from perfscope.model.finding import Finding, Outcome
    from perfscope.model.memory import SourceLine
    from perfscope.model.trace import Source


SUFFIXES = (".json",)

SCHEMA = "perfscope.report/1"


def render(analysis: Analysis) -> str:
    """The report as indented JSON text; never ``NaN``, which is not JSON."""
    return json.dumps(document(analysis), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(analysis: Analysis) -> dict[str, Any]:
    """The report as plain dicts and lists; texts are cleaned, secrets masked, homes shown as ``~``."""
    over = "run" if programs_alone(analysis) else "trace"
    held: dict[str, Any] = sanitize_value(
        {
            "schema": SCHEMA,
            "sources": [_source(source, index, analysis) for index, source in enumerate(analysis.sources)],
            "devices": [_device(device) for device in analysis.devices],
            "accounts": accounts_document(analysis.accounts),
            "hosts": hosts_document(analysis.hosts),
            "top_work": top_document(analysis.top),
            "generations": generation_document(analysis.generations),
            "steps": [_step(step) for step in analysis.steps],
            "windows": [asdict(window) for window in analysis.windows],
            "outcomes": [_outcome(outcome, over) for outcome in analysis.outcomes],
            "programs": _plain(programs_document(analysis.programs)),
            "compile": _plain(compile_document(analysis.compile)),
            "collectives": _plain(collectives_document(analysis.collectives)),
            "memory": _plain(memory_document(analysis.memory)),
            "estimate": _plain(estimate_document(analysis.estimate)),
            "plans": _plain(plans_document(analysis.plans)),
            "settings": list(analysis.settings),
            "run": None if analysis.run is None else _plain(analysis.run),
        }
    )
    return held


def _source(source: Source, index: int, analysis: Analysis) -> dict[str, Any]:
    return {
        "path": source.path,
        "format": source.format,
        "rank": source.rank,
        "rank_source": source.rank_source,
        "events_read": source.events_read,
        "events_unplaced": source.events_unplaced,
        "unplaced": dict(source.unplaced),
        "repairs": dict(source.repairs),
        "notes": list(source.notes),
        "world_size": source.world_size,
        "backend": source.backend,
        "start_ns": analysis.starts_ns[index] if index < len(analysis.starts_ns) else None,
    }


def _device(device: DeviceTime) -> dict[str, Any]:
    return {
        "rank": device.rank,
        "device": device.ordinal,
        "name": device.name,
        "span_ns": device.span_ns,
        "busy_ns": device.busy_ns,
        "compute_ns": device.compute_ns,
        "communication_ns": device.communication_ns,
        "exposed_communication_ns": device.exposed_communication_ns,
        "exposed_copy_ns": device.exposed_copy_ns,
        "idle_ns": device.idle_ns,
        "kernel_time_ns": device.kernel_time_ns,
        "kernels": device.kernels,
    }


def _step(step: Step) -> dict[str, Any]:
    return asdict(step)


def _outcome(outcome: Outcome, over: str) -> dict[str, Any]:
    return {
        "rule": outcome.rule,
        "status": outcome.status,
        "reason": outcome.reason,
        "examined": outcome.examined,
        "examined_what": outcome.examined_what,
        "findings": [_finding(finding, over) for finding in outcome.findings],
    }


def _finding(finding: Finding, over: str) -> dict[str, Any]:
    return {
        "subject": finding.subject,
        "title": finding.title,
        "detail": finding.detail,
        "severity": finding.severity,
        "cost_ns": finding.cost_ns,
        "cost_ns_per_step": finding.cost_ns_per_step,
        "untraced_ns_per_step": finding.untraced_ns_per_step,
        "cost_bytes": finding.cost_bytes,
        "cost_over": over,
        "basis": finding.basis,
        "where": asdict(finding.where),
        "evidence": [{key: _plain(cell) for key, cell in row.items()} for row in finding.evidence],
        "spans": [{"source": span.source, "start_ns": span.start_ns, "end_ns": span.end_ns} for span in finding.spans],
        "advice": finding.advice,
        "ranks": list(finding.ranks),
        "covers_ns": dict(finding.covers_ns),
        "count": finding.count,
        "silenced": finding.silenced,
    }


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: numpy numbers as Python's, what is not finite as ``null``."""
    if isinstance(value, dict):
        return {str(key): _plain(value) for key, value in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(value) for value in value]
    if hasattr(value, "item"):  # a numpy scalar: reading its value needs no import of numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def collectives_document(section: CollectivesSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, bandwidths bytes/s."""
    return {
        "jobs": [_job(job) for job in section.jobs],
        "jobs_left": section.jobs_left,
        "problems": list(section.problems),
    }


def _job(job: JobCollectives) -> dict[str, Any]:
    return {
        "label": job.label,
        "members": job.members,
        "world_size": job.world_size,
        "recorded": list(job.recorded),
        "missing": list(job.missing),
        "matched": job.matched,
        "unmatched": job.unmatched,
        "paired": job.paired,
        "pairs": [_pair(kind) for kind in job.pairs],
        "pairs_left": job.pairs_left,
        "clock_offset_ns": job.clock_offset_ns,
        "clock_uncertainty_ns": job.clock_uncertainty_ns,
        "groups": [asdict(group) for group in job.groups],
        "groups_left": job.groups_left,
        "kinds": [_kind(kind) for kind in job.kinds],
        "kinds_left": job.kinds_left,
        "ranks": [asdict(total) for total in job.ranks],
        "ranks_left": job.ranks_left,
        "notes": list(job.notes),
    }


def _pair(kind: PairKind) -> dict[str, Any]:
    return {
        "source": kind.source,
        "destination": kind.destination,
        "group": list(kind.group),
        "message_bytes": kind.message_bytes,
        "count": kind.count,
        "ahead": kind.ahead,
        "core_ns": kind.core_ns,
        "median_core_ns": kind.median_core_ns,
        "send_wait_ns": kind.send_wait_ns,
        "receive_wait_ns": kind.receive_wait_ns,
        "bytes_per_s": kind.bandwidth,
    }


def _kind(kind: CollectiveKind) -> dict[str, Any]:
    """By rank, as a list: keys of a JSON object are texts, ranks are numbers."""
    return {
        "operation": kind.operation,
        "group": list(kind.group),
        "axis": kind.axis,
        "message_bytes": kind.message_bytes,
        "dtype": kind.dtype,
        "algorithm": kind.algorithm,
        "protocol": kind.protocol,
        "count": kind.count,
        "core_ns": kind.core_ns,
        "median_core_ns": kind.median_core_ns,
        "by_rank": [
            {
                "rank": rank,
                "wait_ns": kind.wait_ns[rank],
                "duration_ns": kind.duration_ns[rank],
                "exposed_ns": kind.exposed_ns.get(rank),
            }
            for rank in kind.wait_ns
        ],
        "algorithm_bytes_per_s": kind.algorithm_bandwidth,
        "bus_bytes_per_s": kind.bus_bandwidth,
        "caveats": list(kind.caveats),
    }


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
        "stages_ns": _stages(detail.stages_ns),
        "frames": [_frame(frame) for frame in detail.frames],
        "breaks": [{**asdict(break_row), "place": _code_line(break_row.place)} for break_row in detail.break_rows],
        "recompiles": [
            {**asdict(row), "place": _code_line(row.place), "guard_place": _code_line(row.guard_place)}
            for row in detail.recompile_rows
        ],
        "kernels": [_compiled_kernel(kernel) for kernel in detail.kernels],
        "corrupt_records": detail.corrupt,
        "unknown_records": dict(detail.unknown),
    }


def _frame(summary: FrameSummary) -> dict[str, Any]:
    return {**asdict(summary), "place": _code_line(summary.place), "stages_ns": _stages(summary.stages_ns)}


def _compiled_kernel(summary: KernelSummary) -> dict[str, Any]:
    return {**asdict(summary), "places": [_code_line(code_line) for code_line in summary.places]}


def _stages(stages_ns: Mapping[Stage, int]) -> dict[str, int]:
    """By the stage's name in the code: the words of a stage may change, a key may not."""
    return {stage.name.lower(): spent for stage, spent in stages_ns.items()}


def _code_line(code_line: CodeLine | None) -> dict[str, Any] | None:
    """Where it is; the text of the line is the program's and stays there."""
    return (
        None if code_line is None else {"file": code_line.file, "line": code_line.line, "function": code_line.function}
    )


def estimate_document(section: EstimateSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, ranges ``{"low", "high"}``."""
    return {
        "programs": [_program_time(program) for program in section.programs],
        "left": section.programs_left,
        "step": None if section.step is None else asdict(section.step),
        "problems": list(section.problems),
    }


def _program_time(program_time: ProgramTime) -> dict[str, Any]:
    return {
        "program": program_time.label,
        "known_by": "modelled",
        "calls": program_time.calls,
        **_estimate(program_time.estimate),
        "lines": [asdict(line) for line in program_time.lines],
        "lines_left": program_time.lines_left,
        "instructions": [_row(row) for row in program_time.estimate.rows],
        "instructions_left": program_time.rows_left,
        "calibration": None if program_time.calibration is None else _calibration(program_time.calibration),
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "target": estimate.target.shown,
        "step_ns": asdict(estimate.step_ns),
        "parts_ns": {"low": asdict(estimate.parts[0]), "high": asdict(estimate.parts[1])},
        "launches": estimate.launches,
        "host_ns": asdict(estimate.host_ns),
        "host_bound": estimate.host_bound,
        "mfu": None if estimate.mfu is None else list(estimate.mfu),
        "hfu": None if estimate.hfu is None else list(estimate.hfu),
        "peak_bytes": estimate.peak_bytes,
        "memory_bytes": estimate.memory_bytes,
        "fits": estimate.fits,
        "assumptions": [asdict(assumption) for assumption in estimate.assumptions],
        "blind_spots": list(estimate.blind_spots),
        "lower_bounds": list(estimate.lower_bounds),
        "not_known": len(estimate.not_known),
    }


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "total": asdict(row.total)}


def _calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "matched": calibration.matched,
        "differences": list(calibration.differences),
        "measured_ns": calibration.run.step_ns,
        "measured_busy_ns": calibration.run.busy_ns,
        "runs": calibration.run.runs,
        "devices": calibration.run.devices,
        "inside": calibration.inside,
        "calibrated_ns": asdict(calibration.calibrated),
        "groups": [asdict(group) for group in calibration.groups],
        "instructions": [_instruction_error(instruction) for instruction in calibration.instructions],
        "not_measured": calibration.not_measured,
        "priced_by_group": calibration.by_group,
    }


def _instruction_error(error: InstructionError) -> dict[str, Any]:
    return {
        "computation": error.row.computation,
        "name": error.row.name,
        "group": error.group,
        "runs": error.row.runs,
        "measured_ns": error.measured_ns,
        "modelled_ns": asdict(error.row.once),
        "off_ns": error.off_ns,
        "inside": error.inside,
    }


def memory_document(section: MemorySection) -> dict[str, Any]:
    """The section as dicts and lists; positions are on the memory's own axis."""
    return {
        "items": [_memory_entry(entry) for entry in section.entries],
        "left": section.entries_left,
        "problems": list(section.problems),
    }


def _memory_entry(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "source": entry.source,
        **_memory(entry.worst),
        "others": [_other(other) for other in entry.others],
        "others_left": entry.others_left,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "rank": memory.rank,
        "space": memory.space,
        "label": memory.label,
        "known_from": memory.known_from,
        "basis": memory.basis,
        "of_driver": memory.of_driver,
        "axis": memory.axis,
        "first": memory.first,
        "last": memory.last,
        "peak_bytes": memory.peak_bytes,
        "peak_position": memory.peak_position,
        "phase": memory.phase.name.lower(),
        "step": memory.step,
        "op": memory.op,
        "where": _line(memory.line),
        "by_category": [_held_category(category) for category in memory.by_category],
        "by_module": _holders(memory.by_module),
        "by_line": _holders(memory.by_line),
        "unseen_bytes": memory.unseen_bytes,
        "reserved": None if memory.reserved is None else _reserved(memory.reserved),
        "capacity_bytes": memory.capacity_bytes,
        "headroom_bytes": memory.headroom_bytes,
        "out_of_memory": memory.out_of_memory,
        "failed_bytes": memory.failed_bytes,
        "unmatched": memory.unmatched,
        "growth": None if memory.growth is None else asdict(memory.growth),
        "notes": list(memory.notes),
        "picture": None if memory.picture is None else _picture(memory.picture),
    }


def _line(line: SourceLine | None) -> dict[str, Any] | None:
    return None if line is None else asdict(line)


def _held_category(category: HeldCategory) -> dict[str, Any]:
    return {
        "category": category.category.name.lower(),
        "bytes": category.bytes,
        "blocks": category.blocks,
        "known_by": category.known_by.name.lower(),
        "mostly_at": _line(category.place),
        "largest_name": category.name,
        "place_bytes": category.place_bytes,
    }


def _holders(holders: Holders) -> dict[str, Any]:
    return {
        "rows": [_held(row) for row in holders.rows],
        "left": holders.left,
        "left_bytes": holders.left_bytes,
    }


def _held(holder: Holder) -> dict[str, Any]:
    return {
        "name": holder.name,
        "bytes": holder.bytes,
        "blocks": holder.blocks,
        "members": holder.members,
        "where": _line(holder.line),
    }


def _reserved(reserved: Reserved) -> dict[str, Any]:
    return {**asdict(reserved), "fragmentation": reserved.fragmentation}


def _other(rank_memory: RankMemory) -> dict[str, Any]:
    return {**asdict(rank_memory), "phase": rank_memory.phase.name.lower()}


def _picture(picture: MemoryPicture) -> dict[str, Any]:
    return {
        "positions": picture.positions.tolist(),
        "bytes": {
            category.name.lower(): value
            for category, value in zip(picture.categories, picture.bytes.tolist(), strict=True)
        },
        "unseen_bytes": picture.unseen_bytes,
        "reserved": None if picture.reserved is None else picture.reserved.tolist(),
        "steps": [asdict(band) for band in picture.steps],
        "phases": [asdict(band) for band in picture.phases],
    }


def programs_document(section: ProgramsSection) -> dict[str, Any]:
    """The section as dicts and lists; times of models are floats, measured ones integers."""
    return {
        "items": [_program(program) for program in section.programs],
        "left": section.programs_left,
        "ran": section.ran,
        "instructions_ns": section.instructions_ns,
        "hot_spots": [_hot_spots(spots) for spots in section.hot_spots],
        "hot_spots_left": section.spots_left,
        "problems": list(section.problems),
    }


def _program(program: Program) -> dict[str, Any]:
    ran, least, use = program.execution, program.least, program.utilization
    return {
        "name": program.name,
        "program_id": program.program_id,
        "rank": program.rank,
        "platform": program.platform,
        "recorded": program.module_index is not None,
        "execution": None if ran is None else asdict(ran),
        "flops": program.flops,
        "bytes": program.bytes,
        "exact": program.exact,
        "unknown_instructions": program.unknown,
        "flops_by_phase": dict(program.flops_by_phase),
        "peak_bytes": program.peak_bytes,
        "peak_known_by": program.peak_known_by,
        "least": None
        if least is None
        else {
            "device": least.device,
            "assumed": least.assumed,
            "least_ns": least.total_ns,
            "exact": least.exact,
            "bound": least.bound,
            "by_bound_ns": dict(least.by_bound),
        },
        "utilization": None if use is None else asdict(use),
    }


def _hot_spots(spots: HotSpots) -> dict[str, Any]:
    return {
        "rank": spots.rank,
        "program": spots.program,
        "basis": spots.basis,
        "total_ns": spots.total_ns,
        "unmatched_ns": spots.unmatched_ns,
        "instructions": [asdict(row) for row in spots.instructions],
        "lines": [asdict(line) for line in spots.lines],
        "scopes": [asdict(scope) for scope in spots.scopes],
        "left": {name: asdict(left) for name, left in spots.left.items()},
    }


def plans_document(section: PlanSection) -> dict[str, Any]:
    """The section as dicts and lists."""
    return {"plans": [_plan(plan) for plan in section.plans], "problems": list(section.problems)}


def _plan(plan: PlanSummary) -> dict[str, Any]:
    held = asdict(plan)
    held["known_by"] = "planned"
    held["totals"]["bytes"] = plan.totals.bytes
    held["recompiles"] = [{"function": function, "reason": reason} for function, reason in plan.recompiles]
    held["made_up"] = [
        {"what": what, "at": where, "answer": answer, "times": times} for what, where, answer, times in plan.made_up
    ]
    for name in ("inside", "outside", "compiled", "eager"):
        if held[name] is not None:
            held[name]["device_ns"], held[name]["step_ns"] = held[name].pop("device"), held[name].pop("step")
    return held
