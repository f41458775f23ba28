"""Which region to checkpoint first: by bytes off the peak for each millisecond of work that runs again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.advice.simulate import Simulation, Simulator, keep_all
from perfscope.analyzers.advice.step_model import Policy, StepModel

MOST_STEPS = 400
"""Regions that are looked at one after the other: more layers than models have."""

AGAIN: tuple[Policy, ...] = ("selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Regions that share a policy: the calls of one module."""

    name: str
    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Copies of one layer, in the order they run."""

    name: str
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyStep:
    """One more region checkpointed, and what the step is predicted to be then."""

    group: str
    unit: str
    policy: Policy
    policies: tuple[Policy, ...]
    simulation: Simulation
    saved_bytes: int
    """Off the peak by this step; 0 where the peak is elsewhere as well."""
    added_ns: int
    """Longer by this step; 0 where it is quicker."""


def groups_of(model: StepModel) -> tuple[Group, ...]:
    """The regions that can be checkpointed, by group."""
    units: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, region in sorted(enumerate(model.regions), key=lambda item: item[1].forward):
        if region.backward[1] > region.backward[0]:
            units[region.group][region.name].append(index)
    return tuple(
        Group(name=name, units=tuple(Unit(name=unit, regions=tuple(regions)) for unit, regions in members.items()))
        for name, members in units.items()
    )


def offered(model: StepModel, unit: Unit, policy: Policy) -> bool:
    """True if all regions of a unit can be given a policy."""
    return all(model.regions[index].offers(policy) for index in unit.regions)


def with_policy(policies: Sequence[Policy], unit: Unit, policy: Policy) -> tuple[Policy, ...]:
    """The policies with another one for a unit."""
    return tuple(policy if index in unit.regions else one for index, one in enumerate(policies))


def greedy(simulator: Simulator, start: Sequence[Policy] | None = None) -> tuple[GreedyStep, ...]:
    """Steps from keeping everything (or from ``start``) to the lowest peak that checkpointing reaches.

    Of copies of a layer the first one goes first: its values wait longest, and when its backward comes little else is
    left. A step that lowers no peak (two moments are as high) is taken for what it takes out of the whole step.
    """
    model = simulator.model
    policies: tuple[Policy, ...] = tuple(start) if start is not None else keep_all(model)
    now = simulator.run(policies)
    steps: list[GreedyStep] = []
    groups = groups_of(model)
    while len(steps) < MOST_STEPS:
        best: tuple[tuple[float, float], GreedyStep] | None = None
        for group in groups:
            for policy in AGAIN:
                step = _next(simulator, group, policy, policies, now)
                if step is None:
                    continue
                worth = _worth(simulator, step, policies)
                if best is None or worth > best[0]:
                    best = (worth, step)
        if best is None:
            break
        steps.append(best[1])
        policies, now = best[1].policies, best[1].simulation
    lowest = min((step.simulation.peak_bytes for step in steps), default=0)
    end = next((index for index, step in enumerate(steps) if step.simulation.peak_bytes == lowest), -1)
    return tuple(steps[: end + 1])


def _next(
    simulator: Simulator, group: Group, policy: Policy, policies: Sequence[Policy], now: Simulation
) -> GreedyStep | None:
    """The group's first unit that ``policy`` takes further; None if there is none."""
    further = {"selective": ("keep",), "full": ("keep", "selective")}
    unit = next((one for one in group.units if policies[one.regions[0]] in further[policy]), None)
    if unit is None or not offered(simulator.model, unit, policy):
        return None
    after = with_policy(policies, unit, policy)
    simulation = simulator.run(after)
    return GreedyStep(
        group=group.name,
        unit=unit.name,
        policy=policy,
        policies=after,
        simulation=simulation,
        saved_bytes=max(0, now.peak_bytes - simulation.peak_bytes),
        added_ns=max(0, simulation.work_ns - now.work_ns),
    )


def _worth(simulator: Simulator, step: GreedyStep, before: Sequence[Policy]) -> tuple[float, float]:
    price = max(1, step.added_ns)
    if step.saved_bytes:
        return (step.saved_bytes / price, 0.0)
    less = int(simulator.curve(before).sum()) - int(simulator.curve(step.policies).sum())
    return (0.0, less / price)
