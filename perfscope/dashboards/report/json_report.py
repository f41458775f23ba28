"""The report as JSON for programs: stable, documented by ``docs/report-schema.json``.

Times are integer nanoseconds; modelled times may be fractions. Within a schema version keys are added, never renamed;
readers ignore unknown keys. A record's field becomes a key of the same name, except for those listed in ``SHAPES``.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.coverage import programs_alone
from perfscope.analyzers.critical_path import WhatIf
from perfscope.analyzers.large_parts import LargePart
from perfscope.analyzers.memory import HeldCategory, Memory, Reserved
from perfscope.analyzers.memory.holders import Holder
from perfscope.analyzers.memory.picture import MemoryPicture
from perfscope.analyzers.ops import Achieved, TopWork, Utilization, WorkRow
from perfscope.analyzers.plans import Work
from perfscope.analyzers.predict import Estimate, Row
from perfscope.analyzers.predict.calibrate import Calibration, InstructionError
from perfscope.analyzers.programs import LeastTime, Program
from perfscope.analyzers.ranks import CollectiveKind, PairKind
from perfscope.analyzers.savings import step_time
from perfscope.analyzers.sections.compile import CompileSection
from perfscope.analyzers.sections.memory import MemoryEntry, MemorySection
from perfscope.analyzers.sections.programs import EstimateSection, PlanSummary, ProgramsSection, ProgramTime
from perfscope.analyzers.time import DeviceTime, Generation, HostAccount, ModelCall, StepAccount
from perfscope.analyzers.torch_compile import CompileSummary
from perfscope.dashboards.report.renderers.records import Shape, Shapes, plain
from perfscope.dashboards.report.sections.generation import MOST_CALLS
from perfscope.model.compile_log import CodeLine
from perfscope.model.finding import Finding, Outcome, Span
from perfscope.model.plugins import named
from perfscope.model.torch_plan import PlanTotals
from perfscope.model.trace import MISSING, Source
from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis


SUFFIXES = (".json",)

SCHEMA = "perfscope.report/1"


def render(analysis: Analysis) -> str:
    """Return the report as indented JSON text, without ``NaN``, which JSON does not allow."""
    return json.dumps(document(analysis), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(analysis: Analysis) -> dict[str, Any]:
    """Return the report as plain dicts and lists: texts cleaned, secrets masked, home folders written as ``~``."""
    parts = {
        "schema": SCHEMA,
        "sources": analysis.sources,
        "devices": analysis.devices,
        "accounts": analysis.accounts,
        "hosts": analysis.hosts,
        "top_work": analysis.top,
        "large_parts": analysis.large,
        "hardware_counters": analysis.counted,
        "generations": analysis.generations,
        **{name: analysis.results.get(name, ()) for name in sorted(named("results"))},
        "cores": analysis.cores,
        "critical_paths": analysis.paths,
        "what_ifs": analysis.what_ifs,
        "step_time": step_time(analysis),
        "steps": analysis.steps,
        "windows": analysis.windows,
        "outcomes": analysis.outcomes,
        "programs": analysis.programs,
        "compile": analysis.compile,
        "collectives": analysis.collectives,
        "memory": analysis.memory,
        "estimate": analysis.estimate,
        "plans": analysis.plans,
        "settings": analysis.settings,
        "device_doubts": [doubt.text for doubt in analysis.doubts],
        "run": analysis.run,
    }
    result: dict[str, Any] = sanitize_value(plain(parts, SHAPES))
    for index, source in enumerate(result["sources"]):
        source["start_ns"] = analysis.starts_ns[index] if index < len(analysis.starts_ns) else None
    over = "run" if programs_alone(analysis) else "trace"
    for outcome in result["outcomes"]:
        for finding in outcome["findings"]:
            finding["cost_over"] = over
    return result


def _by_rank(kind: CollectiveKind) -> list[dict[str, Any]]:
    """A list, because keys of a JSON object are texts and ranks are numbers."""
    return [
        {
            "rank": rank,
            "wait_ns": kind.wait_ns[rank],
            "duration_ns": kind.duration_ns[rank],
            "exposed_ns": kind.exposed_ns.get(rank),
        }
        for rank in kind.wait_ns
    ]


def _compile_detail(section: CompileSection) -> dict[str, Any] | None:
    detail = section.detail
    return None if detail is None else {"of": section.detail_label, **plain(detail, SHAPES)}


_PROPERTIES_OF_ACHIEVED = ("flops_per_s", "bytes_per_s", "roofline_share")


def _achieved(record: WorkRow | TopWork | LargePart) -> dict[str, Any] | None:
    """Achieved rates; ``None`` if no work has a cost model."""
    known: Achieved = record.achieved
    more = {name: getattr(known, name) for name in _PROPERTIES_OF_ACHIEVED}
    return plain(known, SHAPES) | more if known.time_ns else None


def _properties(*names: str) -> dict[str, Any]:
    """Properties of a record that become keys of the same name."""
    return {name: attrgetter(name) for name in names}


SHAPES: Shapes = {
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
            "device": lambda account: None if account.device == MISSING else account.ordinal,
            "over": lambda account: "steps" if account.numbers else "capture",
            "causes_ns": lambda account: {cause: times for cause, times in account.causes_ns.items() if any(times)},
        },
    ),
    HostAccount: Shape(
        renamed={"numbers": "steps"},
        added=_properties("whole_ns", "total_ns")
        | {
            "over": lambda host: "steps" if host.numbers else "capture",
            "parts_ns": lambda host: {part: times for part, times in host.parts_ns.items() if any(times)},
        },
    ),
    Generation: Shape(
        added={
            "time_to_first_token_ns": attrgetter("first_token_ns"),
            "time_per_output_token_ns": attrgetter("output_token_ns"),
            "decode_tokens_per_s": attrgetter("tokens_per_s"),
            "decodes": lambda generation: generation.decodes[:MOST_CALLS],
            "decodes_left": lambda generation: max(0, len(generation.decodes) - MOST_CALLS),
        },
    ),
    ModelCall: Shape(left_out=("end_ns",), added={"duration_ns": lambda call: call.end_ns - call.start_ns}),
    WhatIf: Shape(added=_properties("saved_ns")),
    TopWork: Shape(added=_properties("costed_share") | {"achieved": _achieved}),
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
        added={"recorded": lambda program: program.module_index is not None},
    ),
    LeastTime: Shape(renamed={"total_ns": "least_ns", "by_bound": "by_bound_ns"}, added=_properties("bound")),
    EstimateSection: Shape(renamed={"programs_left": "left"}),
    ProgramTime: Shape(
        left_out=("launched",),
        renamed={"label": "program", "rows_left": "instructions_left"},
        added={"known_by": lambda _: "modelled", "instructions": attrgetter("estimate.rows")},
        merged=("estimate",),
    ),
    Estimate: Shape(
        left_out=("program", "rows", "parts", "command_buffers", "pictures", "fingerprint"),
        added=_properties("host_bound", "memory_bytes", "fits")
        | {
            "target": attrgetter("target.shown"),
            "parts_ns": lambda estimate: dict(zip(("low", "high"), estimate.parts, strict=True)),
            "not_known": lambda estimate: len(estimate.not_known),
        },
    ),
    Row: Shape(added=_properties("total")),
    Calibration: Shape(
        left_out=("program", "run", "modelled"),
        renamed={"calibrated": "calibrated_ns", "by_group": "priced_by_group"},
        added=_properties("inside")
        | {
            "measured_ns": attrgetter("run.step_ns"),
            "measured_busy_ns": attrgetter("run.busy_ns"),
            "runs": attrgetter("run.runs"),
            "devices": attrgetter("run.devices"),
        },
    ),
    InstructionError: Shape(
        left_out=("row",),
        added=_properties("off_ns", "inside")
        | {
            "computation": attrgetter("row.computation"),
            "name": attrgetter("row.name"),
            "runs": attrgetter("row.runs"),
            "modelled_ns": attrgetter("row.once"),
        },
    ),
    PlanSummary: Shape(
        added={
            "known_by": lambda _: "planned",
            "recompiles": lambda plan: [dict(zip(("function", "reason"), row, strict=True)) for row in plan.recompiles],
            "made_up": lambda plan: [
                dict(zip(("what", "at", "answer", "times"), row, strict=True)) for row in plan.made_up
            ],
        },
    ),
    PlanTotals: Shape(added=_properties("bytes")),
    Work: Shape(renamed={"device": "device_ns", "step": "step_ns"}),
    # torch.compile. The text of a source line comes from the program and is kept.
    CompileSection: Shape(left_out=("detail_label",), added={"detail": _compile_detail}),
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
        added={"bytes": lambda picture: dict(zip(picture.categories, picture.bytes, strict=True))},
    ),
}
"""Per class: fields that are not written as they are."""
