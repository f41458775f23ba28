"""Plans for the memory of a step: the recommended plan, the other useful plans, and how they were computed."""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perfscope.dashboards.report.blocks import (
    Badge,
    Block,
    Code,
    Column,
    Dot,
    Listing,
    Marked,
    Plot,
    Range,
    Report,
    Section,
    notes,
    table,
)
from perfscope.dashboards.report.charts import FITS, TOO_MUCH, peaks_plot
from perfscope.dashboards.report.renderers.html import report_html
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.dashboards.report.renderers.values import number_text, percent
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, sanitize_value
from perfscope.plugins.memory_advice.wording import code_for, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.report.blocks import Value
    from perfscope.model.results import Unit
    from perfscope.plugins.memory_advice.plans import Plan, Plans
    from perfscope.plugins.memory_advice.step_model import StepModel
    from perfscope.plugins.memory_advice.verified import VerifiedPlan

SCHEMA = "perfscope.advice.memory/1"

UNHURRIED_NS = 1_000
"""Smaller changes of a step, ns, count as no change: clocks of a step are not steadier than this."""

ONE_NUMBER = 0.02
"""Relative width below which the time that a plan adds is shown as its worst case instead of a range."""

CAPTION = (
    "Predicted: the peak upwards, what a plan adds to the step to the right. A bar reaches from all transfers hidden "
    "to none; grey plans do not fit."
)
VERIFIED_NOTE = (
    "peaks as predicted (modelled) and as XLA assigned them to the program compiled with the policy; FLOPs that run "
    "again are counted in either program; nothing ran"
)


class PlansReport(Struct, frozen=True, kw_only=True):
    """Plans of a step, with the other facts that a report shows."""

    plans: Plans
    subject: str
    notes: tuple[str, ...]
    """Notes on modelled values and on parts that could not be analysed."""
    verified: tuple[VerifiedPlan, ...] | None = None
    """Plans that were compiled for verification; ``None`` if verification was not requested."""

    def rows(self) -> tuple[Plan, ...]:
        """The useful plans, including today's."""
        plans = self.plans
        return plans.front if any(_same(plan, plans.today) for plan in plans.front) else (plans.today, *plans.front)


def plans_report(
    plans: Plans,
    subject: str,
    unseen: tuple[str, ...] = (),
    others: int = 0,
    verified: tuple[VerifiedPlan, ...] | None = None,
) -> PlansReport:
    """Build the report on ``plans`` of the step ``subject``.

    ``others``: steps with a lower peak that have no plans; ``verified``: plans that were compiled.
    """
    notes = tuple(sanitize(note, TEXT_LIMIT) for note in _notes(plans, unseen, others))
    return PlansReport(plans=plans, subject=sanitize(subject), notes=notes, verified=verified)


def render_text(report: PlansReport, *, width: int = WIDTH, color: bool = False) -> str:
    """Return the plans as text of ``width`` columns."""
    return report_text(_report(report), width=width, color=color)


def render_html(report: PlansReport) -> str:
    """Return the plans as one page."""
    return report_html(_report(report), data_id="perfscope-advice", data=render_json(report))


def render_json(report: PlansReport) -> str:
    """Return the document as JSON text."""
    return json.dumps(document(report), indent=2) + "\n"


def _report(report: PlansReport) -> Report:
    model = report.plans.model
    facts = tuple(_facts(report.plans))
    return Report(
        headline=f"memory of {model.label}, {report.subject}", facts=facts, sections=tuple(plan_sections(report))
    )


def plan_sections(report: PlansReport) -> Iterator[Section]:
    """The recommendation, the plans, the compiled plans, and how the numbers were computed."""
    plans = report.plans
    code = () if plans.recommended is None else tuple(code_for(plans.model, plans.recommended))
    yield Section(title="Do", summary=_verdict(plans), blocks=(Code(code),) if code else ())
    rows = report.rows()
    yield Section(
        title="Plans worth having (predicted)",
        blocks=(_picture(report, rows), table(tuple(_columns(plans)), rows, few=len(rows))),
    )
    yield from _verified(report)
    yield Section(title="How it is known", blocks=(Listing(items=report.notes, few=len(report.notes)),))


