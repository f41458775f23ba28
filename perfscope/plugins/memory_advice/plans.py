"""The useful plans: what to checkpoint, offload and divide, by predicted peak and predicted step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Device, find_device, named_device, named_link
from perfscope.analyzers.memory import SCARCE_SHARE
from perfscope.plugins.memory_advice.simulate import Placement, Simulation, Simulator, keep_all, todays
from perfscope.plugins.memory_advice.step_model import Policy, StepModel

# Costs of a plan besides recomputation: bytes over the links between devices, and to and from the host.
#
# All modelled, as a range: at best hidden under computation, at worst not at all. A ring moves (N - 1) / N of the bytes
# through each device for an all-gather or a reduce-scatter, twice that for an all-reduce (Patarasuk and Yuan, 2009).


NODE = 8
"""Devices that the links of a device reach: most machines have a board of eight. Beyond it one network card per device
is assumed."""

NETWORK = "InfiniBand NDR"

HOST_LINKS = {
    "GB300": "NVLink-C2C",
    "GB200": "NVLink-C2C",
    "B300": "PCIe 6 x16",
    "B200": "PCIe 5 x16",
    "H200": "PCIe 5 x16",
    "H100": "PCIe 5 x16",
    "H800": "PCIe 5 x16",
    "H20": "PCIe 5 x16",
    "L4": "PCIe 4 x16",
    "A": "PCIe 4 x16",
    "RTX 5090": "PCIe 5 x16",
    "RTX PRO 6000": "PCIe 5 x16",
    "RTX 4090": "PCIe 4 x16",
    "RTX 3090": "PCIe 4 x16",
    "MI3": "PCIe 5 x16",
    "MI2": "PCIe 4 x16",
    "V100": "PCIe 3 x16",
    "T4": "PCIe 3 x16",
    "RTX 2080": "PCIe 3 x16",
}
"""Link to the host by the start of a device's name in the hardware tables: the bus interface of its data sheet. Devices
that are missing (TPU) state none."""

MOST_STEPS = 400
"""Most regions tried one after another: more layers than models have."""

AGAIN: tuple[Policy, ...] = ("selective", "full")

MOST_WORK = 60_000_000
"""Most positions and values that the search may examine over all plans: some seconds."""

MOST_PLANS = 3_000
MOST_SHOWN = 12
"""Most plans of the front that are kept: more than a person compares."""

SAME_PEAK = 0.002
"""Relative difference of peaks below which plans count as one choice; the faster one is kept."""


class Links(Struct, frozen=True, kw_only=True):
    """Bytes/s in one direction; ``None`` if unknown."""

    between: int | None
    between_name: str | None
    to_host: int | None
    to_host_name: str | None


class Transfer(Struct, frozen=True, kw_only=True):
    """Data that a plan moves in a step, one direction, and the time it takes alone."""

    between_bytes: int
    """Through each device's links, beyond today's step."""
    host_bytes: int
    """To the host and back, added."""
    worst_ns: int | None
    """If nothing is hidden under computation; ``None`` if a bandwidth is unknown."""


def device_of(model: StepModel, name: str | None = None) -> Device | None:
    """The device named by the user or the recording, from the hardware tables."""
    if name is not None:
        return named_device(name)
    return None if model.device_name is None else find_device(model.device_name)


def links_of(device: Device | None, devices: int) -> Links:
    """The links between ``devices`` such devices, and to the host of each."""
    between, between_name = (None, None) if device is None else (device.link_bandwidth, device.link)
    network = named_link(NETWORK)
    if devices > NODE and device is not None and network is not None:
        between, between_name = network.bandwidth, f"{NETWORK}, assumed"
    joined = (
        None if device is None else next((HOST_LINKS[key] for key in HOST_LINKS if device.name.startswith(key)), None)
    )
    host = None if joined is None else named_link(joined)
    return Links(
        between=between,
        between_name=between_name,
        to_host=None if host is None else host.bandwidth,
        to_host_name=None if host is None else host.name,
    )


def transfer(model: StepModel, placement: Placement, simulation: Simulation, links: Links) -> Transfer:
    """Data that a plan moves beyond today's step.

    ZeRO-1 and -2 reduce-scatter the gradients and gather the parameters, the same traffic as an all-reduce of the
    gradients.
    ZeRO-3 also gathers the parameters for the forward (Rajbhandari et al., SC 2020, section 7). An optimizer on the
    host gets the gradients and sends the parameters; the time of its update there is not included.
    """
    count = placement.devices
    ring = (count - 1) / count
    gradients = model.gradient_bytes
    plain = 2 * ring * gradients
    gathers = {0: 0.0, 1: plain, 2: plain, 3: ring * (2 * model.parameter_bytes + gradients)}
    moved = gathers[placement.level] if placement.level else plain
    between = max(0, round(moved - (plain if model.world_size > 1 else 0)))
    host = 2 * simulation.offloaded_bytes
    if placement.optimizer_on_host:
        host += (gradients + model.parameter_bytes) // placement.parts(1)
    worst: int | None = 0
    for size, rate in ((between, links.between), (host, links.to_host)):
        if size and rate is None:
            worst = None
        elif size and rate is not None and worst is not None:
            worst += round(1e9 * size / rate)
    return Transfer(between_bytes=between, host_bytes=host, worst_ns=worst)


def placements(model: StepModel, devices: int) -> tuple[Placement, ...]:
    """Possible locations of state: all here, divided among ``devices``, the optimizer's on the host."""
    choices = [Placement(devices=devices)]
    if devices > 1 and not model.sharded:
        choices += [Placement(devices=devices, level=1), Placement(devices=devices, level=2)]
        choices += [Placement(devices=devices, level=3)]
    if model.optimizer_bytes and not model.on_host:
        choices += [
            Placement(devices=placement.devices, level=placement.level, optimizer_on_host=True) for placement in choices
        ]
    return tuple(choices)


