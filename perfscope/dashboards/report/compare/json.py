"""A comparison as JSON, ``perfscope.compare/1`` (docs/compare.md): what every other face of it is made from.

Times are integer nanoseconds per step. Keys are only added within a schema version; a reader ignores others.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare.runs.keys import LEVEL_WORDS
from perfscope.dashboards.report.compare.program_formats import programs
from perfscope.dashboards.report.compare.wording import said_of
from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.compare.runs.causes import Cause
    from perfscope.analyzers.compare.runs.change import PartChange, Side, StepChange
    from perfscope.analyzers.compare.runs.comparison import Comparison
    from perfscope.analyzers.compare.runs.findings import FindingChange
    from perfscope.analyzers.compare.runs.keys import Key
    from perfscope.model.finding import Finding

SCHEMA = "perfscope.compare/1"

MOST_PARTS = 2_000
"""Parts of a step that are written; the rest is one row, so that they sum to the whole still."""

MOST_KEYS = 50
"""Keys of one side of a part: of a fusion of more kernels the first ones say what it is."""


def render(comparison: Comparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> str:
    """The comparison as indented JSON text; ``failed``: gates that were not met, in words."""
    return as_text(document(comparison, failed=failed, gates=gates))


def as_text(held: dict[str, Any]) -> str:
    """A document as indented JSON text."""
    return json.dumps(held, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(comparison: Comparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> dict[str, Any]:
    """The comparison as plain dicts and lists; texts are cleaned, secrets masked, homes shown as ``~``.

    ``gates``: what ``--fail-on`` asked for; ``failed``: which of it was not met, in words.
    """
    time = comparison.time
    held: dict[str, Any] = sanitize_value(
        {
            "schema": SCHEMA,
            "headline": comparison.headline,
            "summary": f"{comparison.headline}: {said_of(comparison.metrics)}",
            "failed": list(failed),
            "gates": list(gates),
            "base": asdict(comparison.base),
            "head": asdict(comparison.head),
            "metrics": [
                *([comparison.step_time.to_json() | {"places": []}] if comparison.step_time is not None else []),
                *(
                    one.result.to_json() | {"places": [asdict(place) for place in one.places]}
                    for one in comparison.exact
                ),
            ],
            "beside": [],
            "programs": programs(comparison.programs),
            "causes": [_cause(one) for one in comparison.causes],
            "step": None if time is None else _step(time.median),
            "worst_rank": None if time is None or time.worst is None else _step(time.worst),
            "ranks": [] if time is None else [asdict(one) for one in time.ranks],
            "findings": [_finding_change(one) for one in comparison.findings],
            "kernels": [],
            "not_looked": [asdict(one) for one in comparison.not_looked],
            "notes": list(comparison.notes),
            "method": single_captures(comparison),
        }
    )
    return held


def single_captures(comparison: Comparison) -> dict[str, Any]:
    """How one capture on each side was compared: no launches, no refs."""
    timed = comparison.step_time
    return {
        "kind": "single captures",
        "base_ref": None,
        "base_commit": None,
        "head_ref": None,
        "head_commit": None,
        "command": None,
        "pairs": 0,
        "confirming_pairs": 0,
        "profiled": 0,
        "estimator": None if timed is None else timed.estimator,
        "least": None if timed is None else timed.least,
        "seed": None,
        "level": None if timed is None else timed.level,
        "launches": [],
        "remarks": [],
        "environment": {},
    }


def _step(step: StepChange) -> dict[str, Any]:
    kept, rest = step.parts[:MOST_PARTS], step.parts[MOST_PARTS:]
    return {
        "rank": step.rank,
        "device": step.device,
        "per": step.per,
        "base_ns": step.base_ns,
        "head_ns": step.head_ns,
        "delta_ns": step.delta_ns,
        "base_steps": step.base_steps,
        "head_steps": step.head_steps,
        "by_kind": {kind: {"base_ns": base, "head_ns": head} for kind, (base, head) in step.by_kind().items()},
        "parts": [_part(part) for part in kept],
        "other_parts": {
            "count": len(rest),
            "base_ns": sum(part.base.ns for part in rest),
            "head_ns": sum(part.head.ns for part in rest),
        },
    }


def _part(part: PartChange) -> dict[str, Any]:
    return {
        "kind": part.kind,
        "status": part.status,
        "name": part.key().name(),
        "place": part.key().place(),
        "matched": None if part.level is None else LEVEL_WORDS[part.level],
        "countable": part.countable,
        "delta_ns": part.delta_ns,
        "count_ns": part.count_ns,
        "each_ns": part.each_ns,
        "base": _side(part.base),
        "head": _side(part.head),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "ns": side.ns,
        "calls": _number(float(side.calls)),
        "keys": [_key(key) for key in side.keys[:MOST_KEYS]],
        "keys_left": max(0, len(side.keys) - MOST_KEYS),
    }


def _key(key: Key) -> dict[str, Any]:
    held = asdict(key)
    held["line"] = key.line if key.line >= 0 else None
    held["name"] = key.name()
    return held


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "place": cause.place,
        "exact": cause.exact,
        "delta_ns": cause.delta_ns,
        "parts": [
            {
                "status": part.status,
                "name": part.key().name(),
                "phase": part.key().phase,
                "base_calls": _number(float(part.base.calls)),
                "head_calls": _number(float(part.head.calls)),
                "delta_ns": part.delta_ns,
                "base_ns": part.base.ns,
                "head_ns": part.head.ns,
                "matched": None if part.level is None else LEVEL_WORDS[part.level],
                "counted": part.counts_differ,
                "base_names": _names(part.base),
                "head_names": _names(part.head),
            }
            for part in cause.parts
        ],
        "metrics": [
            {"name": one.name, "unit": one.unit, "base": _number(one.base), "head": _number(one.head)}
            for one in cause.metrics
        ],
        "findings": [
            {"rule": one.rule, "change": one.change, "subject": one.shown.subject, "by_time": one.by_time}
            for one in cause.findings
        ],
    }


def _names(side: Side) -> list[str]:
    """What a part is made of on one side."""
    return [key.name() for key in side.keys[:MOST_KEYS]]


def _finding_change(one: FindingChange) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "change": one.change,
        "by_time": one.by_time,
        "base": None if one.base is None else _finding(one.base),
        "head": None if one.head is None else _finding(one.head),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "subject": finding.subject,
        "title": finding.title,
        "severity": finding.severity,
        "basis": finding.basis,
        "cost_ns": finding.cost_ns,
        "cost_ns_per_step": finding.cost_ns_per_step,
        "cost_bytes": finding.cost_bytes,
        "where": asdict(finding.where),
        "advice": finding.advice,
        "ranks": list(finding.ranks),
    }


def _number(held: float) -> float | int | None:
    """Whole numbers as such; ``None`` for what is not finite."""
    if not math.isfinite(held):
        return None
    return int(held) if held == int(held) else held