def _columns(plans: Plans) -> Iterator[Column[Plan]]:
    today = plans.today.peak_bytes
    yield Column("", lambda plan: _badge(plans, plan))
    yield Column("peak", lambda plan: plan.peak_bytes, "bytes")
    if today:
        yield Column("change", lambda plan: _unless_today(plans, plan, plan.peak_bytes / today - 1), "change", drop=2)
    yield Column("step", lambda plan: _step(plans, plan), "ns", drop=1)
    yield Column("added", lambda plan: _unless_today(plans, plan, _added(plan)), "signed_ns")
    if plans.budget_bytes is not None:
        yield Column("budget", lambda plan: "fits" if plans.fits(plan) else "no")
    yield Column("plan", lambda plan: describe(plans.model, plan))


def _badge(plans: Plans, plan: Plan) -> Badge | None:
    words = ["today"] if _same(plan, plans.today) else []
    if plan is plans.recommended:
        return Badge(", ".join(["recommended", *words]), "better")
    return Badge("today") if words else None


def _unless_today(plans: Plans, plan: Plan, value: Value) -> Value:
    return None if _same(plan, plans.today) else value


def _step(plans: Plans, plan: Plan) -> Value:
    step = plans.step_ns(plan)
    return None if step is None else Marked(step[0], ">=") if step[1] is None else Range(step[0], step[1])


def _added(plan: Plan) -> Value:
    """Time that a plan adds to the step, from best to worst case."""
    low, high = _steady(plan.added_low_ns), plan.added_high_ns
    if high is None:
        return Marked(low, ">=")
    return _steady(high) if high - plan.added_low_ns < ONE_NUMBER * abs(high) else Range(low, _steady(high))


def _steady(value: int) -> int:
    return 0 if abs(value) < UNHURRIED_NS else value


def _words(value: Value, unit: Unit) -> str:
    return number_text(value, unit) if isinstance(value, int | Range | Marked) else "-"


def _picture(report: PlansReport, rows: Sequence[Plan]) -> Plot:
    plans = report.plans
    limits = [] if plans.budget_bytes is None else [(float(plans.budget_bytes), "budget")]
    tallest = max(plan.peak_bytes for plan in rows)
    last = max(plan.added_low_ns if plan.added_high_ns is None else plan.added_high_ns for plan in rows)
    dots = [
        Dot(
            x=last if plan.added_high_ns is None else plan.added_high_ns,
            low=plan.added_low_ns,
            high=inf if plan.added_high_ns is None else plan.added_high_ns,
            y=plan.peak_bytes,
            title=f"{describe(plans.model, plan)}: {format_bytes(plan.peak_bytes)}, "
            f"{_words(_added(plan), 'signed_ns')}",
            color=TOO_MUCH if plans.fits(plan) is False else FITS,
            ring=plan is plans.recommended,
            label="today" if _same(plan, plans.today) else "recommended" if plan is plans.recommended else "",
        )
        for plan in rows
    ]
    words = f"{len(dots)} plans: peak of memory against time added to the step; the table has the numbers"
    shown = [limit for limit in limits if limit[0] <= 2 * tallest]
    return peaks_plot(dots, (), shown, logarithmic=False, words=words, note=CAPTION)


