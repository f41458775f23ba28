"""A comparison as JSON, ``perfscope.compare/1`` (docs/compare.md); all other report formats are made from it.

Times are integer nanoseconds per step. Within a schema version keys are only added; readers ignore unknown keys.
"""

from __future__ import annotations

import json
import math
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.analyzers.compare import (
    LEVEL_WORDS,
    UNITS,
    Cause,
    Key,
    MetricResult,
    PartChange,
    Profiles,
    ProgramChange,
    ProgramRow,
    Side,
    StepChange,
)
from perfscope.dashboards.report.compare.words import metrics_line, summary_line
from perfscope.dashboards.report.renderers.records import Shape, Shapes, plain
from perfscope.dashboards.report.renderers.values import percent
from perfscope.model.documents import comparison as types
from perfscope.model.documents.ab import WORKTREES_PREFIX
from perfscope.model.documents.causes import cause_words
from perfscope.model.documents.compared_findings import FindingChange
from perfscope.model.documents.comparison import SCHEMA
from perfscope.model.finding import Finding, FindingHead
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize_value, scrub_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from perfscope.analyzers.compare import AbResult, Amounts, Comparison, SetsComparison
    from perfscope.model.documents.ab import AbPlan


MOST_PARTS = 2_000
"""Most parts of a step that are written; the rest become one row, so that rows still sum to the whole."""

MOST_KEYS = 50
"""Most keys per side of a part: the first kernels identify a long fusion."""

MOST_ROWS = 2_000
"""Most rows of a program that are written; the rest become one row, so that rows still sum to the whole."""

MOST_WRITTEN = 500

AB_KIND = "launches in turns"

MOST_KERNELS = 200
"""Most rows of kernels that are written, largest contribution first."""

PROFILED_LONGER = 1.1
"""From this ratio of a profiled to a plain step the profiler's overhead is reported; a smaller ratio may be chance."""

_WORKTREE = re.compile(rf"(?<![^\s\"'(),:])[^\s\"'(),:]*/{re.escape(WORKTREES_PREFIX)}[A-Za-z0-9_]+/(?:base|head)/")
"""Prefix of paths in a temporary worktree; the rest of the path is the one in the repository."""

_NO_CAUSE = "cause (step in parts, findings, exact metrics)"

SETS_KIND = "sets of runs"


