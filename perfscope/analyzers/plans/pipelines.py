"""A step of a planned pipeline: the stages of all ranks, played event by event over their sends and receives.

Each rank runs its kernels in the order of its program. A transfer begins when the sender has made the tensor and the
link between the two is free; at the high end also not before the receive is posted, because large messages wait for
their receiver. A rank goes on where its program waits for the transfer. No formula of a schedule is used, so every
schedule is played alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Target
from perfscope.analyzers.plans.collectives import collective_once, step_sums, step_tasks
from perfscope.analyzers.plans.time import PlanWork, StepParts, plan_works
from perfscope.analyzers.predict import Range, Task, factors_for, play
from perfscope.model.documents.torch_plan import PlannedPipeline
from perfscope.model.torch_plan import fits, memory_as_run
from perfscope.model.trace import Trace

LOW, HIGH = 0, 1

UNEVEN = 1.1
"""Ratio to the mean that is reported: less is within the rounding of layers to stages."""


class StageRank(Struct, frozen=True, kw_only=True):
    """One rank of a pipeline."""

    rank: int
    stages: tuple[int, ...]
    flops: int
    """FLOPs of products and attention in its step."""
    works_ns: Range
    """Its step without waits for other ranks."""
    waits_ns: Range
    """The rest of the pipeline's step."""
    peak_bytes: int | None
    fits: bool | None
    sends: int
    sent_bytes: int


class PipelineStep(Struct, frozen=True, kw_only=True):
    """One step of a pipeline."""

    pipeline: PlannedPipeline
    """As one of its ranks has it: its stages are those of that rank."""
    rows: tuple[StageRank, ...]
    step_ns: Range | None
    """``None``: it could not be played; ``problem`` has the reason."""
    problem: str = ""

    @property
    def slowest(self) -> StageRank:
        """The rank that works longest."""
        return max(self.rows, key=lambda one: (one.works_ns.middle, -one.rank))

    @property
    def imbalance(self) -> float:
        """Time that the slowest rank works, as a multiple of the mean; 1 if no rank differs."""
        mean = sum(one.works_ns.middle for one in self.rows) / len(self.rows)
        ratio = self.slowest.works_ns.middle / mean if mean else 1.0
        return ratio if ratio >= UNEVEN else 1.0

    @property
    def peak_bytes(self) -> int | None:
        """Peak of the rank that needs most; ``None`` if that of a rank is unknown."""
        peaks = [one.peak_bytes for one in self.rows]
        return None if None in peaks else max(peak for peak in peaks if peak is not None)


def pipeline_step(trace: Trace) -> PipelineStep | None:
    """The pipeline that a trace's plans are the ranks of; ``None`` if they are not."""
    target = trace.target
    works = sorted(trace.fact(plan_works), key=rank_of)
    pipeline = next(
        (one.pipeline for work in works if (one := work.held.plan.processes) is not None and one.pipeline), None
    )
    if target is None or pipeline is None:
        return None
    parts = [_parts(work) for work in works]
    missing = sorted(set(pipeline.ranks) - {rank_of(work) for work in works})
    if missing:
        problem = f"rank {missing[0]} was not planned"
    elif any(one is None for one in parts):
        problem = f"no whole step of rank {rank_of(works[parts.index(None)])} was seen"
    else:
        problem = incomplete(pipeline, [one.parts for one in parts if one is not None])
    step = problem or played_step([one for one in parts if one is not None], target)
    return PipelineStep(
        pipeline=pipeline,
        rows=tuple(_rank(work, step if isinstance(step, Range) else None, target) for work in works),
        step_ns=step if isinstance(step, Range) else None,
        problem=step if isinstance(step, str) else "",
    )


def incomplete(pipeline: PlannedPipeline, parts: Sequence[StepParts]) -> str:
    """Why the steps of all ranks are not those of the pipeline; empty if each micro-batch was sent through it."""
    sends = sum(one.kind == "send" for part in parts for one in part.placed)
    least = pipeline.micro_batches * (len(pipeline.ranks) - 1)
    if sends >= least:
        return ""
    return (
        f"a recorded step has {sends} sends, and {pipeline.micro_batches} micro-batches need {least}: without an "
        "optimizer its steps are calls of the model, so mark them with perfscope.step()"
    )


def rank_of(work: PlanWork) -> int:
    """The planned rank."""
    return 0 if work.held.plan.processes is None else work.held.plan.processes.planned_rank


