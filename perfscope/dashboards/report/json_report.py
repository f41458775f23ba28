"""The report as JSON for programs: stable, documented by ``docs/report-schema.json``.

Times are integer nanoseconds; modelled times may be fractions. Within a schema version keys are added, never renamed;
readers ignore unknown keys. A record's field becomes a key of the same name, except for those listed in ``SHAPES``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perfscope.analyzers.coverage import programs_alone
from perfscope.analyzers.critical_path import WhatIf
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.large_parts import LargePart
from perfscope.analyzers.memory import HeldCategory, Holder, Memory, MemoryPicture, Reserved
from perfscope.analyzers.ops import Achieved, TopWork, Utilization, WorkRow
from perfscope.analyzers.plans import GraphWork, Work
from perfscope.analyzers.predict import Calibration, Estimate, InstructionError, Parts, Row
from perfscope.analyzers.programs import LeastTime, Program
from perfscope.analyzers.ranks import CollectiveKind, PairKind, RankShare
from perfscope.analyzers.results import result_homes
from perfscope.analyzers.savings import step_time
from perfscope.analyzers.sections import (
    CompileSection,
    EstimateSection,
    KernelRuns,
    MemoryEntry,
    MemorySection,
    PlanSummary,
    ProgramsSection,
    ProgramTime,
)
from perfscope.analyzers.time import DeviceTime, Generation, HostAccount, ModelCall, StepAccount
from perfscope.analyzers.torch_compile import CompileSummary, PlannedPair
from perfscope.dashboards.report.renderers.records import Shape, Shapes, plain
from perfscope.dashboards.report.sections.generation import MOST_CALLS
from perfscope.model.compile_log import CodeLine, ProgramLine
from perfscope.model.finding import Finding, Outcome, Span
from perfscope.model.torch_plan import PlanTotals
from perfscope.model.trace import MISSING, Source
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.report/1"

MOST_OPS = 12
"""Ops of a planned kernel."""
MOST_PLACES = 4
"""Lines of a planned kernel."""


def render(analysis: Analysis) -> str:
    """Return the report as indented JSON text, without ``NaN``, which JSON does not allow."""
    text = json.dumps(document(analysis), ensure_ascii=False, allow_nan=False)
    return msgspec.json.format(text, indent=2) + "\n"  # json itself indents in Python, which takes eight times as long


def document(analysis: Analysis) -> dict[str, Any]:
    """Return the report as plain dicts and lists: texts cleaned, secrets masked, home folders written as ``~``."""
    others = {name: analysis.of(name) for name in result_homes()}
    result: dict[str, Any] = {"schema": SCHEMA, **sanitize_value(plain(analysis, SHAPES) | plain(others, SHAPES))}
    for index, source in enumerate(result["sources"]):
        source["start_ns"] = analysis.starts_ns[index] if index < len(analysis.starts_ns) else None
    over = "run" if programs_alone(analysis) else "trace"
    for outcome in result["outcomes"]:
        for finding in outcome["findings"]:
            finding["cost_over"] = over
    return result


# Values of keys that no record holds as they are written.


def _device_doubts(analysis: Analysis) -> tuple[str, ...]:
    """Contradictions in the device data, with the rules that are not judged because of them, a sentence each."""
    return tuple(doubt.text for doubt in analysis.doubts)


def _by_rank(kind: CollectiveKind) -> list[RankShare]:
    """One for each rank of the group. Keys of a JSON object are texts, so ranks are in a list."""
    return [
        RankShare(rank=rank, wait_ns=wait, duration_ns=kind.duration_ns[rank], exposed_ns=kind.exposed_ns.get(rank))
        for rank, wait in kind.wait_ns.items()
    ]


class CompileDetail(Struct, frozen=True):
    """Compilations of the rank that compiled longest."""

    of: str
    """The rank: `rank 3`, or `source 0` where the rank is not known."""
    summary: CompileSummary


def _compile_detail(section: CompileSection) -> CompileDetail | None:
    """Compilations of the rank that compiled longest; null if nothing was compiled."""
    return None if section.detail is None else CompileDetail(section.detail_label, section.detail)


def _achieved(record: WorkRow | TopWork | LargePart) -> Achieved | None:
    """FLOP/s and B/s while it ran; null where nothing was costed."""
    known: Achieved = record.achieved
    return known if known.time_ns else None


def _device(account: StepAccount) -> int | None:
    """Number of the device; null: the host."""
    return None if account.device == MISSING else account.ordinal


def _over(account: StepAccount | HostAccount) -> Literal["steps", "capture"]:
    """Subject of the times: each step, or the whole capture if it has no steps."""
    return "steps" if account.numbers else "capture"


def _causes_ns(account: StepAccount) -> dict[str, tuple[int, ...]]:
    """Time of each step by cause, ns; causes that take nothing are left out."""
    return {str(cause): tuple(times) for cause, times in account.causes_ns.items() if any(times)}


def _parts_ns(host: HostAccount) -> dict[str, tuple[int, ...]]:
    """Time of each step by part, ns; parts that take nothing are left out."""
    return {str(part): tuple(times) for part, times in host.parts_ns.items() if any(times)}


def _decodes(generation: Generation) -> tuple[ModelCall, ...]:
    """The first decode calls."""
    return generation.decodes[:MOST_CALLS]


def _decodes_left(generation: Generation) -> int:
    """Decode calls that are not listed."""
    return max(0, len(generation.decodes) - MOST_CALLS)


def _duration_ns(call: ModelCall) -> int:
    """Time until the next call, ns."""
    return call.end_ns - call.start_ns


def _recorded(program: Program) -> bool:
    """Its module was recorded."""
    return program.module_index is not None


def _modelled(_: ProgramTime) -> Literal["modelled"]:
    return "modelled"


def _planned(_: PlanSummary) -> Literal["planned"]:
    return "planned"


def _ends_ns(estimate: Estimate) -> dict[str, Parts]:
    """Kernels, exposed communication, exposed copies and launch gaps, ns, that sum to each end of `step_ns` exactly."""
    return dict(zip(("low", "high"), estimate.parts, strict=True))


def _not_known(estimate: Estimate) -> int:
    """Instructions without a model."""
    return len(estimate.not_known)


def _ops(row: KernelRuns) -> tuple[str, ...]:
    """The first ATen ops it computes."""
    return row.kernel.ops[:MOST_OPS]


def _places(row: KernelRuns) -> tuple[ProgramLine, ...]:
    """The first of the user's lines it computes."""
    return row.kernel.places[:MOST_PLACES]