def _verified(report: PlansReport) -> Iterator[Section]:
    """Plans that were compiled, if verification was requested."""
    if report.verified is None:
        return
    if not report.verified:
        yield Section(title="Verified", summary="nothing to verify: no plan but today's")
        return
    model = report.plans.model
    columns: tuple[Column[VerifiedPlan], ...] = (
        Column("plan", lambda plan: describe(model, plan.plan)),
        Column("--checkpoint", lambda plan: plan.checkpoint, "code"),
        Column("peak predicted", lambda plan: plan.predicted_peak_bytes, "bytes"),
        Column("compiled", lambda plan: plan.compiled_peak_bytes, "bytes"),
        Column("error", lambda plan: plan.error, "change"),
        Column("FLOPs again, predicted", lambda plan: plan.predicted_recompute_flops, "quantity", drop=1),
        Column("as compiled", lambda plan: plan.compiled_recompute_flops, "quantity", drop=1),
    )
    reasons = (f"not compiled: {describe(model, plan.plan)}: {plan.reason}" for plan in report.verified if plan.reason)
    blocks: tuple[Block, ...] = (
        table(columns, report.verified, few=len(report.verified)),
        *notes(*reasons, VERIFIED_NOTE),
    )
    yield Section(title="Verified", blocks=blocks)


def _same(plan: Plan, other: Plan) -> bool:
    return (
        plan.policies == other.policies
        and plan.placement.level == other.placement.level == 0
        and (not plan.placement.optimizer_on_host)
    )


def _facts(plans: Plans) -> list[str]:
    model, today = plans.model, plans.today
    measured = model.measured_peak_bytes
    facts = []
    if measured and model.framework == "jax":
        facts.append(f"peak today {format_bytes(measured)} (assigned by XLA)")
    elif measured:
        off = percent(today.peak_bytes / measured - 1)
        facts.append(
            f"peak today {format_bytes(measured)} (measured), by the model of the step "
            f"{format_bytes(today.peak_bytes)} ({off})"
        )
    else:
        facts.append(f"peak today {format_bytes(today.peak_bytes)} (modelled; no allocator was watched)")
    held = [
        (model.parameter_bytes, "parameters"),
        (model.optimizer_bytes, "optimizer state"),
        (model.gradient_bytes, "gradients"),
        (model.other_bytes, "others held all through the step"),
    ]
    text = ", ".join(f"{words} {format_bytes(size)}" for size, words in held if size)
    rest = today.peak_bytes - sum(size for size, _ in held)
    facts.append(f"{text or 'no state'}; about {format_bytes(max(0, rest))} of the peak is activations and temporaries")
    if plans.budget_bytes is not None:
        whose = "given"
        if plans.budget_from == "device" and model.capacity_bytes:
            share = format_share(plans.budget_bytes, model.capacity_bytes)
            whose = f"{share} of the device's {format_bytes(model.capacity_bytes)}; the allocator cannot use the rest"
        facts.append(f"budget {format_bytes(plans.budget_bytes)} ({whose})")
    return facts


def _verdict(plans: Plans) -> str:
    chosen = plans.recommended
    if plans.budget_bytes is None:
        return "No budget: give --budget to have a plan recommended."
    if chosen is None:
        lowest = min(plans.front, key=lambda plan: plan.peak_bytes)
        return (
            f"Nothing fits. The lowest peak is {format_bytes(lowest.peak_bytes)}: "
            f"{describe(plans.model, lowest)}. {_further(plans)}"
        )
    if _same(chosen, plans.today):
        return "Change nothing: today's step fits the budget, and no faster plan does."
    added = _words(_added(chosen), "signed_ns")
    return f"{describe(plans.model, chosen)}: {format_bytes(chosen.peak_bytes)} at the peak, {added} per step" + (
        "" if plans.model.step_ns is None else f" (step {_words(_step(plans, chosen), 'ns')})"
    )


def _further(plans: Plans) -> str:
    model = plans.model
    if plans.links.between is None and model.world_size == 1 and not model.sharded:
        return "A smaller batch per device, or --devices N to divide what every device holds."
    return "A smaller batch per device, or more devices."