# Which region to checkpoint first: by bytes off the peak per millisecond of repeated work.


class Unit(Struct, frozen=True, kw_only=True):
    """Regions that share a policy: the calls of one module."""

    name: str
    regions: tuple[int, ...]


class Group(Struct, frozen=True, kw_only=True):
    """Copies of one layer, in the order they run."""

    name: str
    units: tuple[Unit, ...]


class GreedyStep(Struct, frozen=True, kw_only=True):
    """One more region checkpointed, and the step predicted for it."""

    group: str
    unit: str
    policy: Policy
    policies: tuple[Policy, ...]
    simulation: Simulation
    saved_bytes: int
    """Reduction of the peak by this step; 0 if the peak is elsewhere as well."""
    added_ns: int
    """Added time of this step; 0 if it is faster."""


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


def is_offered(model: StepModel, unit: Unit, policy: Policy) -> bool:
    """True if all regions of a unit can have the policy."""
    return all(model.regions[index].offers(policy) for index in unit.regions)


def with_policy(policies: Sequence[Policy], unit: Unit, policy: Policy) -> tuple[Policy, ...]:
    """The policies, with another one for a unit."""
    return tuple(policy if index in unit.regions else old for index, old in enumerate(policies))


def greedy(simulator: Simulator, start: Sequence[Policy] | None = None) -> tuple[GreedyStep, ...]:
    """Steps from keeping everything (or from ``start``) to the lowest peak that checkpointing reaches.

    Among copies of a layer the first one comes first: its values wait longest, and when its backward begins little else
    is left. A step that lowers no peak (two moments are equally high) is ranked by the bytes it removes from the whole
    step.
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
    """The group's first unit that ``policy`` changes further; None without one."""
    further = {"selective": ("keep",), "full": ("keep", "selective")}
    unit = next((unit for unit in group.units if policies[unit.regions[0]] in further[policy]), None)
    if unit is None or not is_offered(simulator.model, unit, policy):
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


