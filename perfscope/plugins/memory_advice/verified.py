"""Plans of a compiled JAX program compared with the program compiled with their policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.hlo import assigned_memory, program_label
from perfscope.model.trace import Trace
from perfscope.plugins.ahead import PolicyName
from perfscope.plugins.memory_advice.plans import Plan
from perfscope.plugins.memory_advice.simulate import Simulator, todays
from perfscope.plugins.memory_advice.step_model import Policy, StepModel
from perfscope.plugins.memory_advice.step_model_hlo import exact_notes, predicted_recompute, recomputed_flops

WORDS: dict[Policy, PolicyName] = {"keep": "none", "full": "full", "selective": "dots"}
"""A plan's policy -> its name for ``perfscope compile --checkpoint``."""


class VerifiedPlan(Struct, frozen=True, kw_only=True):
    """A plan with its prediction and XLA's result. Bytes of one device, FLOPs of one run."""

    plan: Plan
    checkpoint: PolicyName | None
    """None: ``--checkpoint`` cannot set it."""
    predicted_peak_bytes: int
    predicted_recompute_flops: int | None
    compiled_peak_bytes: int | None = None
    compiled_recompute_flops: int | None = None
    folder: str = ""
    """Run folder of the compiled program, relative to that of the run."""
    kept: bool = False
    """It had been compiled before."""
    reason: str = ""
    """Why it was not compiled."""

    @property
    def error(self) -> float | None:
        """Relative error of the predicted peak."""
        if self.compiled_peak_bytes is None:
            return None
        return self.predicted_peak_bytes / self.compiled_peak_bytes - 1


def setting(plan: Plan) -> tuple[PolicyName | None, str]:
    """The name of the policy that ``--checkpoint`` can set, or ``None`` with the reason why it cannot."""
    placement = plan.placement
    if placement.level or placement.optimizer_on_host:
        return None, "it divides or moves state, which no checkpoint policy does"
    policies = set(plan.policies)
    if len(policies) != 1:
        return None, "its layers have more than one policy"
    (policy,) = policies
    return (WORDS[policy], "") if policy in WORDS else (None, "offloading to the host cannot be set from outside")


def with_exact_peaks(model: StepModel, peaks: Mapping[Policy, int]) -> StepModel:
    """The model with peaks from the compiler in bytes, each with one policy for all layers, in place of estimates.

    The effect of a policy for some of the layers is interpolated between none and all of them. A policy that the layers
    cannot have is left out.
    """
    simulator = Simulator(model)
    count = len(model.regions)
    regions = list(model.regions)
    exact = []
    for policy, peak in peaks.items():
        if not all(region.offers(policy) for region in regions):
            continue
        exact.append(policy)
        shift = peak - simulator.run([policy] * count).peak_bytes
        for index, region in enumerate(regions):
            share = shift * (index + 1) // count - shift * index // count
            changes = tuple(
                (name, replace(change, spans=(*change.spans, (0, model.length, share))) if name == policy else change)
                for name, change in region.changes
            )
            regions[index] = replace(region, changes=changes)
    if not exact:
        return model
    others = {policy for policy in WORDS if all(region.offers(policy) and region.today != policy for region in regions)}
    notes = exact_notes(model.notes, complete=others <= set(exact))
    margin = 0.0 if others <= set(exact) else model.peak_margin
    return replace(model, regions=tuple(regions), notes=notes, peak_margin=margin)


def program_of(trace: Trace, label: str) -> int:
    """Number of the program of a step model; ``ValueError`` without one."""
    return [program_label(module, trace) for module in trace.hlo].index(label)


def compiled_step(trace: Trace, name: str) -> tuple[int, int] | None:
    """(peak in bytes, recomputed FLOPs) of a program by name, the one with the highest peak; None if it is missing."""
    steps = [
        (timeline.peak_bytes, recomputed_flops(trace, index))
        for index, module in enumerate(trace.hlo)
        if module.name.partition("(")[0] == name and (timeline := assigned_memory(module)) is not None
    ]
    return max(steps, default=None)


def predictions(model: StepModel, trace: Trace, plans: Sequence[Plan]) -> list[VerifiedPlan]:
    """The prediction of each plan but today's, before compiling. ``trace``: with the program of the model."""
    index = program_of(trace, model.label)
    flops: dict[Policy, int | None] = {}
    unverified = []
    for plan in plans:
        word, reason = setting(plan)
        if plan.policies == todays(model) and (word is not None or not plan.policies):
            continue  # the unchanged program: its peak comes from the compiler
        if word is not None and plan.policies[0] not in flops:
            flops[plan.policies[0]] = predicted_recompute(trace, index, plan.policies[0])
        unverified.append(
            VerifiedPlan(
                plan=plan,
                checkpoint=word,
                predicted_peak_bytes=plan.peak_bytes,
                predicted_recompute_flops=None if word is None else flops[plan.policies[0]],
                reason=reason,
            )
        )
    return unverified
