"""Plans for the memory of a step as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.advice.words import describe
from perfscope.dashboards.reports.advice_plan_rows import shown_code
from perfscope.dashboards.reports.advice_verified_rows import verified_data
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.advice.plans import Plan, Plans
    from perfscope.dashboards.reports.advice_plan_rows import PlansView

SCHEMA = "perfscope.advice.memory/1"


def render(view: PlansView) -> str:
    """The document as text."""
    return json.dumps(document(view), indent=2) + "\n"


def document(view: PlansView) -> dict[str, Any]:
    """All of it: bytes and nanoseconds as integers, ``None`` for what is not known."""
    plans = view.plans
    model = plans.model
    return {
        "schema": SCHEMA,
        "subject": view.subject,
        "memory": sanitize(model.label),
        "basis": "modelled",
        "op_times": model.basis,
        "budget_bytes": plans.budget_bytes,
        "budget_from": plans.budget_from,
        "measured_peak_bytes": model.measured_peak_bytes,
        "step_ns": model.step_ns,
        "parameter_bytes": model.parameter_bytes,
        "gradient_bytes": model.gradient_bytes,
        "optimizer_bytes": model.optimizer_bytes,
        "other_bytes": model.other_bytes,
        "reserve_share": model.reserve_share,
        "plans_looked_at": plans.looked_at,
        "complete": plans.complete,
        "today": _plan(plans, plans.today),
        "recommended": None if plans.recommended is None else _plan(plans, plans.recommended),
        "front": [_plan(plans, plan) for plan in plans.front],
        "verified": verified_data(model, view.verified),
        "notes": list(view.notes),
    }


def _plan(plans: Plans, plan: Plan) -> dict[str, Any]:
    model, step = plans.model, plans.step_ns(plan)
    return {
        "plan": sanitize(describe(model, plan)),
        "regions": [
            {"module": sanitize(region.name), "policy": policy}
            for region, policy in zip(model.regions, plan.policies, strict=True)
            if policy != "keep"
        ],
        "zero_level": plan.placement.level,
        "devices": plan.placement.devices,
        "optimizer_on_host": plan.placement.optimizer_on_host,
        "peak_bytes": plan.peak_bytes,
        "needs_bytes": plans.needs(plan),
        "fits": plans.fits(plan),
        "peak_in": plan.simulation.part,
        "peak_region": None if plan.simulation.region is None else sanitize(model.regions[plan.simulation.region].name),
        "recompute_ns": plan.simulation.recompute_ns,
        "stored_ns": plan.simulation.stored_ns,
        "host_bytes": plan.transfer.host_bytes,
        "between_bytes": plan.transfer.between_bytes,
        "added_low_ns": plan.added_low_ns,
        "added_high_ns": plan.added_high_ns,
        "step_low_ns": None if step is None else step[0],
        "step_high_ns": None if step is None else step[1],
        "code": list(shown_code(model, plan)),
    }
