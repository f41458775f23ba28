"""What the activation checkpointing of a PyTorch step buys for its time, by region, and whether it is worth it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.advice.greedy import groups_of
from perfscope.analyzers.advice.plans import SAME_PEAK, Plan, plan_memory
from perfscope.analyzers.advice.simulate import Simulation, Simulator, keep_all, todays
from perfscope.analyzers.advice.step_model import Policy, StepModel
from perfscope.analyzers.advice.step_model_torch import torch_step_model
from perfscope.analyzers.facts.memory_judged import SCARCE_SHARE
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace

Verdict = Literal[
    "elsewhere", "not lowered", "headroom", "dominated", "headroom for some", "needed", "capacity unknown"
]
"""Why checkpointing is worth its time or not; see `_verdict`."""

WORTH = 0.1
"""Of the time of all that runs again: a plan that saves less is as good as today's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionBargain:
    """One checkpointed region: what it costs and what it buys."""

    name: str
    group: str
    policy: Policy
    recompute_ns: int
    """Of its ops that run again, as the model prices them."""
    held_bytes: int
    """What it does not hold when the backward begins, beside what it keeps to run again."""
    bought_bytes: int
    """How much higher the peak would be if this region alone were kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bargain:
    """The checkpointing of a step, judged."""

    model: StepModel
    today: Simulation
    kept: Simulation
    """The step without checkpointing."""
    regions: tuple[RegionBargain, ...]
    """By what they cost, the dearest first."""
    verdict: Verdict
    better: Plan | None
    """The plan that gives most of the time back within the same peak (`dominated`) or the device's memory."""
    room_bytes: int | None
    """What a peak may be: ``SCARCE_SHARE`` of the device, less what its allocator holds beyond one."""

    @property
    def avoidable(self) -> float:
        """Share of what runs again that need not, 0 to 1."""
        if self.verdict in ("elsewhere", "not lowered", "headroom"):
            return 1.0
        if self.verdict == "needed" or not self.today.recompute_ns:
            return 0.0
        if self.better is None:
            return 1.0
        return max(0.0, 1.0 - self.better.simulation.recompute_ns / self.today.recompute_ns)


def remat_bargain(trace: Trace) -> Bargain | None:
    """What checkpointing buys in the recorded step; None where no op graph tells, or nothing is checkpointed."""
    try:
        model = trace.fact(torch_step_model)
    except AbstainError:
        return None
    if all(policy == "keep" for policy in todays(model)):
        return None
    simulator = Simulator(model)
    today, kept = simulator.run(todays(model)), simulator.run(keep_all(model))
    room = _room(model)
    verdict, better = _verdict(model, simulator, today, kept, room)
    return Bargain(
        model=model,
        today=today,
        kept=kept,
        regions=tuple(sorted(_regions(model, simulator, today), key=lambda one: -one.recompute_ns)),
        verdict=verdict,
        better=better,
        room_bytes=room,
    )


def _room(model: StepModel) -> int | None:
    if model.capacity_bytes is None:
        return None
    return int(SCARCE_SHARE * model.capacity_bytes / (1 + (model.reserve_share or 0.0)))


def _verdict(
    model: StepModel, simulator: Simulator, today: Simulation, kept: Simulation, room: int | None
) -> tuple[Verdict, Plan | None]:
    """The first of these that holds.

    - elsewhere: without checkpointing the peak would be no higher, and it is at a moment (the optimizer, the loss of
      another part) at which no region's values wait for the backward;
    - not lowered: the peak would be no higher without;
    - headroom: everything could be kept;
    - dominated: another choice of regions has as low a peak for less time;
    - headroom for some: some regions could be kept;
    - needed: none of it. Where the device's size is not known, the headroom is not judged.
    """
    if kept.peak_bytes <= today.peak_bytes * (1 + SAME_PEAK):
        return ("elsewhere" if _outside(model, kept.position) else "not lowered"), None
    if room is not None and kept.peak_bytes <= room:
        return "headroom", None
    same = _better(model, simulator, today, round(today.peak_bytes * (1 + SAME_PEAK)))
    if same is not None:
        return "dominated", same
    if room is None:
        return "capacity unknown", None
    some = _better(model, simulator, today, room)
    return ("headroom for some", some) if some is not None else ("needed", None)


def _outside(model: StepModel, position: int) -> bool:
    spans = [
        (region.forward[0], region.backward[1]) for region in model.regions if region.backward[1] > region.backward[0]
    ]
    return not any(first <= position < last for first, last in spans)


def _better(model: StepModel, simulator: Simulator, today: Simulation, peak: int) -> Plan | None:
    """The quickest plan with a peak of at most ``peak`` by checkpointing alone; None if it gains too little."""
    plans = plan_memory(model, budget_bytes=peak, devices=1, moving=False)
    fitting = [plan for plan in plans.front if plan.peak_bytes <= peak]
    best = min(fitting, key=lambda plan: plan.simulation.recompute_ns, default=None)
    if best is None or today.recompute_ns - best.simulation.recompute_ns < WORTH * today.recompute_ns:
        return None
    return best


def _regions(model: StepModel, simulator: Simulator, today: Simulation) -> list[RegionBargain]:
    policies = todays(model)
    kept = keep_all(model)
    begin = max((region.forward[1] for region in model.regions), default=0)
    found = []
    for group in groups_of(model):
        for unit in group.units:
            policy = policies[unit.regions[0]]
            if policy == "keep":
                continue
            without = tuple("keep" if index in unit.regions else one for index, one in enumerate(policies))
            alone = tuple(policy if index in unit.regions else one for index, one in enumerate(kept))
            found.append(
                RegionBargain(
                    name=unit.name,
                    group=group.name,
                    policy=policy,
                    recompute_ns=simulator.run(alone).recompute_ns,
                    held_bytes=int(simulator.curve(kept)[begin] - simulator.curve(alone)[begin]),
                    bought_bytes=max(0, simulator.run(without).peak_bytes - today.peak_bytes),
                )
            )
    return found