class Plan(Struct, frozen=True, kw_only=True):
    """A way to run the step, with its predicted memory and time."""

    policies: tuple[Policy, ...]
    placement: Placement
    simulation: Simulation
    transfer: Transfer
    added_low_ns: int
    """Beyond today's step (negative: less), with all transfers hidden."""
    added_high_ns: int | None
    """With no transfer hidden; ``None`` if a bandwidth, or the time of the host's processor, is unknown."""

    @property
    def peak_bytes(self) -> int:
        """Predicted live bytes at the highest moment."""
        return self.simulation.peak_bytes


class Plans(Struct, frozen=True, kw_only=True):
    """The front, with today's step and the budget."""

    model: StepModel
    today: Plan
    front: tuple[Plan, ...]
    """Fastest first. No plan needs more memory and more time than another."""
    recommended: Plan | None
    """The fastest that fits the budget; ``None`` without a budget, or if none fits."""
    budget_bytes: int | None
    budget_from: str | None
    """``asked``, or ``device``: ``SCARCE_SHARE`` of its memory, because the allocator cannot use the rest."""
    links: Links
    looked_at: int
    """Number of plans that were predicted."""
    complete: bool
    """Whether every number of checkpointed copies of each layer was tried."""

    def needs(self, plan: Plan) -> int:
        """Bytes that a plan needs on the device at worst (`StepModel.needed_bytes`)."""
        return self.model.needed_bytes(plan.policies, plan.peak_bytes)

    def fits(self, plan: Plan) -> bool | None:
        """True if a plan fits the budget; ``None`` without one."""
        return None if self.budget_bytes is None else self.needs(plan) <= self.budget_bytes

    def step_ns(self, plan: Plan) -> tuple[int, int | None] | None:
        """Predicted step at best and at worst; ``None`` if today's is unknown."""
        if self.model.step_ns is None:
            return None
        high = None if plan.added_high_ns is None else max(0, self.model.step_ns + plan.added_high_ns)
        return max(0, self.model.step_ns + plan.added_low_ns), high


def plan_memory(
    model: StepModel,
    *,
    budget_bytes: int | None = None,
    devices: int | None = None,
    device: str | None = None,
    moving: bool = True,
) -> Plans:
    """Compute the useful plans. Without ``budget_bytes`` the budget is the usable memory of the device, if recorded.

    ``devices``: number of devices among which parameters, gradients and optimizer state may be divided (default: those
    that train together now). ``device``: product whose links count if the recording names none. ``moving``: also
    offload and divide, not only recompute.
    """
    simulator = Simulator(model)
    count = devices or model.world_size
    links = links_of(device_of(model, device), count)
    here = Placement(devices=model.world_size)
    base = simulator.run(todays(model))
    plans_by_choice: dict[tuple[tuple[Policy, ...], Placement], Plan] = {}

    def look(policies: tuple[Policy, ...], placement: Placement) -> None:
        if (policies, placement) not in plans_by_choice:
            simulation = simulator.run(policies, placement)
            plans_by_choice[policies, placement] = _plan(model, policies, placement, simulation, base, links)

    candidates = [todays(model), keep_all(model), *(step.policies for step in greedy(simulator))]
    grid, complete = _grid(model, simulator, moving=moving and not model.on_host)
    for policies in (*candidates, *grid):
        look(policies, here)
    chosen = [plan.policies for plan in _front(plans_by_choice.values())]
    for placement in placements(model, count) if moving else ():
        for policies in dict.fromkeys((todays(model), *chosen)):
            look(policies, placement)
    room = None if model.capacity_bytes is None else int(SCARCE_SHARE * model.capacity_bytes)
    budget, source = (budget_bytes, "asked") if budget_bytes is not None else (room, "device")
    front = _front(plans_by_choice.values())
    plans = Plans(
        model=model,
        today=_plan(model, todays(model), here, base, base, links),
        front=tuple(front),
        recommended=None,
        budget_bytes=budget,
        budget_from=None if budget is None else source,
        links=links,
        looked_at=len(plans_by_choice),
        complete=complete,
    )
    recommended = _recommended(plans)
    return replace(plans, front=tuple(_thinned(front, recommended)), recommended=recommended)


