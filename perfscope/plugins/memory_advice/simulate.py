"""The memory of a step under another plan: every value gets the lifetime that the plan would give it.

The axis is that of the step's ops, with room before the backward of each region in which the region can run again.
Predicted are live bytes, as an allocator counts the blocks handed out; memory reserved beyond that is not included.

The lifetimes are those of ``torch.utils.checkpoint`` without reentrance, which stops the repetition of a region as soon
as everything that its backward needs is available; ``jax.checkpoint`` lets the compiler drop the same rest. A selective
policy keeps all results of the kept ops, including unneeded ones (``_CachingTorchDispatchMode`` in
torch/utils/checkpoint.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.model.live_bytes import Int64
from perfscope.plugins.memory_advice.step_model import Change, Policy, StepModel, Value

# Lifetimes on the axis of a simulated step, as changes of live bytes.

KEPT_KINDS = frozenset({"product", "attention"})
"""Kinds of results that the policy ``selective`` keeps."""


class Effect:
    """The effect of one region under one policy: changes of live bytes along the axis, and its price."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.change: list[int] = []
        self.recompute_ns = 0
        self.recomputed = 0
        self.offloaded_bytes = 0
        self.stored_ns = 0

    def add(self, start: int, stop: int, size: int) -> None:
        """Hold ``size`` bytes from ``start`` up to ``stop``; nothing if that is empty."""
        if stop > start and size:
            self.at += (start, stop)
            self.change += (size, -size)


Part = Literal["forward", "recompute", "backward", "between"]
"""Part of a step: a region's forward, its repeated forward, its backward, or outside of all regions."""

ShardLevel = Literal[0, 1, 2, 3]
"""ZeRO stage (Rajbhandari et al., SC 2020): what is divided among the devices. 1: optimizer state, 2: also gradients,
3: also parameters, which are gathered for one region at a time (FSDP)."""


class Placement(Struct, frozen=True, kw_only=True):
    """Location of parameters, gradients and optimizer state."""

    devices: int = 1
    level: ShardLevel = 0
    optimizer_on_host: bool = False

    def parts(self, level: ShardLevel) -> int:
        """Number of parts of something that is divided from ``level`` on."""
        return self.devices if self.level >= level else 1


HERE = Placement()
"""Everything on one device."""


class Simulation(Struct, frozen=True, kw_only=True):
    """A step under a plan, predicted."""

    peak_bytes: int
    """Live bytes at the highest moment, including those held all through the step."""
    held_bytes: int
    """Held all through the step: parameters, optimizer state, and memory that does not belong to the step."""
    position: int
    """Op of the step at which, or before which, the peak is."""
    part: Part
    region: int | None
    """Region of the peak; ``None`` between regions."""
    recompute_ns: int
    """Time of all repeated work, as in `Value.cost_ns`."""
    recomputed: int
    """Number of values that are computed again."""
    offloaded_bytes: int
    """Bytes sent to the host; the same number returns."""
    stored_ns: int = 0
    """For a compiled program: additional time of keeping values relative to today; negative: less."""

    @property
    def work_ns(self) -> int:
        """Cost of all policies: the difference between two plans is the difference of their times."""
        return self.recompute_ns + self.stored_ns


