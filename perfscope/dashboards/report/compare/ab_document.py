"""The result of an A/B as a document ``perfscope.compare/1``: verdicts of launches, cause of their profiled sisters."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare.ab.profiles import Profiles
from perfscope.dashboards.report.compare import json
from perfscope.dashboards.report.compare.wording import percent, said_of
from perfscope.model.documents.ab import WORKTREES_PREFIX
from perfscope.model.environment import redact
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.analyzers.compare.ab.judge import AbResult
    from perfscope.analyzers.compare.runs.comparison import Comparison
    from perfscope.analyzers.compare.runs.many import KernelChange
    from perfscope.analyzers.compare.statistics.verdict import MetricResult
    from perfscope.model.documents.ab import AbPlan

KIND = "launches in turns"

MOST_KERNELS = 200
"""Rows of kernels that are written: those that contribute most."""

PROFILED_LONGER = 1.1
"""A profiled step that takes this many times the plain one has the profiler in it; below, chance makes as much."""

_WORKTREE = re.compile(rf"[^\s\"'(),:]*/{re.escape(WORKTREES_PREFIX)}[A-Za-z0-9_]+/(?:base|head)/")
"""What paths of a worktree begin with: it is gone, and the rest is the path in the repository."""

_NO_CAUSE = "cause (step in parts, findings, exact metrics)"


def document(
    result: AbResult, plan: AbPlan, profiles: Profiles, *, failed: Sequence[str] = (), gates: Sequence[str] = ()
) -> dict[str, Any]:
    """The document as plain dicts and lists, secrets masked; of paths in a worktree what git calls them is left.

    ``gates``: what ``--fail-on`` asked for; ``failed``: which of it was not met, in words.
    """
    found = profiles.comparison
    held = _nothing() if found is None else json.document(found)
    gating = [one.to_json() | {"places": []} for one in result.gating]
    exact = [one for one in held["metrics"] if one["gates"]]
    single = [one for one in held["metrics"] if not one["gates"]]
    judged = list(result.gating)
    if found is not None:
        judged += [one.result for one in found.exact if not one.neutral]
    headline = verdict_over(judged)
    held |= {
        "headline": headline,
        "summary": f"{headline}: {said_of(judged)}",
        "failed": list(failed),
        "gates": list(gates),
        "metrics": [*gating, *exact],
        "beside": [*(one.to_json() | {"gates": False, "places": []} for one in result.beside), *map(_profiled, single)],
        "kernels": [_kernel(one) for one in profiles.kernels[:MOST_KERNELS]],
        "not_looked": [*held["not_looked"], *_lost(plan, profiles)],
        "notes": [*held["notes"], *two_changes(result.step, found)],
        "method": _method(result, plan, profiles),
    }
    for side, ref, commit in (("base", plan.base_ref, plan.base), ("head", plan.head_ref, plan.head)):
        held[side] = {**held[side], "paths": [f"{ref} ({commit[:12]})"]}
    return _in_the_repository(sanitize_value(held))  # type: ignore[no-any-return]


def verdict_over(metrics: Sequence[MetricResult]) -> str:
    """Of what may fail a build: a regression of any, an improvement of any; else what is said of the step, the first.

    A fingerprint that differs says neither.
    """
    said = [one.verdict for one in metrics if one.unit != "text"]
    return next((word for word in ("regression", "improvement") if word in said), said[0] if said else "inconclusive")


def two_changes(step: MetricResult, found: Comparison | None) -> Iterator[str]:
    """What the profiled step has to do with the measured one, where both are known."""
    if found is None or found.time is None or step.effect is None:
        return
    profiled = found.time.median
    if profiled.per != "step" or not profiled.base_ns:
        return
    said = (
        f"the step itself changed by {percent(step.effect)} ({step.pairs} pairs of launches without a profiler), that "
        f"of the profiled launches by {percent(profiled.share)} (one pair): the verdict is about the first, the parts "
        "sum to the second"
    )
    plain = step.base if isinstance(step.base, int | float) else None
    longer = profiled.base_ns / plain if plain else 1.0
    if longer > PROFILED_LONGER and plain:
        said += (
            f". A profiler adds time to each op, so its base step is {longer:.1f} times as long "
            f"({format_ns(profiled.base_ns)} for {format_ns(plain)}): what is many small ops looks larger there"
        )
    else:
        said += ". One launch each has a memory layout, clocks and neighbours of its own"
    yield said


def _nothing() -> dict[str, Any]:
    """The keys of a comparison where nothing was recorded."""
    side = {"paths": [], "formats": [], "kind": "launches", "ranks": 0, "devices": []}
    empty: dict[str, Any] = {key: [] for key in ("metrics", "causes", "ranks", "findings", "not_looked", "notes")}
    return {"schema": json.SCHEMA, "base": side, "head": side, "step": None, "worst_rank": None, **empty}


def _profiled(metric: dict[str, Any]) -> dict[str, Any]:
    """The time of the profiled pair: shown, and called what it is."""
    name = metric["name"]
    return metric if "profiled" in name else {**metric, "name": f"{name} (profiled launches)"}


def _kernel(one: KernelChange) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "base_ns": one.base,
        "head_ns": one.head,
        "change_ns": one.change,
        "effect": one.effect,
        "p": one.p,
        "q": one.q,
        "verdict": one.verdict,
    }


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
    step = result.step
    return {
        "kind": KIND,
        "base_ref": plan.base_ref,
        "base_commit": plan.base,
        "head_ref": plan.head_ref,
        "head_commit": plan.head,
        "command": list(redact(("-m", *plan.command) if plan.kind == "module" else plan.command)),
        "pairs": result.pairs,
        "confirming_pairs": result.confirming,
        "profiled": profiles.used,
        "estimator": result.estimator.reason(),
        "least": plan.least,
        "seed": plan.seed,
        "level": step.level,
        "launches": [asdict(one) for one in result.launches],
        "remarks": list(result.remarks),
        "environment": dict(result.environment),
    }


def _in_the_repository(value: Any) -> Any:
    """The value with paths of a worktree as git calls them."""
    if isinstance(value, str):
        return _WORKTREE.sub("", value)
    if isinstance(value, dict):
        return {key: _in_the_repository(held) for key, held in value.items()}
    return [_in_the_repository(held) for held in value] if isinstance(value, list) else value
