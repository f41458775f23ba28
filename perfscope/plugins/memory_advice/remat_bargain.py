"""Benefit of a PyTorch step's activation checkpointing relative to its time, by region."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.analyzers.memory import SCARCE_SHARE
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns
from perfscope.plugins.memory_advice.plans import SAME_PEAK, Plan, groups_of, plan_memory
from perfscope.plugins.memory_advice.simulate import Simulation, Simulator, keep_all, todays
from perfscope.plugins.memory_advice.step_model import Policy, StepModel
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model
from perfscope.plugins.memory_advice.wording import code_for, describe

Verdict = Literal[
    "elsewhere", "not lowered", "headroom", "dominated", "headroom for some", "needed", "capacity unknown"
]
"""Whether checkpointing is worth its time, with the reason; see `_verdict`."""

WORTH = 0.1
"""Least share of the recomputation time that a better plan must save."""


class RegionBargain(Struct, frozen=True, kw_only=True):
    """A checkpointed region with its cost and benefit."""

    name: str
    group: str
    policy: Policy
    recompute_ns: int
    """Time of its repeated ops, as priced by the model."""
    held_bytes: int
    """Bytes that it frees before the backward begins, without those kept for the repetition."""
    bought_bytes: int
    """Increase of the peak if only this region were kept."""


class Bargain(Struct, frozen=True, kw_only=True):
    """The judged checkpointing of a step."""

    model: StepModel
    today: Simulation
    kept: Simulation
    """The step without checkpointing."""
    regions: tuple[RegionBargain, ...]
    """Most expensive first."""
    verdict: Verdict
    better: Plan | None
    """The plan that saves most time within the same peak (`dominated`) or the device's memory."""
    room_bytes: int | None
    """Largest allowed peak: ``SCARCE_SHARE`` of the device, less what its allocator holds beyond a peak."""

    @property
    def avoidable(self) -> float:
        """Avoidable share of the recomputation, 0 to 1."""
        if self.verdict in ("elsewhere", "not lowered", "headroom"):
            return 1.0
        if self.verdict == "needed" or not self.today.recompute_ns:
            return 0.0
        if self.better is None:
            return 1.0
        return max(0.0, 1.0 - self.better.simulation.recompute_ns / self.today.recompute_ns)


def remat_bargain(trace: Trace) -> Bargain | None:
    """The benefit of checkpointing in the recorded step; None without an op graph, or if nothing is checkpointed."""
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
        regions=tuple(sorted(_regions(model, simulator, today), key=lambda region: -region.recompute_ns)),
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

    - elsewhere: without checkpointing the peak would not be higher, and it is at a moment (the optimizer, the loss of
      another part) at which no region's values wait for the backward;
    - not lowered: the peak would not be higher without;
    - headroom: everything could be kept;
    - dominated: another choice of regions has as low a peak for less time;
    - headroom for some: some regions could be kept;
    - needed: otherwise. If the device's size is unknown, headroom is not judged.
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
    """The fastest plan with a peak of at most ``peak`` by checkpointing alone; None if it gains too little."""
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
    bargains = []
    for group in groups_of(model):
        for unit in group.units:
            policy = policies[unit.regions[0]]
            if policy == "keep":
                continue
            without = tuple("keep" if index in unit.regions else old for index, old in enumerate(policies))
            alone = tuple(policy if index in unit.regions else old for index, old in enumerate(kept))
            bargains.append(
                RegionBargain(
                    name=unit.name,
                    group=group.name,
                    policy=policy,
                    recompute_ns=simulator.run(alone).recompute_ns,
                    held_bytes=int(simulator.curve(kept)[begin] - simulator.curve(alone)[begin]),
                    bought_bytes=max(0, simulator.run(without).peak_bytes - today.peak_bytes),
                )
            )
    return bargains


# Sentences on the benefit of checkpointing: whether it is worth its time, why, and what to do.


def why(bargain: Bargain) -> str:
    """Why the time is wasted, or what it buys: the end of a title."""
    today, kept = bargain.today.peak_bytes, bargain.kept.peak_bytes
    bought = format_bytes(max(0, kept - today))
    if bargain.verdict == "elsewhere":
        return (
            f"the peak lies elsewhere, where no checkpointed region is alive: {format_bytes(kept)} with and without it"
        )
    if bargain.verdict == "not lowered":
        return f"it does not lower the peak: {format_bytes(kept)} with and without it (modelled)"
    room = format_bytes(bargain.room_bytes or 0)
    if bargain.verdict == "headroom":
        return f"it takes {bought} off a peak that has room: {format_bytes(kept)} without it, {room} to use (modelled)"
    if bargain.verdict == "dominated" and bargain.better is not None:
        return (
            f"{describe(bargain.model, bargain.better)} has as low a peak ({format_bytes(bargain.better.peak_bytes)}) "
            f"and runs {format_ns(bargain.better.simulation.recompute_ns)} again instead of "
            f"{format_ns(bargain.today.recompute_ns)} (modelled)"
        )
    if bargain.verdict == "headroom for some" and bargain.better is not None:
        return (
            f"with {room} to use, {describe(bargain.model, bargain.better)} is enough "
            f"({format_bytes(bargain.better.peak_bytes)}, modelled)"
        )
    return f"it takes {bought} off the peak (modelled); whether that memory would be free is not known"


def what_to_do(bargain: Bargain) -> str:
    """What to write instead."""
    if bargain.verdict in ("elsewhere", "not lowered", "headroom"):
        return "Take the checkpointing away: call the modules directly. "
    if bargain.better is not None:
        code = "\n".join(code_for(bargain.model, bargain.better))
        return f"Checkpoint less: {describe(bargain.model, bargain.better)}.\n{code}\n"
    return (
        "Keep what fits: perfscope advise memory RUN --budget BYTES lists what each choice of regions needs and takes. "
    )
