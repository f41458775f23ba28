"""A comparison as JSON, ``perfscope.compare/1`` (docs/compare.md): what every other report format is made from.

Times are integer nanoseconds per step. Keys are only added within a schema version; a reader ignores others.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.analyzers.compare.ab.profiles import Profiles
from perfscope.analyzers.compare.programs.units import UNITS
from perfscope.analyzers.compare.runs.keys import LEVEL_WORDS
from perfscope.dashboards.report.compare.words import said_of
from perfscope.dashboards.report.renderers.values import percent
from perfscope.model.documents import comparison as types
from perfscope.model.documents.ab import WORKTREES_PREFIX
from perfscope.model.documents.bounded_json import Value
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize_value, scrub_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perfscope.analyzers.compare.ab.judge import AbResult
    from perfscope.analyzers.compare.programs.row import Amounts, ProgramChange, ProgramRow
    from perfscope.analyzers.compare.runs.causes import Cause, FindingChange
    from perfscope.analyzers.compare.runs.change import PartChange, Side, StepChange
    from perfscope.analyzers.compare.runs.comparison import Comparison
    from perfscope.analyzers.compare.runs.keys import Key
    from perfscope.analyzers.compare.runs.sets import SetsComparison
    from perfscope.analyzers.compare.statistics.verdict import KernelChange, MetricResult
    from perfscope.model.documents.ab import AbPlan


SCHEMA = "perfscope.compare/1"

MOST_PARTS = 2_000
"""Parts of a step that are written; the rest is one row, so that they sum to the whole still."""

MOST_KEYS = 50
"""Keys of one side of a part: of a fusion of more kernels the first ones say what it is."""


def render(comparison: Comparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> str:
    """The comparison as indented JSON text; ``failed``: gates that were not met, in words."""
    return as_text(document(comparison, failed=failed, gates=gates))


def as_text(values: dict[str, Any]) -> str:
    """A document as indented JSON text."""
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(comparison: Comparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> dict[str, Any]:
    """The comparison as plain dicts and lists; texts are cleaned, secrets masked, homes shown as ``~``.

    ``gates``: what ``--fail-on`` asked for; ``failed``: which of it was not met, in words.
    """
    time = comparison.time
    result: dict[str, Any] = sanitize_value(
        {
            "schema": SCHEMA,
            "headline": comparison.headline,
            "summary": f"{comparison.headline}: {said_of(comparison.metrics)}",
            "failed": list(failed),
            "gates": list(gates),
            "base": asdict(comparison.base),
            "head": asdict(comparison.head),
            "metrics": [
                *([] if comparison.step_time is None else [_metric(comparison.step_time)]),
                *(
                    _metric(exact_metric.result)
                    | {"places": [asdict(place_change) for place_change in exact_metric.places]}
                    for exact_metric in comparison.exact
                ),
            ],
            "beside": [],
            "programs": _programs(comparison.programs),
            "causes": [_cause(cause) for cause in comparison.causes],
            "step": None if time is None else _step(time.median),
            "worst_rank": None if time is None or time.worst is None else _step(time.worst),
            "ranks": [] if time is None else [asdict(rank) for rank in time.ranks],
            "findings": [_finding_change(finding) for finding in comparison.findings],
            "kernels": [],
            "not_looked": [asdict(not_looked) for not_looked in comparison.not_looked],
            "notes": list(comparison.notes),
            "method": _single_captures(comparison),
        }
    )
    return result


def _single_captures(comparison: Comparison) -> dict[str, Any]:
    """How one capture on each side was compared: no launches, no refs."""
    timed = comparison.step_time
    if timed is None:
        return _plain(types.Method())
    return _plain(types.Method(estimator=timed.estimator, least=timed.least, level=timed.level))


def _plain(value: Value) -> dict[str, Any]:
    """A part of the document as plain dicts and lists, numbers as they are."""
    result: dict[str, Any] = msgspec.to_builtins(value)
    return result


def _fields(record: object, part: type[Value]) -> dict[str, Any]:
    """What of a record the document's part of the same fields holds."""
    result: dict[str, Any] = msgspec.to_builtins({name: getattr(record, name) for name in part.__struct_fields__})
    return result


def _metric(result: MetricResult) -> dict[str, Any]:
    return result.to_json() | {"places": []}


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
    values = asdict(key)
    values["line"] = key.line if key.line >= 0 else None
    values["name"] = key.name()
    return values


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
            {"name": metric.name, "unit": metric.unit, "base": _number(metric.base), "head": _number(metric.head)}
            for metric in cause.metrics
        ],
        "findings": [
            {
                "rule": finding.rule,
                "change": finding.change,
                "subject": finding.shown.subject,
                "by_time": finding.by_time,
            }
            for finding in cause.findings
        ],
    }


def _names(side: Side) -> list[str]:
    """What a part is made of on one side."""
    return [key.name() for key in side.keys[:MOST_KEYS]]


def _finding_change(change: FindingChange) -> dict[str, Any]:
    return {
        "rule": change.rule,
        "change": change.change,
        "by_time": change.by_time,
        "base": None if change.base is None else _fields(change.base, types.Finding),
        "head": None if change.head is None else _fields(change.head, types.Finding),
    }