def _members(row: KernelRuns) -> int:
    """Number of scheduler nodes in it."""
    return len(row.kernel.members)


def _launched(work: GraphWork) -> int:
    """Number of its kernels."""
    return len(work.graph.kernels)


def _first(pair: PlannedPair) -> str:
    """Kernel that writes the value."""
    return str(pair.first.name)


def _second(pair: PlannedPair) -> str:
    """Kernel that reads it."""
    return str(pair.second.name)


def _reason(pair: PlannedPair) -> str:
    """Inductor's reason."""
    return str(pair.refusal.reason)


def _recompiles(plan: PlanSummary) -> list[dict[str, str]]:
    """`function` and `reason` of each recompilation."""
    return [dict(zip(("function", "reason"), row, strict=True)) for row in plan.recompiles]


def _made_up(plan: PlanSummary) -> list[dict[str, str | int]]:
    """Values that the program read and that were made up: `what`, `at` which line, the `answer`, how many `times`."""
    return [dict(zip(("what", "at", "answer", "times"), row, strict=True)) for row in plan.made_up]


def _band_bytes(picture: MemoryPicture) -> dict[str, Sequence[int]]:
    """Bytes over time by category."""
    return {category.name.lower(): held for category, held in zip(picture.categories, picture.bytes, strict=True)}


def _properties(*names: str) -> dict[str, str]:
    """Values that a record computes and that are keys of the same name."""
    return {name: name for name in names}