def _plan(
    model: StepModel,
    policies: tuple[Policy, ...],
    placement: Placement,
    simulation: Simulation,
    base: Simulation,
    links: Links,
) -> Plan:
    moved = transfer(model, placement, simulation, links)
    added = simulation.work_ns - base.work_ns
    # The time of an optimizer's update on the host is unknown there, and so is the worst case.
    worst = None if placement.optimizer_on_host else moved.worst_ns
    return Plan(
        policies=policies,
        placement=placement,
        simulation=simulation,
        transfer=moved,
        added_low_ns=added,
        added_high_ns=None if worst is None else added + worst,
    )


def _grid(model: StepModel, simulator: Simulator, *, moving: bool) -> tuple[list[tuple[Policy, ...]], bool]:
    """Numbers of copies per layer and policy: all choices, or evenly spaced ones if there are too many."""
    groups = groups_of(model)
    offered: tuple[Policy, ...] = ("full", "selective", "offload") if moving else ("full", "selective")
    most = max(50, min(MOST_PLANS, MOST_WORK // max(1, simulator.size)))
    stride = 1
    while True:
        ways = [list(_ways(len(group.units), len(offered), stride)) for group in groups]
        total = 1
        for way in ways:
            total *= len(way)
        if total <= most or stride > max((len(group.units) for group in groups), default=1):
            break
        stride += 1
    plans: list[tuple[Policy, ...]] = []
    for choice in product(*ways):
        if len(plans) >= most:
            break
        plans.append(_assigned(model, groups, choice, offered))
    return plans, stride == 1 and total <= most


def _ways(units: int, offered: int, stride: int) -> Iterator[tuple[int, ...]]:
    """Numbers of units for each policy, at most ``units`` together, in steps of ``stride`` or all of the rest."""
    levels = sorted({*range(0, units + 1, stride), units})
    for counts in product(levels, repeat=offered):
        if sum(counts) <= units:
            yield counts


def _assigned(
    model: StepModel, groups: Sequence[Group], choice: Sequence[tuple[int, ...]], offered: Sequence[Policy]
) -> tuple[Policy, ...]:
    """The first copies get the first policy, the next ones the second; the last ones keep everything."""
    policies = keep_all(model)
    for group, counts in zip(groups, choice, strict=True):
        units = iter(group.units)
        for policy, count in zip(offered, counts, strict=True):
            for _ in range(count):
                unit = next(units)
                if is_offered(model, unit, policy):
                    policies = with_policy(policies, unit, policy)
    return policies


def _front(plans: Iterable[Plan]) -> list[Plan]:
    """Plans that no other plan beats in peak, best time and worst time; fastest first."""
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (plan.peak_bytes, _high(plan), plan.added_low_ns, plan.placement.level)):
        beaten = any(
            other.peak_bytes <= plan.peak_bytes * (1 + SAME_PEAK)
            and other.added_low_ns <= plan.added_low_ns
            and _high(other) <= _high(plan)
            for other in front
        )
        if not beaten:
            front.append(plan)
    return sorted(front, key=lambda plan: (_high(plan), plan.added_low_ns, plan.peak_bytes))


def _high(plan: Plan) -> float:
    return float("inf") if plan.added_high_ns is None else plan.added_high_ns


def _recommended(plans: Plans) -> Plan | None:
    fitting = [plan for plan in plans.front if plans.fits(plan)]
    return min(fitting, key=lambda plan: (_high(plan), plan.added_low_ns, plan.peak_bytes), default=None)


def _thinned(front: Sequence[Plan], recommended: Plan | None) -> list[Plan]:
    """At most ``MOST_SHOWN``: the ends, the recommended plan, and others evenly spaced by peak."""
    kept = list(front)
    while len(kept) > MOST_SHOWN:
        by_peak = sorted(kept, key=lambda plan: plan.peak_bytes)
        inner = [(by_peak[i + 1].peak_bytes - by_peak[i - 1].peak_bytes, i) for i in range(1, len(by_peak) - 1)]
        drop = next(
            by_peak[i] for _, i in sorted(inner) if by_peak[i] is not recommended and by_peak[i] is not front[0]
        )
        kept.remove(drop)
    return kept
