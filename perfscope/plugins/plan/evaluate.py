"""Step time and memory of a candidate: its account in every scenario, by the closed formulas of this plug-in.

A step is ``m`` micro-batches on the slowest stage, the others once (the bubble), exchanges that nothing hides, the
optimizer, and copies to the host. Exchanges are hidden by the kernels of the same device at most: with the share of
the scenario, and never more than there are kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Target, peak_flops
from perfscope.analyzers.predict import CollectiveRange, Exchange, Factors, exchange_range, factors_for
from perfscope.plugins.plan.assumptions import Scenarios, Times
from perfscope.plugins.plan.candidate import Candidate, group_of
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.exchanges import Planned, Stage, exchanges, stage_parameters
from perfscope.plugins.plan.fabric import Fabric
from perfscope.plugins.plan.kernels import (
    CATEGORIES,
    LayerWork,
    Parts,
    Pricer,
    embedding_work,
    head_work,
    layer_work,
    optimizer_work,
)
from perfscope.plugins.plan.memory import OPTIMIZER, Memory, layer_bytes, memory_of
from perfscope.plugins.plan.schedules import bubble_weights, divided

ACCOUNT = (
    "compute",
    "recomputation",
    "weights",
    "activations",
    "tokens",
    "bubble",
    "sends",
    "optimizer",
    "host copies",
)
"""Parts of a step. They add up to it, in every scenario."""

NS = 1e9


class Evaluated(Struct, frozen=True, kw_only=True):
    """A candidate with its account."""

    candidate: Candidate
    times: Times
    """Step time, ns, in each scenario."""
    account: dict[str, Times]
    memory: Memory
    """Memory of the stage that needs most."""
    needs: float
    """High end of its memory, bytes."""
    middle: float
    """Step with all assumptions in the middle, ns."""
    layers: tuple[int, ...]
    """Layers of each stage."""
    micro_batches: int
    planned: tuple[Planned, ...]
    """Exchanges of a device of the slowest stage."""
    flops: int
    """FLOPs of the slowest stage's device in one step, with recomputation."""

    @property
    def low(self) -> float:
        """Shortest step, ns."""
        return float(self.times.min())

    @property
    def high(self) -> float:
        """Longest step, ns."""
        return float(self.times.max())


class Problem(Struct, frozen=True, kw_only=True):
    """The model to plan, its batch, and the machine."""

    model: Decoder
    target: Target
    global_batch: int
    """Sequences of one step."""
    sequence: int
    scenarios: Scenarios
    fabric: Fabric

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch * self.sequence