SHAPES: Shapes = {
    Analysis: Shape(
        left_out=("warm_accounts", "starts_ns", "doubts", "problems", "results"),
        renamed={"top": "top_work", "large": "large_parts"},
        added={"step_time": step_time, "device_doubts": _device_doubts},
    ),
    # Sources, and the results of the rules.
    Source: Shape(left_out=("events_only", "programs")),
    DeviceTime: Shape(left_out=("device", "start_ns", "end_ns"), renamed={"ordinal": "device"}),
    Outcome: Shape(left_out=("missing",)),
    Finding: Shape(left_out=("excerpt", "removes", "run_ns", "bytes_are", "memory_bytes")),
    Span: Shape(left_out=("rank",)),
    # Account of the steps. Causes and parts that take no time have no times by step.
    StepAccount: Shape(
        left_out=("ordinal",),
        renamed={"numbers": "steps", "cold": "cold_steps", "outliers": "outlier_steps"},
        added=_properties("whole_ns", "busy_ns", "total_ns")
        | {
            "device": _device,
            "over": _over,
            "causes_ns": _causes_ns,
        },
    ),
    HostAccount: Shape(
        renamed={"numbers": "steps"},
        added=_properties("whole_ns", "total_ns")
        | {
            "over": _over,
            "parts_ns": _parts_ns,
        },
    ),
    Generation: Shape(
        added={
            "time_to_first_token_ns": "first_token_ns",
            "time_per_output_token_ns": "output_token_ns",
            "decode_tokens_per_s": "tokens_per_s",
            "decodes": _decodes,
            "decodes_left": _decodes_left,
        },
    ),
    ModelCall: Shape(left_out=("end_ns", "idle"), added={"duration_ns": _duration_ns}),
    WhatIf: Shape(added=_properties("saved_ns")),
    TopWork: Shape(added=_properties("costed_share") | {"achieved": _achieved}),
    Achieved: Shape(added=_properties("flops_per_s", "bytes_per_s", "roofline_share")),
    WorkRow: Shape(added={"achieved": _achieved}),
    LargePart: Shape(left_out=("busy",), added=_properties("share", "judged") | {"achieved": _achieved}),
    Utilization: Shape(added=_properties("costed_share", "mfu", "hfu")),
    # Compiled programs, and their modelled time.
    ProgramsSection: Shape(
        left_out=("on_cpu",),
        renamed={"programs": "items", "programs_left": "left", "spots_left": "hot_spots_left"},
    ),
    Program: Shape(
        left_out=("module_index",),
        renamed={"unknown": "unknown_instructions"},
        added={"recorded": _recorded},
    ),
    LeastTime: Shape(renamed={"total_ns": "least_ns", "by_bound": "by_bound_ns"}, added=_properties("bound")),
    EstimateSection: Shape(renamed={"programs_left": "left"}),
    ProgramTime: Shape(
        left_out=("launched",),
        renamed={"label": "program", "rows_left": "instructions_left"},
        added={"known_by": _modelled, "instructions": "estimate.rows"},
        merged=("estimate",),
    ),
    Estimate: Shape(
        left_out=("program", "rows", "parts", "command_buffers", "pictures", "fingerprint"),
        added=_properties("host_bound", "memory_bytes", "fits")
        | {
            "target": "target.shown",
            "parts_ns": _ends_ns,
            "not_known": _not_known,
        },
    ),
    Row: Shape(added=_properties("total")),
    Calibration: Shape(
        left_out=("program", "run", "modelled"),
        renamed={"calibrated": "calibrated_ns", "by_group": "priced_by_group"},
        added=_properties("inside")
        | {
            "measured_ns": "run.step_ns",
            "measured_busy_ns": "run.busy_ns",
            "runs": "run.runs",
            "devices": "run.devices",
        },
    ),
    InstructionError: Shape(
        left_out=("row",),
        added=_properties("off_ns", "inside")
        | {
            "computation": "row.computation",
            "name": "row.name",
            "runs": "row.runs",
            "modelled_ns": "row.once",
        },
    ),
    PlanSummary: Shape(
        added={
            "known_by": _planned,
            "recompiles": _recompiles,
            "made_up": _made_up,
        },
    ),
    GraphWork: Shape(
        left_out=("graph", "once"),
        added={
            "compile_id": "graph.compile_id",
            "direction": "graph.direction",
            "function": "graph.function",
            "place": "graph.place",
            "calls": "graph.calls",
            "nodes": "graph.nodes",
            "kernels": _launched,
            "triton": "graph.triton_kernels",
            "bytes": "once.bytes",
            "flops": "once.flops",
            "saved_bytes": "graph.saved_bytes",
            "dynamic": "graph.dynamic",
            "refusals": "graph.refused",
            "device_ns": "once.device",
        },
    ),
    KernelRuns: Shape(
        left_out=("graph",),
        merged=("kernel",),
        added={
            "compile_id": "graph.compile_id",
            "direction": "graph.direction",
            "members": _members,
            "ops": _ops,
            "places": _places,
        },
    ),
    PlannedPair: Shape(
        left_out=("refusal", "needed_elsewhere", "graph"),
        added={
            "first": _first,
            "second": _second,
            "direction": "graph.direction",
            "reason": _reason,
            "shared_bytes": "value_bytes",
            "place": "place",
        },
    ),
    PlanTotals: Shape(added=_properties("bytes")),
    Work: Shape(renamed={"device": "device_ns", "step": "step_ns"}),
    # torch.compile. The text of a source line comes from the program and is kept.
    CompileSection: Shape(left_out=("detail_label",), added={"detail": _compile_detail}),
    CompileDetail: Shape(merged=("summary",)),
    CompileSummary: Shape(
        left_out=("rank", "breaks", "eager_frames", "limit_frames", "recompiles", "caches", "in_steps_ns"),
        renamed={
            "break_rows": "breaks",
            "recompile_rows": "recompiles",
            "corrupt": "corrupt_records",
            "unknown": "unknown_records",
        },
    ),
    CodeLine: Shape(left_out=("code",)),
    # Collectives.
    PairKind: Shape(renamed={"bandwidth": "bytes_per_s"}),
    CollectiveKind: Shape(
        left_out=("wait_ns", "duration_ns", "exposed_ns"),
        renamed={"algorithm_bandwidth": "algorithm_bytes_per_s", "bus_bandwidth": "bus_bytes_per_s"},
        added={"by_rank": _by_rank},
    ),
    # Memories; positions are on the memory's own axis.
    MemorySection: Shape(renamed={"entries": "items", "entries_left": "left"}),
    MemoryEntry: Shape(merged=("worst",)),
    Memory: Shape(renamed={"line": "where"}, added=_properties("headroom_bytes")),
    HeldCategory: Shape(renamed={"place": "mostly_at", "name": "largest_name"}),
    Holder: Shape(renamed={"line": "where"}),
    Reserved: Shape(added=_properties("fragmentation")),
    MemoryPicture: Shape(
        left_out=("categories",),
        added={"bytes": _band_bytes},
    ),
}
"""Per class: fields that are not written as they are."""
