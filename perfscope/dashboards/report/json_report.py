"""The report as JSON: stable, documented by ``docs/report-schema.json``, made for programs.

Times are integer nanoseconds, modelled ones may be fractions. Keys are only added within a schema version, never
renamed; a reader ignores those it does not know.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.json_sections import (
    collectives_document,
    compile_document,
    estimate_document,
    memory_document,
    plans_document,
    programs_document,
)
from perfscope.dashboards.report.remarks import programs_alone
from perfscope.dashboards.report.sections.account import accounts_document
from perfscope.dashboards.report.sections.generation import generation_document
from perfscope.dashboards.report.sections.host import hosts_document
from perfscope.dashboards.report.sections.top_work import top_document
from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis, Step
    from perfscope.analyzers.time import DeviceTime
    from perfscope.model.finding import Finding, Outcome
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
