"""Plans of PyTorch programs in the JSON report: counts and bytes exact, times modelled as ``{low, high}`` in ns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.plan_section import PlanSection, PlanSummary


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