def _notes(plans: Plans, unseen: tuple[str, ...], others: int) -> list[str]:
    model = plans.model
    costs = {
        "measured": "the cost of recomputing is the measured time of the ops that run again",
        "modelled": "the costs of recomputing, and of keeping values in a loop over layers, are computed from the "
        "device's peaks",
        "structural": "the cost of recomputing is unknown",
    }
    notes = [f"Modelled unless marked as measured: live bytes of every plan are simulated; {costs[model.basis]}."]
    if any(plan.transfer.between_bytes or plan.transfer.host_bytes for plan in plans.front):
        notes.append(f"Transfers: at worst none is hidden, at best all; {_rates(plans)}.")
    if any(plan.placement.optimizer_on_host for plan in plans.front):
        notes.append("The update of an optimizer on the host takes time there that is not in it.")
    if model.reserve_share is None:
        if not model.on_host:
            notes.append(
                "The memory that the allocator reserves beyond live bytes was not recorded; leave room for it."
            )
    elif model.reserve_share:
        notes.append(
            f"To fit, a plan must leave room for the {format_share(model.reserve_share, 1)} that the allocator held "
            "beyond today's peak."
        )
    if model.on_host and model.framework == "torch" and any("selective" in plan.policies for plan in plans.front):
        notes.append("A selective policy runs Python for every op of its modules, on the host: that time is not in it.")
    if model.on_host:
        notes.append("The program ran in host memory: offloading to it was not considered.")
        if plans.links.between is not None and model.device_name is None:
            notes.append("The times of ops are those of the host that ran them; of the device named only links count.")
    if model.sharded:
        notes.append("Parameters are divided among devices already: dividing them further was not considered.")
    elif max(model.world_size, plans.today.placement.devices) == 1 and not any(p.placement.level for p in plans.front):
        notes.append("Dividing state among devices was not considered or gains nothing; request it with --devices N.")
    if not model.regions:
        notes.append("No module or layer of the step could be identified, so there is nothing to checkpoint.")
    if not plans.complete:
        notes.append(f"Not every choice of layers was tried: {plans.looked_at:,} plans were.")
    notes += [f"{note[:1].upper()}{note[1:]}." for note in model.notes]
    if others:
        notes.append(f"{others} more steps of this recording have a lower peak and are not shown.")
    return [*notes, *(f"Not considered: {text}" for text in unseen)]


def _rates(plans: Plans) -> str:
    links = plans.links
    notes = []
    if links.between is not None:
        notes.append(f"{links.between_name} {format_bytes(links.between)}/s between devices")
    if links.to_host is not None:
        notes.append(f"{links.to_host_name} {format_bytes(links.to_host)}/s to the host")
    return "; ".join(notes) or "no bandwidth is known (--device NAME names the device)"


def document(report: PlansReport) -> dict[str, Any]:
    """The report as plain values: bytes and nanoseconds as integers, ``None`` for unknown values."""
    plans = report.plans
    model = plans.model
    return {
        "schema": SCHEMA,
        "subject": report.subject,
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
        "verified": _verified_data(model, report.verified),
        "notes": list(report.notes),
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
        "code": sanitize_value(code_for(model, plan)),
    }


def _verified_data(model: StepModel, plans: Sequence[VerifiedPlan] | None) -> list[dict[str, Any]] | None:
    """Verified plans as plain values: bytes and FLOPs as integers, ``None`` for unknown values."""
    if plans is None:
        return None
    return [
        {
            "plan": sanitize(describe(model, plan.plan)),
            "checkpoint": plan.checkpoint,
            "predicted_peak_bytes": plan.predicted_peak_bytes,
            "compiled_peak_bytes": plan.compiled_peak_bytes,
            "error": None if plan.error is None else round(plan.error, 6),
            "predicted_recompute_flops": plan.predicted_recompute_flops,
            "compiled_recompute_flops": plan.compiled_recompute_flops,
            "folder": sanitize(plan.folder),
            "kept": plan.kept,
            "reason": sanitize(plan.reason, TEXT_LIMIT),
        }
        for plan in plans
    ]