def render(comparison: Comparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> str:
    """Return the comparison as indented JSON text; ``failed``: sentences on the gates that were not met."""
    return as_text(document(comparison, failed=failed, gates=gates))


def as_text(values: dict[str, Any]) -> str:
    """Return a document as indented JSON text."""
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(comparison: Comparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> dict[str, Any]:
    """Return the comparison as plain dicts and lists: texts cleaned, secrets masked, home folders written as ``~``.

    ``gates``: values of ``--fail-on``; ``failed``: sentences on the gates that were not met.
    """
    time = comparison.time
    exact = [_plain(metric.result) | {"places": _plain(metric.places)} for metric in comparison.exact]
    parts = {
        "schema": SCHEMA,
        "headline": comparison.headline,
        "summary": f"{comparison.headline}: {summary_line(comparison)}",
        **{name: getattr(comparison, name) for name in types.Sides.__struct_fields__},
        "failed": failed,
        "gates": gates,
        "metrics": [*([] if comparison.step_time is None else [comparison.step_time]), *exact],
        "beside": [],
        "programs": comparison.programs,
        "causes": comparison.causes,
        "step": None if time is None else time.median,
        "worst_rank": None if time is None else time.worst,
        "ranks": [] if time is None else time.ranks,
        "kernels": [],
        "method": _single_captures(comparison),
    }
    result: dict[str, Any] = sanitize_value(_plain(parts))
    return result


def _single_captures(comparison: Comparison) -> dict[str, Any]:
    """Method of comparing one capture per side: no launches and no refs."""
    timed = comparison.step_time
    if timed is None:
        return _method_values(types.Method())
    return _method_values(types.Method(estimator=timed.estimator, least=timed.least, level=timed.level))


def _method_values(method: types.Method) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(method)
    return result


def _plain(value: Any) -> Any:
    return plain(value, SHAPES)


def _other_parts(step: StepChange) -> dict[str, int]:
    rest = step.parts[MOST_PARTS:]
    return {
        "count": len(rest),
        "base_ns": sum(part.base.ns for part in rest),
        "head_ns": sum(part.head.ns for part in rest),
    }


def _matched(part: PartChange) -> str | None:
    return None if part.level is None else LEVEL_WORDS[part.level]


def _cause_part(part: PartChange) -> dict[str, Any]:
    """A part of the step as the document of a cause has it."""
    key = part.key()
    return {
        "status": part.status,
        "name": key.name(),
        "phase": key.phase,
        "base_calls": _number(part.base.calls),
        "head_calls": _number(part.head.calls),
        "delta_ns": part.delta_ns,
        "base_ns": part.base.ns,
        "head_ns": part.head.ns,
        "matched": _matched(part),
        "counted": part.counts_differ,
        "base_names": _names(part.base),
        "head_names": _names(part.head),
    }


def _names(side: Side) -> list[str]:
    """Names of the keys on one side of a part."""
    return [key.name() for key in side.keys[:MOST_KEYS]]


def _cause_finding(change: FindingChange) -> dict[str, Any]:
    return {"rule": change.rule, "change": change.change, "subject": change.shown.subject, "by_time": change.by_time}


def _number(value: float | Fraction) -> float | int | None:
    """Write a whole number as an integer and a non-finite number as ``None``."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) else number


def _not_in(part: type[msgspec.Struct], record: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields of a record that its document leaves out."""
    return tuple(name for name in record.__struct_fields__ if name not in part.__struct_fields__)


# Compiled programs.


def _other_rows(change: ProgramChange) -> dict[str, Any]:
    rest = change.rows[MOST_ROWS:]
    sums = {name: (_sum(rest, name, 0), _sum(rest, name, 1)) for name in change.totals}
    return {"count": len(rest), "amounts": _amounts({name: both for name, both in sums.items() if both[0] != both[1]})}


def _sum(rows: Sequence[ProgramRow], name: str, side: int) -> int:
    return sum(row.amounts.get(name, (0, 0))[side] for row in rows)


def _amounts(amounts: Amounts) -> list[dict[str, Any]]:
    return [{"name": name, "unit": UNITS[name], "base": base, "head": head} for name, (base, head) in amounts.items()]


SHAPES: Shapes = {
    MetricResult: Shape(added={"gates": attrgetter("gates"), "places": lambda _: []}),
    types.CauseMetric: Shape(added={"base": lambda at: _number(at.base), "head": lambda at: _number(at.head)}),
    StepChange: Shape(
        left_out=("notes",),
        added={
            "delta_ns": attrgetter("delta_ns"),
            "by_kind": lambda step: {
                kind: dict(zip(("base_ns", "head_ns"), both, strict=True)) for kind, both in step.by_kind().items()
            },
            "parts": lambda step: step.parts[:MOST_PARTS],
            "other_parts": _other_parts,
        },
    ),
    PartChange: Shape(
        left_out=("level",),
        added={name: attrgetter(name) for name in ("cause", "status", "delta_ns", "count_ns", "each_ns")}
        | {
            "name": lambda part: part.key().name(),
            "place": lambda part: part.key().place(),
            "matched": _matched,
        },
    ),
    Side: Shape(
        left_out=("example",),
        added={
            "calls": lambda side: _number(side.calls),
            "keys": lambda side: side.keys[:MOST_KEYS],
            "keys_left": lambda side: max(0, len(side.keys) - MOST_KEYS),
        },
    ),
    Key: Shape(
        added={
            "line": lambda key: key.line if key.line >= 0 else None,
            "work": lambda key: cause_words(key.cause, on_host=False) if key.kind == "idle" else key.work,
            "name": lambda key: key.name(),
        }
    ),
    Cause: Shape(
        left_out=("weight",),
        added={
            "parts": lambda cause: [_cause_part(part) for part in cause.parts],
            "findings": lambda cause: [_cause_finding(change) for change in cause.findings],
        },
    ),
    Finding: Shape(left_out=_not_in(FindingHead, Finding)),
    ProgramChange: Shape(
        left_out=("totals", "modelled_ns", "lines", "failed"),
        added={
            "identical": attrgetter("identical"),
            "amounts": lambda change: _amounts(change.totals),
            "rows": lambda change: change.rows[:MOST_ROWS],
            "other_rows": _other_rows,
            "written": lambda change: None if change.written is None else change.written[:MOST_WRITTEN],
            "base_modelled": lambda change: change.modelled_ns and change.modelled_ns[0],
            "head_modelled": lambda change: change.modelled_ns and change.modelled_ns[1],
        },
    ),
    ProgramRow: Shape(
        left_out=("weight",),
        added={"amounts": lambda row: _amounts(row.amounts), "is_worse": attrgetter("is_worse")},
    ),
}
"""Per class: fields that are not written as they are."""


# The result of an A/B test as a ``perfscope.compare/1`` document: verdicts from unprofiled launches, causes from
# profiled ones.


def ab_document(
    result: AbResult, plan: AbPlan, profiles: Profiles, *, failed: Sequence[str] = (), gates: Sequence[str] = ()
) -> dict[str, Any]:
    """Return plain dicts and lists: secrets masked, worktree paths written as paths in the repository.

    ``gates``: values of ``--fail-on``; ``failed``: sentences on the gates that were not met.
    """
    comparison = profiles.comparison
    values = _nothing() if comparison is None else document(comparison)
    gating = _plain(result.gating)
    exact = [metric for metric in values["metrics"] if metric["gates"]]
    single = [metric for metric in values["metrics"] if not metric["gates"]]
    judged = list(result.gating)
    if comparison is not None:
        judged += [exact_metric.result for exact_metric in comparison.exact if not exact_metric.neutral]
    headline = verdict_over(judged)
    values |= {
        "headline": headline,
        "summary": f"{headline}: {metrics_line(judged)}",
        "failed": list(failed),
        "gates": list(gates),
        "metrics": [*gating, *exact],
        "beside": [*(_plain(metric) | {"gates": False} for metric in result.secondary), *map(_profiled, single)],
        "kernels": _plain(profiles.kernels[:MOST_KERNELS]),
        "not_looked": [*values["not_looked"], *_lost(plan, profiles)],
        "notes": [*values["notes"], *two_changes(result.step, comparison)],
        "method": _method(result, plan, profiles),
    }
    for side, ref, commit in (("base", plan.base_ref, plan.base), ("head", plan.head_ref, plan.head)):
        values[side] = {**values[side], "paths": [f"{ref} ({commit[:12]})"]}
    return _in_the_repository(sanitize_value(values))  # type: ignore[no-any-return]


def verdict_over(metrics: Sequence[MetricResult]) -> str:
    """Return the verdict over all gating metrics: a regression if any has one, else an improvement if any has one.

    Otherwise the first metric's verdict, which is the step's. Fingerprints (``unit == "text"``) are not considered.
    """
    verdicts = [metric.verdict for metric in metrics if metric.unit != "text"]
    return next(
        (word for word in ("regression", "improvement") if word in verdicts),
        verdicts[0] if verdicts else "inconclusive",
    )


def two_changes(step: MetricResult, comparison: Comparison | None) -> Iterator[str]:
    """Yield a sentence that relates the profiled step to the measured one, if both are known."""
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
            f"({format_ns(profiled.base_ns)} for {format_ns(plain)}): the profiler exaggerates code made of many small "
            "ops"
        )
    else:
        text += ". With one launch per side, memory layout, clock speed and other processes may explain the difference"
    yield text


def _nothing() -> dict[str, Any]:
    """The keys of a comparison in which nothing was recorded."""
    side = {"paths": [], "formats": [], "kind": "launches", "ranks": 0, "devices": []}
    empty: dict[str, Any] = {key: [] for key in ("metrics", "causes", "ranks", "findings", "not_looked", "notes")}
    return {"schema": SCHEMA, "base": side, "head": side, "step": None, "worst_rank": None, **empty}


def _profiled(metric: dict[str, Any]) -> dict[str, Any]:
    """The time of the profiled pair, with ``(profiled launches)`` in its name."""
    name = metric["name"]
    return metric if "profiled" in name else {**metric, "name": f"{name} (profiled launches)"}


def _lost(plan: AbPlan, profiles: Profiles) -> Iterator[dict[str, Any]]:
    """Yield the reasons why the cause is unknown, or known from part of the pairs only."""
    both = ["base", "head"]
    if not plan.profile:
        yield {"name": _NO_CAUSE, "reason": "no launch was profiled (--profile 0)", "sides": both}
    elif profiles.comparison is None:
        for reason in dict.fromkeys(profiles.lost) or ("no profiled pair is complete yet",):
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
    return _method_values(method) | {"launches": _plain(result.launches)}


def _in_the_repository(value: Any) -> Any:
    """Replace worktree paths in a value by their paths in the repository."""
    if isinstance(value, str):
        return _WORKTREE.sub("", value)
    if isinstance(value, dict):
        return {key: _in_the_repository(value) for key, value in value.items()}
    return [_in_the_repository(value) for value in value] if isinstance(value, list) else value


# A comparison of two sets of runs as a document ``perfscope.compare/1``.


def sets_document(sets: SetsComparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> dict[str, Any]:
    """Return plain dicts and lists, secrets masked; ``gates`` and ``failed`` as in ``document``."""
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
            "kernels": _plain(sets.kernels[:MOST_KERNELS]),
            "method": _method_values(method) | {"launches": _plain(sets.launches)},
        }
    )
    return document(sets.comparison, failed=failed, gates=gates) | added