class Simulator:
    """Predicts many plans of one step. The effect of a region under a policy is computed once."""

    def __init__(self, model: StepModel) -> None:
        """Lay out the axis and the values that are independent of policies."""
        self.model = model
        regions = model.regions
        self._able = [
            region.backward[1] > region.backward[0] and region.forward[1] > region.forward[0] for region in regions
        ]
        rooms = sorted((region.backward[0], index) for index, region in enumerate(regions) if self._able[index])
        self._room_at = [position for position, _ in rooms]
        lengths = [regions[index].forward[1] - regions[index].forward[0] for _, index in rooms]
        self._room = [0, *accumulate(lengths)]
        self._room_starts = {index: position + self._room[order] for order, (position, index) in enumerate(rooms)}
        self._length = self._stop(model.length) + 1
        self._own: list[list[Value]] = [[] for _ in regions]
        plain: list[Value] = []
        gradients: list[Value] = []
        for value in model.values:
            if value.gradient:
                gradients.append(value)
            elif value.region is not None and self._able[value.region]:
                self._own[value.region].append(value)
            else:
                plain.append(value)
        self._base = self._curve_of([self._whole(plain)])
        self._gradients = gradients
        self._effects: dict[tuple[int, Policy], Effect] = {}
        self._placed: dict[Placement, Int64] = {}

    @property
    def size(self) -> int:
        """Approximate cost of one run: positions and values."""
        return self._length + len(self.model.values)

    def run(self, policies: Sequence[Policy], placement: Placement = HERE) -> Simulation:
        """Predict the step with the policy of each region, in the order of ``StepModel.regions``.

        A region without a backward cannot be checkpointed: its policy has no effect. ``ValueError`` if the number of
        policies differs from the number of regions.
        """
        effects = self._chosen(policies)
        curve = self._curve(effects, placement)
        index = int(np.argmax(curve))
        part, region, position = self._where(index)
        held_bytes = self._held(placement)
        return Simulation(
            peak_bytes=held_bytes + int(curve[index]),
            held_bytes=held_bytes,
            position=position,
            part=part,
            region=region,
            recompute_ns=sum(effect.recompute_ns for effect in effects),
            recomputed=sum(effect.recomputed for effect in effects),
            offloaded_bytes=sum(effect.offloaded_bytes for effect in effects),
            stored_ns=sum(effect.stored_ns for effect in effects),
        )

    def curve(self, policies: Sequence[Policy], placement: Placement = HERE) -> Int64:
        """Live bytes along the axis, with the room before each backward: shape (ops and rooms,)."""
        return self._held(placement) + self._curve(self._chosen(policies), placement)

    def _chosen(self, policies: Sequence[Policy]) -> list[Effect]:
        if len(policies) != len(self.model.regions):
            raise ValueError(f"{len(policies)} policies for {len(self.model.regions)} regions")
        return [self._effect(index, policy) for index, policy in enumerate(policies)]

    def _curve(self, effects: Sequence[Effect], placement: Placement) -> Int64:
        return self._placement_curve(placement) + self._curve_of(effects)

    def _held(self, placement: Placement) -> int:
        model = self.model
        total = model.other_bytes + -(-model.parameter_bytes // placement.parts(3))
        if not model.gradients_in_values:
            total += -(-model.gradient_bytes // placement.parts(2))
        if not placement.optimizer_on_host:
            total += -(-model.optimizer_bytes // placement.parts(1))
        return total

    def _placement_curve(self, placement: Placement) -> Int64:
        """Values that are independent of policies, gradients as placed, and parameters while they are gathered."""
        if placement not in self._placed:
            spans = Effect()
            parts = placement.parts(2)
            for value in self._gradients:
                start, stop = self._start(value.birth), self._stop(value.death)
                reduced = stop if parts == 1 else min(stop, self._reduced(value))
                spans.add(start, reduced, value.bytes)
                spans.add(reduced, stop, -(-value.bytes // parts))
            if placement.parts(3) > 1:
                self._gather(spans)
            self._placed[placement] = self._base + self._curve_of([spans])
        return self._placed[placement]

    def _reduced(self, gradient: Value) -> int:
        """When a gradient is divided: with those of its region, else after the last region."""
        ends = [
            region.backward
            for region in self.model.regions
            if region.backward[0] <= gradient.birth < region.backward[1]
        ]
        last = max((region.backward[1] for region in self.model.regions), default=gradient.birth + 1)
        return self._stop(max(min((end for _, end in ends), default=last), gradient.birth + 1))

    def _gather(self, spans: Effect) -> None:
        """FSDP holds parameters of the running and the next region; parameters outside of regions throughout."""
        regions = self.model.regions
        own = sum(region.parameter_bytes for region in regions)
        spans.add(0, self._length, max(0, self.model.parameter_bytes - own))
        forward = sorted(range(len(regions)), key=lambda index: regions[index].forward)
        backward = sorted(
            (index for index in range(len(regions)) if self._able[index]), key=lambda index: regions[index].backward
        )
        for order, phase in ((forward, "forward"), (backward, "backward")):
            for order_index, index in enumerate(order):
                before = order[max(0, order_index - 1)]
                start, stop = getattr(regions[before], phase)[0], getattr(regions[index], phase)[1]
                first = self._room_starts[before] if phase == "backward" else self._start(start)
                spans.add(first, self._stop(stop), regions[index].parameter_bytes)

    def _effect(self, index: int, policy: Policy) -> Effect:
        if not self._able[index]:
            policy = "keep"
        known = dict(self.model.regions[index].changes)
        if known and policy not in known:
            policy = "keep"
        if (index, policy) not in self._effects and known:
            self._effects[index, policy] = self._changed(known.get(policy))
        if (index, policy) not in self._effects:
            make = {"keep": self._keep, "full": self._again, "selective": self._again, "offload": self._offload}
            self._effects[index, policy] = make[policy](index, policy)
        return self._effects[index, policy]

    def _changed(self, change: Change | None) -> Effect:
        """The changes of a compiled program's policy, from its model."""
        spans = Effect()
        if change is not None:
            spans.recompute_ns, spans.recomputed = change.recompute_ns, change.recomputed
            spans.stored_ns = change.stored_ns
            for start, stop, size in change.spans:
                spans.add(self._start(start), self._stop(stop), size)
        return spans

    def _keep(self, index: int, _: Policy) -> Effect:
        return self._whole(self._own[index])

    def _offload(self, index: int, _: Policy) -> Effect:
        spans, back = Effect(), self._start(self.model.regions[index].backward[0])
        for value in self._own[index]:
            start, stop = self._start(value.birth), self._stop(value.death)
            left = self._stop(value.last_forward_use + 1)
            if value.needed_by == {index} and left < back < stop:
                spans.add(start, left, value.bytes)
                spans.add(back, stop, value.bytes)
                spans.offloaded_bytes += value.bytes
            else:
                spans.add(start, stop, value.bytes)
        return spans

    def _again(self, index: int, policy: Policy) -> Effect:
        region, spans = self.model.regions[index], Effect()
        kept_kinds = KEPT_KINDS if policy == "selective" else frozenset()
        limit = max((value.birth for value in self._own[index] if index in value.needed_by), default=-1)
        gone = self._stop(region.backward[1])
        if limit >= 0:
            spans.add(self._stop(region.forward[1]), gone, region.input_bytes)
        for value in self._own[index]:
            kept = value.kind in kept_kinds
            self._life(spans, index, value, kept=kept, limit=limit, gone=gone)
            if value.birth <= limit and not kept:
                spans.recompute_ns += value.cost_ns
                spans.recomputed += 1
        return spans

    def _life(self, spans: Effect, index: int, value: Value, *, kept: bool, limit: int, gone: int) -> None:
        """The lifetimes of a value of a region that runs again up to position ``limit``."""
        first, last = self.model.regions[index].forward
        start, stop = self._start(value.birth), self._stop(value.death)
        room = self._room_starts[index]
        made_again = room + min(max(value.birth, first), last) - first
        used_again = room + min(max(value.last_forward_use + 1, value.birth + 1), last) - first
        again = value.birth <= limit
        if index not in value.needed_by:
            if kept and limit >= 0:
                spans.add(start, max(stop, used_again if again else gone), value.bytes)
                return
            spans.add(start, stop, value.bytes)
            if again:
                spans.add(made_again, used_again, value.bytes)
        elif kept or stop <= made_again:
            spans.add(start, stop, value.bytes)
        elif value.needed_by == {index}:
            spans.add(start, self._stop(max(value.last_forward_use, value.birth) + 1), value.bytes)
            spans.add(made_again, stop, value.bytes)
        else:  # another reader keeps the first one
            spans.add(start, stop, value.bytes)
            spans.add(made_again, gone, value.bytes)

    def _whole(self, values: Sequence[Value]) -> Effect:
        """The values with their current lifetimes."""
        spans = Effect()
        for value in values:
            spans.add(self._start(value.birth), self._stop(value.death), value.bytes)
        return spans

    def _start(self, position: int) -> int:
        """Position of an op on the axis: after the rooms before it."""
        return position + self._room[bisect_right(self._room_at, position)]

    def _stop(self, position: int) -> int:
        """End on the axis of a value that is gone at ``position``: before the room that precedes that op."""
        return position + self._room[bisect_left(self._room_at, position)]

    def _curve_of(self, effects: Iterable[Effect]) -> Int64:
        change = np.zeros(self._length + 1, np.int64)
        for effect in effects:
            np.add.at(change, effect.at, effect.change)
        return np.cumsum(change)[:-1]

    def _where(self, at: int) -> tuple[Part, int | None, int]:
        """Part of the step, region and op at a position on the axis."""
        for index, start in self._room_starts.items():
            region = self.model.regions[index]
            if start <= at < start + region.forward[1] - region.forward[0]:
                return "recompute", index, region.backward[0]
        ends = [self._start(position) for position in self._room_at]
        position = at - self._room[bisect_right(ends, at)]
        for index, region in enumerate(self.model.regions):
            if region.forward[0] <= position < region.forward[1]:
                return "forward", index, position
            if region.backward[0] <= position < region.backward[1]:
                return "backward", index, position
        return "between", None, position


def simulate(model: StepModel, policies: Sequence[Policy], placement: Placement = HERE) -> Simulation:
    """One prediction: `Simulator.run`."""
    return Simulator(model).run(policies, placement)


def todays(model: StepModel) -> tuple[Policy, ...]:
    """The current policy of each region."""
    return tuple(region.today for region in model.regions)


def keep_all(model: StepModel) -> tuple[Policy, ...]:
    """The policies without checkpointing."""
    return tuple("keep" for _ in model.regions)