class Evaluator:
    """Evaluates candidates of one problem; works of layers and exchanges that they share are priced once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._factors: Factors = factors_for(problem.target)
        self._pricers: dict[str, Pricer] = {}
        self._layers: dict[tuple[object, ...], tuple[LayerWork, LayerWork, Parts]] = {}
        self._ranges: dict[tuple[object, ...], CollectiveRange] = {}
        rows = problem.scenarios
        self._positions = np.stack([rows.at(name) for name in CATEGORIES])
        self._links = {False: rows.at("link"), True: rows.at("network")}

    def works(self, candidate: Candidate) -> tuple[LayerWork, LayerWork, Parts]:
        """Work of a layer, of the head, and of the embedding, for one micro-batch."""
        problem, mesh = self.problem, candidate.mesh
        key = (candidate.micro_batch, mesh.tensor, mesh.context, mesh.expert, candidate.precision)
        if key not in self._layers:
            pricer = self._pricer(candidate.precision)
            tokens = candidate.micro_batch * (problem.sequence // mesh.context)
            layer = layer_work(
                problem.model, pricer, sequences=candidate.micro_batch, sequence=problem.sequence, tensor=mesh.tensor,
                context=mesh.context, expert=mesh.expert,
            )  # fmt: skip
            head = head_work(problem.model, pricer, tokens=tokens, tensor=mesh.tensor)
            self._layers[key] = layer, head, embedding_work(problem.model, pricer, tokens=tokens, tensor=mesh.tensor)
        return self._layers[key]

    def _pricer(self, precision: str) -> Pricer:
        if precision not in self._pricers:
            self._pricers[precision] = Pricer(self.problem.target, self._factors, precision)
        return self._pricers[precision]

    def micro_batches(self, candidate: Candidate) -> int:
        """Micro-batches of one step."""
        return self.problem.global_batch // (candidate.mesh.batches * candidate.micro_batch)

    def layers(self, candidate: Candidate) -> tuple[int, ...] | None:
        """Layers of each stage, balanced by the time of the middle scenario; None if they do not divide."""
        layer, head, embedding = self.works(candidate)
        unit = _middle(layer.forward) + _middle(layer.backward(candidate.policy))
        first = _middle(embedding) / unit
        last = (_middle(head.forward) + _middle(head.backward("none"))) / unit
        chunks = candidate.chunks if candidate.schedule == "interleaved" else 1
        return divided(self.problem.model.layers, candidate.mesh.pipeline, chunks, round(first, 3), round(last, 3))

    def stages(self, layers: Sequence[int]) -> list[tuple[int, Stage, int]]:
        """Stages that differ: the place of the first such one, the stage, and how many are alike."""
        last = len(layers) - 1
        found: dict[Stage, list[int]] = {}
        for place, count in enumerate(layers):
            found.setdefault(Stage(layers=count, first=place == 0, last=place == last), []).append(place)
        return [(places[0], stage, len(places)) for stage, places in found.items()]

    def memory(self, candidate: Candidate, layers: Sequence[int]) -> Memory:
        """Memory of the stage that needs most."""
        problem = self.problem
        found = [
            memory_of(
                problem.model, candidate, stage, place, sequence=problem.sequence,
                micro_batches=self.micro_batches(candidate), platform=problem.target.platform,
            )
            for place, stage, _ in self.stages(layers)
        ]  # fmt: skip
        return max(found, key=lambda memory: memory.total.high)

    def least_ns(self, candidate: Candidate) -> float:
        """Bound of the step time: FLOPs of a mean stage at the peak, and what a pipeline of any schedule adds.

        Never above the evaluated time: layers are whole, kernels are not faster than the peak, and masked scores are
        skipped.
        """
        layer, head, _ = self.works(candidate)
        flops = layer.forward.flops + layer.backward(candidate.policy).flops
        rest = head.forward.flops + head.backward("none").flops
        stage = (self.problem.model.layers * flops + rest) / candidate.mesh.pipeline
        peak = peak_flops(self.problem.target.device, candidate.precision)
        return self.micro_batches(candidate) * stage / peak * NS if peak else 0.0

    def least_times(self, candidate: Candidate, layers: Sequence[int]) -> Times:
        """Bound of the step time in every scenario: the kernels of the slowest stage, nothing exposed, no bubble."""
        found = [self._stage_times(candidate, stage)["kernels"] for _, stage, _ in self.stages(layers)]
        slowest = max(found, key=lambda times: float(times[0]))
        result: Times = self.micro_batches(candidate) * slowest
        return result

    def evaluate(self, candidate: Candidate, layers: Sequence[int], memory: Memory) -> Evaluated:
        """Account of a candidate in every scenario."""
        stages = self.stages(layers)
        times = {place: self._stage_times(candidate, stage) for place, stage, _ in stages}
        slowest = max(times, key=lambda place: float(times[place]["kernels"][0]))
        stage = next(stage for place, stage, _ in stages if place == slowest)
        micro_batches = self.micro_batches(candidate)
        one = times[slowest]
        planned = exchanges(
            self.problem.model, candidate, stage, sequence=self.problem.sequence, micro_batches=micro_batches
        )
        exposed, sent = self._exchanged(candidate, planned, one["kernels"], micro_batches)
        account = {
            "compute": micro_batches * (one["kernels"] - one["again"]),
            "recomputation": micro_batches * one["again"],
            **exposed,
            "bubble": self._bubble(candidate, stages, times, slowest, exposed, micro_batches),
            "sends": sent,
            "optimizer": self._times(self._optimizer(candidate, stage)),
            "host copies": self._host(candidate, stage, one["kernels"], micro_batches),
        }
        times_of_step: Times = np.sum(list(account.values()), axis=0)
        return Evaluated(
            candidate=candidate,
            times=times_of_step,
            account=account,
            memory=memory,
            needs=memory.total.high,
            middle=float(times_of_step[0]),
            layers=tuple(layers),
            micro_batches=micro_batches,
            planned=planned,
            flops=micro_batches * int(one["flops"][0]),
        )

    def _times(self, parts: Parts) -> Times:
        lows = sum(getattr(parts, name).low for name in CATEGORIES)
        deltas = np.array([getattr(parts, name).high - getattr(parts, name).low for name in CATEGORIES])
        result: Times = lows + deltas @ self._positions
        return result

    def _stage_times(self, candidate: Candidate, stage: Stage) -> dict[str, Times]:
        """Kernels of one micro-batch on one stage, ns: all, what is repeated, and what backward for weights takes."""
        layer, head, embedding = self.works(candidate)
        rest = head.forward + head.backward("none") if stage.last else Parts()
        rest += embedding if stage.first else Parts()
        again = layer.again[candidate.policy].times(stage.layers)
        whole = (layer.forward + layer.inputs + layer.weights).times(stage.layers) + rest + again
        kernels = self._times(whole)
        weights = self._times(layer.weights.times(stage.layers) + (head.weights if stage.last else Parts()))
        return {
            "kernels": kernels, "again": self._times(again), "weights": weights,
            "flops": np.full(1, float(whole.flops)),
        }  # fmt: skip

    def range_of(self, candidate: Candidate, planned: Planned) -> CollectiveRange:
        """Time of one exchange over the links of its group."""
        mesh = candidate.mesh
        axes = tuple(axis for axis in candidate.order if axis in planned.axes)
        group = group_of(mesh, candidate.order, axes)
        if planned.kind == "collective-permute":
            group = group[:2]
        signature = (group[1] - group[0] if len(group) > 1 else 0, len(group), group[-1], group[len(group) // 2])
        key = (planned.kind, planned.bytes, signature)
        if key not in self._ranges:
            self._ranges[key] = exchange_range(
                Exchange(kind=planned.kind, bytes=planned.bytes, group=group),
                self.problem.fabric.seen_by(self.problem.target, group),
                self._factors,
            )
        return self._ranges[key]

    def exposed_ns(self, candidate: Candidate, planned: Sequence[Planned]) -> float:
        """Time of exchanges that would be exposed if all assumptions lay in the middle and kernels sufficed."""
        rows, total = self.problem.scenarios, 0.0
        for item in planned:
            found = self.range_of(candidate, item).time
            total += (1 - float(rows.hidden(item.hidden)[0])) * item.times * (found.low + found.high) / 2
        return total

    def planned(self, candidate: Candidate, layers: Sequence[int]) -> tuple[Planned, ...]:
        """Exchanges of a device of the stage with most layers; which devices it exchanges with does not matter."""
        _, stage, _ = max(self.stages(layers), key=lambda found: found[1].layers)
        return exchanges(
            self.problem.model, candidate, stage, sequence=self.problem.sequence,
            micro_batches=self.micro_batches(candidate),
        )  # fmt: skip

    def _exchanged(
        self, candidate: Candidate, planned: Sequence[Planned], kernels: Times, micro_batches: int
    ) -> tuple[dict[str, Times], Times]:
        """Exposed time by part of the account, and that of sends."""
        rows = self.problem.scenarios
        sums: dict[tuple[str, str], Times] = {}
        for item in planned:
            found = self.range_of(candidate, item)
            span = found.time.high - found.time.low
            time = item.times * (found.time.low + span * self._links[found.nodes > 1])
            sums[item.hidden, item.per] = sums.get((item.hidden, item.per), 0.0) + time
        free = kernels * micro_batches
        result = {name: np.zeros_like(kernels) for name in ("weights", "activations", "tokens", "sends")}
        for (name, per), time in sums.items():
            # what happens once per step overlaps with one micro-batch, not with all
            most = np.minimum(free, kernels) if per == "step" and name == "weights hidden" else free
            hidden = np.minimum(rows.hidden(name) * time, most)
            free = free - hidden
            result[_PART[name]] += time - hidden
        return {name: result[name] for name in ("weights", "activations", "tokens")}, result["sends"]

    def _bubble(
        self,
        candidate: Candidate,
        stages: Sequence[tuple[int, Stage, int]],
        times: dict[int, dict[str, Times]],
        slowest: int,
        exposed: dict[str, Times],
        micro_batches: int,
    ) -> Times:
        """Time in which the slowest stage waits for the others, each once, with their exchanges inside layers."""
        result = np.zeros_like(times[slowest]["kernels"])
        if candidate.mesh.pipeline == 1:
            return result
        whole, weights = bubble_weights(candidate.schedule, candidate.chunks)
        inside = (exposed["activations"] + exposed["tokens"]) / micro_batches
        own = next(stage.layers for place, stage, _ in stages if place == slowest)
        for place, stage, alike in stages:
            one = times[place]
            shared = inside * (stage.layers / max(1, own))
            waits = whole * (one["kernels"] - one["weights"] + shared) + weights * one["weights"]
            result = result + (alike - (place == slowest)) * np.maximum(waits, 0.0)
        return result

    def _optimizer(self, candidate: Candidate, stage: Stage) -> Parts:
        mesh = candidate.mesh
        dense, experts = stage_parameters(self.problem.model, stage, mesh.tensor, mesh.expert)
        own = dense / mesh.shards + experts / (mesh.fsdp * mesh.context)
        return optimizer_work(self._pricer(candidate.precision), own)

    def _host(self, candidate: Candidate, stage: Stage, kernels: Times, micro_batches: int) -> Times:
        """Copies to and from the host that kernels do not hide: all of them may be hidden, or none."""
        mesh, model = candidate.mesh, self.problem.model
        if candidate.offload == "none":
            return np.zeros_like(kernels)
        if candidate.offload == "optimizer":
            dense, experts = stage_parameters(model, stage, mesh.tensor, mesh.expert)
            own = dense / mesh.shards + experts / (mesh.fsdp * mesh.context)
            copied, over = 2.0 * OPTIMIZER * own, kernels
        else:
            tokens = candidate.micro_batch * (self.problem.sequence // mesh.context) * micro_batches
            copied = 2.0 * tokens * stage.layers * layer_bytes(model, candidate.policy, mesh.tensor).high
            over = kernels * micro_batches
        fast, slow = self._factors.host_link
        low, high = copied / fast * NS, copied / slow * NS
        at = self.problem.scenarios.at("weights hidden")
        time = low + (high - low) * at
        result: Times = time - np.minimum(time * self.problem.scenarios.hidden("weights hidden"), over)
        return result


_PART = {
    "weights hidden": "weights", "tensor hidden": "activations", "tokens hidden": "tokens", "sends hidden": "sends",
}  # fmt: skip


def _middle(parts: Parts) -> float:
    spans = [parts.products, parts.attention, parts.kernels]
    return sum((span.low + span.high) / 2 for span in spans)


def in_scenarios(problem: Problem, scenarios: Scenarios, evaluated: Evaluated) -> Times:
    """Step times of an evaluated candidate in other scenarios."""
    evaluator = Evaluator(replace(problem, scenarios=scenarios))
    return evaluator.evaluate(evaluated.candidate, evaluated.layers, evaluated.memory).times