def _rank(work: PlanWork, step: Range | None, target: Target) -> StageRank:
    parts, memory = work.parts_as_run, memory_as_run(work.held.plan)
    works = work.as_run.step if parts is None else parts.alone
    processes = work.held.plan.processes
    pipeline = None if processes is None else processes.pipeline
    sent = [one for one in (() if parts is None else parts.placed) if one.kind == "send"]
    waits = Range(low=0, high=0) if step is None else _ordered(step.low - works.low, step.high - works.high)
    return StageRank(
        rank=rank_of(work),
        stages=() if pipeline is None else pipeline.stages,
        flops=work.as_run.flops,
        works_ns=works,
        waits_ns=waits,
        peak_bytes=None if memory is None else memory.peak_bytes,
        fits=None if memory is None else fits(memory, target.memory_bytes),
        sends=len(sent),
        sent_bytes=sum(one.bytes for one in sent),
    )


def _ordered(first: int, second: int) -> Range:
    return Range(low=min(first, second), high=max(first, second))


class RankParts(Struct, frozen=True, kw_only=True):
    """The pieces of the step of one rank."""

    rank: int
    groups: tuple[tuple[int, ...], ...]
    """Ranks of its process groups."""
    parts: StepParts


def _parts(work: PlanWork) -> RankParts | None:
    processes, parts = work.held.plan.processes, work.parts_as_run
    if processes is None or parts is None:
        return None
    return RankParts(rank=processes.planned_rank, groups=processes.groups, parts=parts)


def played_step(ranks: Sequence[RankParts], target: Target) -> Range | str:
    """Time of the step of all ranks, or why it cannot be played."""
    numbers = Counter(
        (one.pairs, one.kind) for rank in ranks for one in rank.parts.placed if one.kind in ("send", "recv")
    )
    for pair, _ in numbers:
        sends, receives = numbers[pair, "send"], numbers[pair, "recv"]
        if pair is not None and sends != receives:
            return f"rank {pair[0]} sends {sends} times to rank {pair[1]}, which receives {receives} times"
    try:
        ends = [play(_in_order(_tasks(ranks, target, side))).makespan for side in (LOW, HIGH)]
    except CycleError:
        return "its ranks wait for one another in a circle"
    return _ordered(*ends)


def _tasks(ranks: Sequence[RankParts], target: Target, side: int) -> list[Task]:
    """Tasks of all ranks at one end; a received tensor waits for the task that sends it."""
    tasks: list[Task] = []
    streams: dict[Hashable, int] = {}
    ends: dict[str, dict[Hashable, int]] = {"send": {}, "recv": {}}
    factors = factors_for(target)
    for rank in ranks:
        parts, first = rank.parts, len(tasks)
        sums, stretch = step_sums(parts.kernels, parts.alone)
        once = [collective_once(one, rank.groups, target, factors).time for one in parts.placed]
        takes = [0 if one.kind == "recv" else time.high if side else time.low
                 for one, time in zip(parts.placed, once, strict=True)]  # fmt: skip
        own, places = step_tasks(sums[side], stretch[side], parts.placed, takes)
        links: dict[int, Hashable] = {}
        seen: Counter[Hashable] = Counter()
        for one, place in zip(parts.placed, places, strict=True):
            if one.kind in ends and one.pairs is not None:
                link = links[place] = (one.kind, one.pairs)
                ends[one.kind][one.pairs, seen[link]] = first + place
                seen[link] += 1
        for place, task in enumerate(own):
            stream = streams.setdefault(links.get(place, (rank.rank, task.stream)), len(streams))
            tasks.append(replace(task, stream=stream, waits=tuple(first + wait for wait in task.waits)))
    for key, sent in ends["send"].items():
        received = ends["recv"][key]
        if side == HIGH:  # a large message waits for its receiver
            tasks[sent] = replace(tasks[sent], waits=(*tasks[sent].waits, *tasks[received].waits))
        tasks[received] = replace(tasks[received], waits=(*tasks[received].waits, sent))
    return tasks


def _in_order(tasks: Sequence[Task]) -> list[Task]:
    """The tasks so that each follows those that it waits for; ``CycleError`` if there is no such order."""
    last: dict[int, int] = {}
    before: dict[int, tuple[int, ...]] = {}
    for number, task in enumerate(tasks):
        before[number] = (*task.waits, *((last[task.stream],) if task.stream in last else ()))
        last[task.stream] = number
    order = list(TopologicalSorter(before).static_order())
    place = {number: index for index, number in enumerate(order)}
    return [replace(tasks[number], waits=tuple(place[wait] for wait in tasks[number].waits)) for number in order]
