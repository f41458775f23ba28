"""The search: all candidates, those that cannot fit or cannot win left out by bounds, the front of the rest.

A candidate is better than another if it is faster in every scenario and needs no more memory (high ends). The front are
those that no other is better than. Two bounds, both closed formulas: the part of the optimizer and of the gradients
that a device holds is never more than its memory in the model, and the kernels of its slowest stage never take longer
than its step in the same scenario. A candidate above the memory of a device by the first, or slower by the second in
every scenario than another that needs no more memory, is left out: it is on no front. FLOPs at the peak order the rest.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.plan.assumptions import Times
from perfscope.plugins.plan.candidate import (
    POLICIES,
    SCHEDULES,
    Candidate,
    Mesh,
    Offload,
    Policy,
    Precision,
    Schedule,
    divisors,
    group_of,
    meshes,
    orders,
)
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.document import Searched
from perfscope.plugins.plan.evaluate import Evaluated, Evaluator, Problem
from perfscope.plugins.plan.memory import least_state
from perfscope.plugins.plan.schedules import allowed

CHUNKS = (2, 3, 4, 8)
"""Chunks per stage of interleaved schedules; more only multiply the sends."""

MOST_MICRO_BATCH = 16
"""Largest micro-batch: larger ones fill the same kernels and need more memory."""

TOLD_S = 10.0
"""Seconds between two lines of progress."""

KEPT = 4000
"""Evaluated candidates that are kept; of the others only their numbers count."""


class Space(Struct, frozen=True, kw_only=True):
    """Values of each choice that the search combines."""

    most: dict[str, int] = field(default_factory=dict)
    """Axis -> its largest size."""
    fixed: dict[str, int] = field(default_factory=dict)
    """Axis -> its only size."""
    policies: tuple[Policy, ...] = POLICIES
    schedules: tuple[Schedule, ...] = SCHEDULES
    precisions: tuple[Precision, ...] = ("bfloat16",)
    offloads: tuple[Offload, ...] = ("none",)
    micro_batches: tuple[int, ...] = ()
    """Only these; empty for powers of two."""
    regather: tuple[bool, ...] = (True, False)
    chunks: tuple[int, ...] = CHUNKS
    placed: bool = True
    """Whether orders of the axes are searched; else the order of Megatron: tensor next to each other, then context,
    expert, fsdp, data, pipeline."""


class Found(Struct, frozen=True, kw_only=True):
    """Outcome of a search."""

    front: tuple[Evaluated, ...]
    """By their middle time."""
    kept: tuple[Evaluated, ...]
    """All evaluated that fit, by their middle time, at most ``KEPT``."""
    searched: Searched


def usable_bytes(problem: Problem, headroom: float) -> int:
    """Memory of a device without the headroom. ``DataError`` if the memory is unknown."""
    memory = problem.target.memory_bytes
    if memory is None:
        raise DataError(f"--target {problem.target.asked}: its memory is unknown; give it with --memory 80GiB")
    return int(memory * (1 - headroom))


def fitting_meshes(problem: Problem, space: Space) -> Iterator[Mesh]:
    """Meshes that divide the devices, the batch and the sizes of the model."""
    limits = {**_limits(problem.model, problem.sequence), **space.most}
    limits = {axis: min(limits.get(axis, size), size) for axis, size in {**limits, **space.fixed}.items()}
    for mesh in meshes(problem.target.count, limits):
        if all(mesh.sizes[axis] == size for axis, size in space.fixed.items()) and _divides(problem, mesh):
            yield mesh


def _limits(model: Decoder, sequence: int) -> dict[str, int]:
    return {"tensor": model.heads, "expert": max(1, model.experts), "context": sequence // 2, "pipeline": model.layers}


def _divides(problem: Problem, mesh: Mesh) -> bool:
    model, sequence = problem.model, problem.sequence
    heads = model.heads % mesh.tensor == 0 and (model.kv_heads % mesh.tensor == 0 or mesh.tensor % model.kv_heads == 0)
    features = model.ffn % mesh.tensor == 0 and (model.expert_ffn or model.ffn) % mesh.tensor == 0
    experts = model.experts % mesh.expert == 0 if model.experts else mesh.expert == 1
    length = mesh.context == 1 or sequence % (2 * mesh.context) == 0
    parts = sequence // mesh.context % mesh.tensor == 0
    return heads and features and experts and length and parts and problem.global_batch % mesh.batches == 0


def candidates(problem: Problem, space: Space) -> Iterator[Candidate]:
    """All candidates of the space, without their placement."""
    for mesh in fitting_meshes(problem, space):
        each = problem.global_batch // mesh.batches
        for micro in _micro_batches(each, space):
            count = each // micro
            for schedule, chunks in _schedules(mesh, count, problem.model, space):
                for policy in space.policies:
                    for regather in space.regather if mesh.shards > 1 else (True,):
                        for precision in space.precisions:
                            for offload in space.offloads:
                                yield Candidate(
                                    mesh=mesh, micro_batch=micro, policy=policy, schedule=schedule, chunks=chunks,
                                    regather=regather, precision=precision, offload=offload,
                                )  # fmt: skip


def _micro_batches(each: int, space: Space) -> Iterator[int]:
    sizes = space.micro_batches or tuple(1 << power for power in range(MOST_MICRO_BATCH.bit_length()))
    yield from (size for size in sizes if size <= each and each % size == 0)


def _schedules(mesh: Mesh, count: int, model: Decoder, space: Space) -> Iterator[tuple[Schedule, int]]:
    if mesh.pipeline == 1:
        yield "none", 1
        return
    for schedule in space.schedules:
        if not allowed(schedule, mesh.pipeline, count):
            continue
        if schedule != "interleaved":
            yield schedule, 1
            continue
        yield from ((schedule, chunks) for chunks in space.chunks if mesh.pipeline * chunks <= model.layers + 2)


def placements(problem: Problem, mesh: Mesh, space: Space) -> tuple[tuple[str, ...], ...]:
    """Orders of the axes that differ in which devices exchange."""
    usual = tuple(axis for axis in ("tensor", "context", "expert", "fsdp", "data", "pipeline") if mesh.sizes[axis] > 1)
    if not space.placed:
        return (usual,)
    each = max(1, problem.target.node_devices)
    seen: dict[tuple[object, ...], tuple[str, ...]] = {}
    for order in (usual, *orders(mesh)):
        seen.setdefault(tuple(_reach(problem, mesh, order, axis, each) for axis in sorted(order)), order)
    return tuple(seen.values())


def _reach(problem: Problem, mesh: Mesh, order: tuple[str, ...], axis: str, each: int) -> tuple[int, ...]:
    """Devices that decide how fast an axis is: those per node on GPUs, all of them on a torus."""
    group = group_of(mesh, order, (axis,))
    if problem.target.platform == "tpu":
        return group
    inside = sum(1 for device in group if device < each)
    return inside, len(group)


class _Best:
    """Evaluated candidates that can rule others out, by memory; slower ones that need more are not kept."""

    def __init__(self) -> None:
        self._points: list[Evaluated] = []

    def add(self, item: Evaluated) -> None:
        """Keep a candidate unless a kept one is better in every scenario."""
        if not any(better(other, item) for other in self._points):
            self._points = [*(other for other in self._points if not better(item, other)), item]
            self._points.sort(key=lambda point: point.middle)

    def rules_out(self, least: Times, memory: float) -> bool:
        """Whether one is faster than the bound in every scenario, and needs no more memory."""
        return any(
            point.middle < least[0] and point.needs <= memory and bool(np.all(point.times < least))
            for point in self._points
        )


class _Leanest:
    """Candidates that do not fit: their number, and the one that needs least."""

    def __init__(self) -> None:
        self.number = 0
        self.found: tuple[float, Candidate] | None = None

    def add(self, needed: float, candidate: Candidate) -> None:
        self.number += 1
        if self.found is None or needed < self.found[0]:
            self.found = needed, candidate


def _queue(
    problem: Problem, space: Space, evaluator: Evaluator, memory: int | None, leanest: _Leanest
) -> list[tuple[float, int, Candidate]]:
    """A heap of all candidates by their bound of time. ``memory``: leave out those whose bound of memory exceeds it."""
    queue: list[tuple[float, int, Candidate]] = []
    for number, candidate in enumerate(candidates(problem, space)):
        state = least_state(problem.model, candidate)
        if memory is not None and state > memory:
            leanest.add(state, candidate)
        else:
            queue.append((evaluator.least_ns(candidate), number, candidate))
    heapq.heapify(queue)
    return queue


def search(
    problem: Problem,
    space: Space,
    headroom: float,
    *,
    budget_s: float | None = None,
    pruned: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Found:
    """Search the space. ``pruned`` False evaluates everything, for tests. ``DataError`` in one line if nothing is left.

    Candidates are evaluated by their bound of time, the least first, so that a search that the budget ends has the most
    promising ones.
    """
    began = told = time.monotonic()
    memory = usable_bytes(problem, headroom)
    evaluator, best, places = Evaluator(problem), _Best(), Places(problem, space)
    leanest = _Leanest()
    queue = _queue(problem, space, evaluator, memory if pruned else None, leanest)
    too_large, cannot_win, evaluated = leanest.number, 0, 0
    total = len(queue) + too_large
    if not total:
        raise UsageError(_no_mesh(problem, space))
    results: list[Evaluated] = []
    while queue:
        if budget_s is not None and time.monotonic() - began > budget_s:
            break
        _, _, candidate = heapq.heappop(queue)
        layers = evaluator.layers(candidate)
        if layers is None:
            total -= 1
            continue
        needed = evaluator.memory(candidate, layers)
        if needed.total.low > memory:
            too_large += 1
            leanest.add(needed.total.low, candidate)
            continue
        if pruned and best.rules_out(evaluator.least_times(candidate, layers), needed.total.high):
            cannot_win += 1
            continue
        chosen = evaluator.evaluate(places.best(evaluator, candidate, layers), layers, needed)
        evaluated += 1
        best.add(chosen)
        results.append(chosen)
        if time.monotonic() - told > TOLD_S:
            told = time.monotonic()
            progress(f"{evaluated:,} of {total:,} candidates, {cannot_win + too_large:,} left out by bounds")
    if not results:
        raise DataError(_nothing_fits(problem, memory, headroom, leanest.found, ended=bool(queue)))
    results.sort(key=lambda item: item.middle)
    front = tuple(front_of(results))
    searched = Searched(
        candidates=total, too_large=too_large, cannot_win=cannot_win, evaluated=evaluated, front=len(front),
        complete=not queue, seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip
    return Found(front=front, kept=tuple(results[:KEPT]), searched=searched)


class Places:
    """Orders of the axes of each mesh, found once."""

    def __init__(self, problem: Problem, space: Space) -> None:
        """``space``: whether orders are searched."""
        self._problem, self._space = problem, space
        self._known: dict[Mesh, tuple[tuple[str, ...], ...]] = {}

    def best(self, evaluator: Evaluator, candidate: Candidate, layers: Sequence[int]) -> Candidate:
        """The candidate in the order of axes that exposes least; on a tie, the usual one."""
        mesh = candidate.mesh
        if mesh not in self._known:
            self._known[mesh] = placements(self._problem, mesh, self._space)
        placed = [replace(candidate, order=order) for order in self._known[mesh]]
        if len(placed) == 1:
            return placed[0]
        planned = evaluator.planned(candidate, layers)
        return min(placed, key=lambda item: evaluator.exposed_ns(item, planned))


def better(one: Evaluated, other: Evaluated) -> bool:
    """Whether ``one`` is faster in every scenario and needs no more memory."""
    return one.needs <= other.needs and bool(np.all(one.times < other.times))


def front_of(results: Sequence[Evaluated]) -> list[Evaluated]:
    """Candidates that no other is better than, in the order of ``results``, that of their middle time."""
    front: list[Evaluated] = []
    for item in results:
        # what is better than an item has a shorter middle time, and being better is transitive
        if not any(better(other, item) for other in front):
            front.append(item)
    return front


def equal(one: Evaluated, other: Evaluated) -> bool:
    """Whether no scenario order holds in all scenarios: which of the two is faster is not known."""
    return not (bool(np.all(one.times < other.times)) or bool(np.all(one.times > other.times)))


def _no_mesh(problem: Problem, space: Space) -> str:
    """The number that would have to change so that a mesh divides the batch and the model."""
    count, batch = problem.target.count, problem.global_batch
    fixed = "".join(f" with {axis} {size}" for axis, size in space.fixed.items())
    near = {max(1, batch // size) * size for size in divisors(count)} | {
        -(-batch // size) * size for size in divisors(count)
    }  # multiples of the groups that can share a batch
    for other in sorted(near, key=lambda value: (abs(value - batch), value)):
        if next(fitting_meshes(replace(problem, global_batch=other), space), None) is not None:
            return (
                f"--global-batch {batch}: no mesh of {count} devices{fixed} divides it; the nearest that one divides "
                f"is {other}"
            )
    model = problem.model
    return (
        f"--target {problem.target.asked}: no mesh of {count} devices{fixed} divides the model: {model.layers} layers, "
        f"{model.heads} heads, {model.kv_heads} of keys, {model.ffn} features, {model.experts} experts, "
        f"sequence {problem.sequence}"
    )


def _nothing_fits(
    problem: Problem, memory: int, headroom: float, closest: tuple[float, Candidate] | None, *, ended: bool
) -> str:
    from perfscope.model.units import format_bytes

    if closest is None:
        return "--budget: it ended before the first candidate; give more time" if ended else "no candidate is left"
    least, candidate = closest
    share = least / (1 - headroom)
    return (
        f"--target {problem.target.asked}: {problem.model.name} fits on no mesh: the leanest ({candidate.mesh.words}) "
        f"needs at least {format_bytes(round(least))} of the {format_bytes(memory)} that {headroom:.0%} of headroom "
        f"leave of a device; a device would need {format_bytes(round(share))}"
    )
