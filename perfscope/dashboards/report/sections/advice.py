"""Plans for the memory of a step, as the words and numbers that every report of them shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.checkpointing.wording import code_for, describe
from perfscope.model.units import format_bytes, format_count, format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.checkpointing.plans import Plan, Plans
    from perfscope.analyzers.checkpointing.step_model import StepModel
    from perfscope.analyzers.checkpointing.verified import VerifiedPlan


UNHURRIED_NS = 1_000
"""Changes of a step below it are none: no clock of a step is that steady."""

ONE_NUMBER = 0.02
"""Of what a plan adds: a range that is narrower is shown as its worst case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One plan in words."""

    number: int
    words: str
    peak: str
    change: str
    """Of the peak against today's."""
    step: str
    """Predicted, at best and at worst; ``-`` where today's is not known."""
    added: str
    """Of the step against today's."""
    fits: str
    recommended: bool
    today: bool
    share: float
    """Of the largest peak in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansView:
    """All that a report shows."""

    plans: Plans
    subject: str
    headline: str
    facts: tuple[str, ...]
    rows: tuple[PlanRow, ...]
    verdict: str
    """The recommended plan, or why there is none."""
    code: tuple[str, ...]
    notes: tuple[str, ...]
    """What is modelled, and what could not be looked at."""
    verified: tuple[VerifiedPlan, ...] | None = None
    """Plans that were compiled to see; ``None``: nobody asked for it."""


def plans_view(
    plans: Plans,
    subject: str,
    unseen: tuple[str, ...] = (),
    others: int = 0,
    verified: tuple[VerifiedPlan, ...] | None = None,
) -> PlansView:
    """What to show of ``plans`` of the step ``subject``.

    ``others``: steps with a lower peak that have no plans; ``verified``: plans that were compiled.
    """
    model = plans.model
    shown_plans = plans.front if any(_same(plan, plans.today) for plan in plans.front) else (plans.today, *plans.front)
    largest = max(plan.peak_bytes for plan in shown_plans)
    rows = tuple(_row(plans, plan, number, largest) for number, plan in enumerate(shown_plans, 1))
    chosen = plans.recommended
    return PlansView(
        plans=plans,
        subject=sanitize(subject),
        headline=f"memory of {sanitize(model.label)}, {sanitize(subject)}",
        facts=tuple(_facts(plans)),
        rows=rows,
        verdict=_verdict(plans),
        code=() if chosen is None else shown_code(model, chosen),
        notes=tuple(sanitize(note, TEXT_LIMIT) for note in _notes(plans, unseen, others)),
        verified=verified,
    )


def shown_code(model: StepModel, plan: Plan) -> tuple[str, ...]:
    """The lines to write, fit to show; they keep their indentation."""
    return tuple(line[: len(line) - len(line.lstrip())] + sanitize(line) for line in code_for(model, plan))


def _same(plan: Plan, other: Plan) -> bool:
    return (
        plan.policies == other.policies
        and plan.placement.level == other.placement.level == 0
        and (not plan.placement.optimizer_on_host)
    )


def _row(plans: Plans, plan: Plan, number: int, largest: int) -> PlanRow:
    fits = plans.fits(plan)
    today = _same(plan, plans.today)
    return PlanRow(
        number=number,
        words=sanitize(describe(plans.model, plan)),
        peak=format_bytes(plan.peak_bytes),
        change="" if today else signed_share(plan.peak_bytes - plans.today.peak_bytes, plans.today.peak_bytes),
        step=step_words(plans, plan),
        added="" if today else added_words(plan),
        fits="" if fits is None else "fits" if fits else "no",
        recommended=plan is plans.recommended,
        today=today,
        share=plan.peak_bytes / largest if largest else 0.0,
    )


def signed_share(part: int, whole: int) -> str:
    """``-42.1%``, ``+3.0%``."""
    text = format_share(part, whole)
    return text if part < 0 or not whole else f"+{text}"


def step_words(plans: Plans, plan: Plan) -> str:
    """``212 ms``, ``212 ms to 260 ms``, ``212 ms or more``."""
    step = plans.step_ns(plan)
    if step is None:
        return "-"
    return _range(format_ns(step[0]), None if step[1] is None else format_ns(step[1]))


def added_words(plan: Plan) -> str:
    """What a plan adds to the step: ``+14.4 ms``, ``+0 to +3.1 ms``."""
    high = None if plan.added_high_ns is None else signed_time(plan.added_high_ns)
    if plan.added_high_ns is not None and plan.added_high_ns - plan.added_low_ns < ONE_NUMBER * abs(plan.added_high_ns):
        return signed_time(plan.added_high_ns)
    return _range(signed_time(plan.added_low_ns), high)


def signed_time(value: int) -> str:
    """``+14.4 ms``, ``-3.1 ms``, ``+0``."""
    if abs(value) < UNHURRIED_NS:
        return "+0"
    return format_ns(value) if value < 0 else f"+{format_ns(value)}"


def _range(low: str, high: str | None) -> str:
    if high is None:
        return f"{low} or more"
    return low if low == high else f"{low} to {high}"


def _facts(plans: Plans) -> list[str]:
    model, today = plans.model, plans.today
    measured = model.measured_peak_bytes
    facts = []
    if measured and model.framework == "jax":
        facts.append(f"peak today {format_bytes(measured)} (assigned by XLA)")
    elif measured:
        off = signed_share(today.peak_bytes - measured, measured)
        facts.append(
            f"peak today {format_bytes(measured)} (measured); the model of the step says "
            f"{format_bytes(today.peak_bytes)} ({off})"
        )
    else:
        facts.append(f"peak today {format_bytes(today.peak_bytes)} (modelled; no allocator was watched)")
    held = [
        (model.parameter_bytes, "parameters"),
        (model.optimizer_bytes, "optimizer state"),
        (model.gradient_bytes, "gradients"),
        (model.other_bytes, "others held all of the step"),
    ]
    text = ", ".join(f"{words} {format_bytes(size)}" for size, words in held if size)
    rest = today.peak_bytes - sum(size for size, _ in held)
    facts.append(f"{text or 'no state'}; about {format_bytes(max(0, rest))} of the peak is activations and temporaries")
    if plans.budget_bytes is not None:
        whose = "asked"
        if plans.budget_from == "device" and model.capacity_bytes:
            share = format_share(plans.budget_bytes, model.capacity_bytes)
            whose = f"{share} of the device's {format_bytes(model.capacity_bytes)}: the rest is not the allocator's"
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
            f"{sanitize(describe(plans.model, lowest))}. {_further(plans)}"
        )
    if _same(chosen, plans.today):
        return "Change nothing: today's step fits the budget, and no quicker plan does."
    added = added_words(chosen)
    return (
        f"{sanitize(describe(plans.model, chosen))}: {format_bytes(chosen.peak_bytes)} at the peak, {added} a step"
        + ("" if plans.model.step_ns is None else f" (step {step_words(plans, chosen)})")
    )


def _further(plans: Plans) -> str:
    model = plans.model
    if plans.links.between is None and model.world_size == 1 and not model.sharded:
        return "A smaller batch a device, or --devices N to divide what every device holds."
    return "A smaller batch a device, or more devices."


def _notes(plans: Plans, unseen: tuple[str, ...], others: int) -> list[str]:
    model = plans.model
    costs = {
        "measured": "what recomputing costs is the measured time of the ops that run again",
        "modelled": "what recomputing costs is priced by the peaks of the device, and so is what keeping costs in a "
        "loop over layers",
        "structural": "what recomputing costs is not known",
    }
    notes = [
        f"Modelled, but for what is said to be measured: live bytes of every plan are simulated; {costs[model.basis]}."
    ]
    if any(plan.transfer.between_bytes or plan.transfer.host_bytes for plan in plans.front):
        notes.append(f"Transfers: none of it hidden at worst, all at best; {_rates(plans)}.")
    if any(plan.placement.optimizer_on_host for plan in plans.front):
        notes.append("The update of an optimizer on the host takes time there that is not in it.")
    if model.reserve_share is None:
        if not model.on_host:
            notes.append("What the allocator reserves beyond live bytes was not recorded: leave room for it.")
    elif model.reserve_share:
        notes.append(
            f"To fit, a plan must leave room for the {format_share(model.reserve_share, 1)} that the allocator held "
            "beyond today's peak."
        )
    if model.on_host and model.framework == "torch" and any("selective" in plan.policies for plan in plans.front):
        notes.append("A selective policy runs Python for every op of its modules, on the host: that time is not in it.")
    if model.on_host:
        notes.append("The program ran in host memory: offloading to it was not looked at.")
        if plans.links.between is not None and model.device_name is None:
            notes.append("The times of ops are those of the host that ran them; of the device named only links count.")
    if model.sharded:
        notes.append("Parameters are divided among devices already: dividing them further was not looked at.")
    elif max(model.world_size, plans.today.placement.devices) == 1 and not any(p.placement.level for p in plans.front):
        notes.append("Dividing state among devices was not looked at, or gains nothing: --devices N asks for it.")
    if not model.regions:
        notes.append("No module or layer of the step could be told apart: there is nothing to checkpoint.")
    if not plans.complete:
        notes.append(f"Not every choice of layers was tried: {plans.looked_at:,} plans were.")
    notes += [f"{note[:1].upper()}{note[1:]}." for note in model.notes]
    if others:
        notes.append(f"{others} more steps of this recording have a lower peak and are not shown.")
    return [*notes, *(f"Not looked at: {text}" for text in unseen)]


def _rates(plans: Plans) -> str:
    links = plans.links
    said = []
    if links.between is not None:
        said.append(f"{links.between_name} {format_bytes(links.between)}/s between devices")
    if links.to_host is not None:
        said.append(f"{links.to_host_name} {format_bytes(links.to_host)}/s to the host")
    return "; ".join(said) or "no bandwidth is known (--device NAME names the device)"


# Plans that were compiled to see how good their predictions are, in words and as plain data.


COLUMNS = ("plan", "--checkpoint", "peak predicted", "compiled", "error", "FLOPs again, predicted", "as compiled")
NOTE = (
    "Peaks as predicted (modelled) and as XLA assigned them to the program compiled with the policy; FLOPs that run "
    "again are counted in either program. Nothing ran."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRow:
    """One plan."""

    cells: tuple[str, ...]
    """By `COLUMNS`."""
    reason: str
    """Why there is no compiled program; empty where there is one."""


def verified_rows(model: StepModel, plans: Sequence[VerifiedPlan]) -> tuple[VerifiedRow, ...]:
    """A row for each plan, as given."""
    return tuple(_row_advice_verified_rows(model, plan) for plan in plans)


def verified_data(model: StepModel, plans: Sequence[VerifiedPlan] | None) -> list[dict[str, Any]] | None:
    """For JSON: bytes and FLOPs as integers, ``None`` for what is not known."""
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


def _row_advice_verified_rows(model: StepModel, plan: VerifiedPlan) -> VerifiedRow:
    cells = (
        sanitize(describe(model, plan.plan)),
        plan.checkpoint or "-",
        format_bytes(plan.predicted_peak_bytes),
        "-" if plan.compiled_peak_bytes is None else format_bytes(plan.compiled_peak_bytes),
        "-" if plan.error is None else f"{plan.error:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%"),
        _flops(plan.predicted_recompute_flops),
        _flops(plan.compiled_recompute_flops),
    )
    return VerifiedRow(cells=cells, reason=sanitize(plan.reason, TEXT_LIMIT))


def _flops(number: int | None) -> str:
    return "-" if number is None else format_count(number)