def _number(value: float) -> float | int | None:
    """Whole numbers as such; ``None`` for what is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value


# The result of an A/B as a document ``perfscope.compare/1``: verdicts of launches, cause of their profiled sisters.


AB_KIND = "launches in turns"

MOST_KERNELS = 200
"""Rows of kernels that are written: those that contribute most."""

PROFILED_LONGER = 1.1
"""A profiled step that takes this many times the plain one has the profiler in it; below, chance makes as much."""

_WORKTREE = re.compile(rf"[^\s\"'(),:]*/{re.escape(WORKTREES_PREFIX)}[A-Za-z0-9_]+/(?:base|head)/")
"""What paths of a worktree begin with: it is gone, and the rest is the path in the repository."""

_NO_CAUSE = "cause (step in parts, findings, exact metrics)"


def ab_document(
    result: AbResult, plan: AbPlan, profiles: Profiles, *, failed: Sequence[str] = (), gates: Sequence[str] = ()
) -> dict[str, Any]:
    """The document as plain dicts and lists, secrets masked; of paths in a worktree what git calls them is left.

    ``gates``: what ``--fail-on`` asked for; ``failed``: which of it was not met, in words.
    """
    comparison = profiles.comparison
    values = _nothing() if comparison is None else document(comparison)
    gating = [_metric(result) for result in result.gating]
    exact = [metric for metric in values["metrics"] if metric["gates"]]
    single = [metric for metric in values["metrics"] if not metric["gates"]]
    judged = list(result.gating)
    if comparison is not None:
        judged += [exact_metric.result for exact_metric in comparison.exact if not exact_metric.neutral]
    headline = verdict_over(judged)
    values |= {
        "headline": headline,
        "summary": f"{headline}: {said_of(judged)}",
        "failed": list(failed),
        "gates": list(gates),
        "metrics": [*gating, *exact],
        "beside": [*(_metric(result) | {"gates": False} for result in result.beside), *map(_profiled, single)],
        "kernels": [_kernel(kernel) for kernel in profiles.kernels[:MOST_KERNELS]],
        "not_looked": [*values["not_looked"], *_lost(plan, profiles)],
        "notes": [*values["notes"], *two_changes(result.step, comparison)],
        "method": _method(result, plan, profiles),
    }
    for side, ref, commit in (("base", plan.base_ref, plan.base), ("head", plan.head_ref, plan.head)):
        values[side] = {**values[side], "paths": [f"{ref} ({commit[:12]})"]}
    return _in_the_repository(sanitize_value(values))  # type: ignore[no-any-return]


def verdict_over(metrics: Sequence[MetricResult]) -> str:
    """Of what may fail a build: a regression of any, an improvement of any; else what is said of the step, the first.

    A fingerprint that differs says neither.
    """
    verdicts = [metric.verdict for metric in metrics if metric.unit != "text"]
    return next(
        (word for word in ("regression", "improvement") if word in verdicts),
        verdicts[0] if verdicts else "inconclusive",
    )


def two_changes(step: MetricResult, comparison: Comparison | None) -> Iterator[str]:
    """What the profiled step has to do with the measured one, where both are known."""
    if comparison is None or comparison.time is None or step.effect is None:
        return
    profiled = comparison.time.median
    if profiled.per != "step" or not profiled.base_ns:
        return
    text = (
        f"the step itself changed by {percent(step.effect)} ({step.pairs} pairs of launches without a profiler), that "
        f"of the profiled launches by {percent(profiled.share)} (one pair): the verdict is about the first, the parts "
        "sum to the second"
    )
    plain = step.base if isinstance(step.base, int | float) else None
    longer = profiled.base_ns / plain if plain else 1.0
    if longer > PROFILED_LONGER and plain:
        text += (
            f". A profiler adds time to each op, so its base step is {longer:.1f} times as long "
            f"({format_ns(profiled.base_ns)} for {format_ns(plain)}): what is many small ops looks larger there"
        )
    else:
        text += ". One launch each has a memory layout, clocks and neighbours of its own"
    yield text


def _nothing() -> dict[str, Any]:
    """The keys of a comparison where nothing was recorded."""
    side = {"paths": [], "formats": [], "kind": "launches", "ranks": 0, "devices": []}
    empty: dict[str, Any] = {key: [] for key in ("metrics", "causes", "ranks", "findings", "not_looked", "notes")}
    return {"schema": SCHEMA, "base": side, "head": side, "step": None, "worst_rank": None, **empty}


def _profiled(metric: dict[str, Any]) -> dict[str, Any]:
    """The time of the profiled pair: shown, and called what it is."""
    name = metric["name"]
    return metric if "profiled" in name else {**metric, "name": f"{name} (profiled launches)"}


def _kernel(change: KernelChange) -> dict[str, Any]:
    row = asdict(change)
    return {f"{key}_ns" if key in ("base", "head", "change") else key: value for key, value in row.items()}


def _lost(plan: AbPlan, profiles: Profiles) -> Iterator[dict[str, Any]]:
    """Why the cause is not known, or not from all pairs."""
    both = ["base", "head"]
    if not plan.profile:
        yield {"name": _NO_CAUSE, "reason": "no launch was profiled (--profile 0)", "sides": both}
    elif profiles.comparison is None:
        for reason in dict.fromkeys(profiles.lost) or ("no profiled pair is whole yet",):
            yield {"name": _NO_CAUSE, "reason": reason, "sides": both}
    else:
        for reason in dict.fromkeys(profiles.lost):
            yield {"name": f"profiled pairs beyond {profiles.used}", "reason": reason, "sides": both}


def _method(result: AbResult, plan: AbPlan, profiles: Profiles) -> dict[str, Any]:
    method = types.Method(
        kind=AB_KIND,
        base_ref=plan.base_ref,
        base_commit=plan.base,
        head_ref=plan.head_ref,
        head_commit=plan.head,
        command=scrub_command(("-m", *plan.command) if plan.kind == "module" else plan.command),
        pairs=result.pairs,
        confirming_pairs=result.confirming,
        profiled=profiles.used,
        estimator=result.estimator.reason(),
        least=plan.least,
        seed=plan.seed,
        level=result.step.level,
        remarks=result.remarks,
        environment=dict(result.environment),
    )
    return _plain(method) | {"launches": [asdict(launch) for launch in result.launches]}


def _in_the_repository(value: Any) -> Any:
    """The value with paths of a worktree as git calls them."""
    if isinstance(value, str):
        return _WORKTREE.sub("", value)
    if isinstance(value, dict):
        return {key: _in_the_repository(value) for key, value in value.items()}
    return [_in_the_repository(value) for value in value] if isinstance(value, list) else value


# A comparison of two sets of runs as a document ``perfscope.compare/1``.


SETS_KIND = "sets of runs"


def sets_document(sets: SetsComparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> dict[str, Any]:
    """The document as plain dicts and lists, secrets masked; ``gates`` and ``failed`` as in ``document``."""
    step = sets.comparison.step_time
    method = types.Method(
        kind=SETS_KIND,
        base_commit=sets.commits[0],
        head_commit=sets.commits[1],
        command=sets.command,
        pairs=len(sets.turns.pairs) if sets.turns.interleaved else 0,
        profiled=min(sum(launch.arm == side for launch in sets.launches) for side in ("base", "head")),
        estimator=None if step is None else step.estimator,
        least=None if step is None else step.least,
        level=None if step is None else step.level,
        remarks=sets.remarks,
        environment=dict(sets.environment),
    )
    added: dict[str, Any] = sanitize_value(
        {
            "kernels": [_kernel(kernel) for kernel in sets.kernels[:MOST_KERNELS]],
            "method": _plain(method) | {"launches": [asdict(launch) for launch in sets.launches]},
        }
    )
    return document(sets.comparison, failed=failed, gates=gates) | added


# Compiled programs in the document.


MOST_ROWS = 2_000
"""Rows of a program that are written; the rest is one, so that they sum to the whole still."""

MOST_WRITTEN = 500


def _programs(changes: Iterable[ProgramChange]) -> list[dict[str, Any]]:
    """Each program as plain dicts and lists."""
    return [_program(change) for change in changes]


def _program(change: ProgramChange) -> dict[str, Any]:
    kept, rest = change.rows[:MOST_ROWS], change.rows[MOST_ROWS:]
    left = {name: (_sum(rest, name, 0), _sum(rest, name, 1)) for name in change.totals}
    modelled = [None, None] if change.modelled_ns is None else [{"low": a, "high": b} for a, b in change.modelled_ns]
    return {
        "name": change.name,
        "base_fingerprint": change.base_fingerprint,
        "head_fingerprint": change.head_fingerprint,
        "identical": change.identical,
        "amounts": _amounts(change.totals),
        "rows": [_row(row) for row in kept],
        "other_rows": {
            "count": len(rest),
            "amounts": _amounts({name: both for name, both in left.items() if both[0] != both[1]}),
        },
        "written": None if change.written is None else [asdict(written) for written in change.written[:MOST_WRITTEN]],
        "base_modelled": modelled[0],
        "head_modelled": modelled[1],
        "notes": list(change.notes),
    }


def _sum(rows: Iterable[ProgramRow], name: str, side: int) -> int:
    return sum(row.amounts.get(name, (0, 0))[side] for row in rows)


def _amounts(amounts: Amounts) -> list[dict[str, Any]]:
    return [{"name": name, "unit": UNITS[name], "base": base, "head": head} for name, (base, head) in amounts.items()]


def _row(row: ProgramRow) -> dict[str, Any]:
    return {
        "change": row.change,
        "what": row.what,
        "place": row.place,
        "source": row.source,
        "phase": row.phase,
        "count": row.count,
        "amounts": _amounts(row.amounts),
        "lost": row.lost,
        "blocking": row.blocking,
        "base_names": list(row.base_names),
        "head_names": list(row.head_names),
        "said": list(row.said),
        "is_worse": row.is_worse,
    }
