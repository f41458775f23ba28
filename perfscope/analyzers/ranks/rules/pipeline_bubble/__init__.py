"""Stages of a pipeline wait for their neighbours: too few microbatches, or stages of uneven size.

Example:
    Before::

        schedule = ScheduleGPipe(stage, n_microbatches=4)

    After::

        schedule = ScheduleGPipe(stage, n_microbatches=32)

Why it costs:
    A stage of a pipeline computes only between receiving from the previous stage and from the next one. While the
    pipeline fills and drains, stages wait: with p stages and m microbatches each idles (p - 1) / (m + p - 1) of a step,
    whatever its speed. All stages go at the pace of the slowest one: if the last has the output layer and the loss in
    addition to its share of the layers, the others wait for it at every microbatch.

How it is found:
    From traces of all ranks of a pipeline: ranks joined by sends and receives. A receive is a kernel that waits on the
    device until its data is there. If the recording names the ranks of a message, its send and receive are matched, and
    the shorter of them is the transfer. Otherwise the transfer is the shortest kernel of its operation and size. The
    rest of a kernel while the device computes nothing is waiting. Time of a completely idle device is listed separately
    and not counted, because its host may be the cause. Waiting of stages that compute less than the slowest one is
    attributed to uneven stages, the rest to the schedule. Microbatches are counted from the sends of a step, if steps
    are recorded and the first and last stage send half as often as those between them; then the finding also shows the
    share that GPipe and 1F1B without interleaving cannot avoid (Huang et al. 2019; Narayanan et al. 2021).

    The cost is measured and an upper bound: the mean wait of the stages, which a pipeline of even stages without a
    bubble would save. The rule abstains for one rank alone, which does not show a pipeline, for missing stages, for
    sends on the host (gloo), and if three or more ranks all send alike and the program does not call it a pipeline,
    because ring attention does the same.

    In compiled XLA programs: a loop of m + p - 1 turns with a permutation along p devices that takes one of m inputs,
    or writes one of m results, per turn. In (p - 1) of its turns a stage computes without input. The cost is that part
    of the loop's time, measured if recorded, else modelled.

Fix:
    More microbatches: (p - 1) / (m + p - 1) is 43% of a step with 4 stages and 4 microbatches, 9% with 32. If memory
    or the batch does not allow it, interleaved stages (`ScheduleInterleaved1F1B` of torch.distributed.pipelining,
    `--num-layers-per-virtual-pipeline-stage` of Megatron-LM): v parts per rank make the bubble v times smaller. Or
    split the backward pass (`ScheduleInterleavedZeroBubble`). Uneven stages: give the slowest one fewer layers
    (`--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`, another split point).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from perfscope.analyzers.ranks.job import MIXED, Local, Member, has_ranks, locals_of, only_compared
from perfscope.analyzers.ranks.matching import Group, waits_by_kernel
from perfscope.analyzers.ranks.sets import RankSet, named_axis, rank_sets
from perfscope.analyzers.spans import spans_of_ranks
from perfscope.analyzers.time import device_times, exposed_communication, step_windows, timed_cost, whole_ns
from perfscope.model.collectives import POINT_TO_POINT
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Scope, Where
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns, format_share

WAIT_SHARE = 0.05
"""Mean wait of a stage as a share of the steps from which it is reported; 32 microbatches on 4 stages leave 9 %."""

UNEVEN_SHARE = 0.5
"""Share of the waiting from which uneven stages are the main cause."""

Kind = tuple[str, int | None]


def examined(trace: Trace) -> Scope:
    """Count the permutations of compiled programs; sends and receives of a single rank have no finding."""
    if not trace.hlo:
        return Scope(0, "sends and receives in the recording")
    from perfscope.analyzers.hlo import collectives

    count = sum(one.kind == "collective-permute" for one in trace.fact(collectives))
    return Scope(count, "permutations in the compiled programs")


def compared(traces: Sequence[Trace]) -> Scope:
    """Count the sends and receives."""
    return Scope(
        sum(between_two(local) for trace in traces if has_ranks(trace) for local in trace.fact(locals_of)),
        "sends and receives in the recording",
    )


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per pipeline inside a compiled program; `compare` covers pipelines of ranks."""
    if not trace.hlo:
        yield from only_compared(trace)
        return
    from perfscope.analyzers.ranks.rules.pipeline_bubble.program import pipeline_findings

    yield from pipeline_findings(trace)


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding for each pipeline of a job whose stages wait long for their neighbours."""
    ranked = [trace for trace in traces if has_ranks(trace)]
    if not any(between_two(local) for trace in ranked for local in trace.fact(locals_of)):
        return  # without sends and receives there is no pipeline
    reasons, judged = [], 0
    for ranks in rank_sets(traces):
        pipelines = pipelines_of(ranks)
        if not pipelines:
            reasons.append("who sends to whom is not recorded: the groups of sends and receives have no members")
        for pipeline in pipelines:
            why = _obstacle(pipeline, ranks)
            if why is not None:
                reasons.append(why)
                continue
            judged += 1
            finding = _judge(pipeline, ranks)
            if finding is not None:
                yield finding
    if not judged:
        raise AbstainError(reasons[0] if reasons else "the traces do not tell their ranks")


def _obstacle(pipeline: Pipeline, ranks: RankSet) -> str | None:
    """Return why a pipeline cannot be evaluated; None if it can."""
    if not ranks.job.groups_agree:
        return MIXED
    if len(pipeline.stages) == 1:
        return "a single rank does not show a pipeline: record all its stages"
    if not pipeline.complete:
        return f"{len(pipeline.stages):,} of {len(pipeline.ranks):,} stages of a pipeline are here: record all of them"
    if pipeline.on_host:
        return "the sends and receives ran on the host (gloo): their cost for the devices is not recorded"
    if pipeline.ring and not pipeline.named:
        return (
            "all ranks send and receive alike: interleaved stages, or a ring (ring attention); "
            "name the group (init_device_mesh(..., mesh_dim_names=('pp',)))"
        )
    return None


def _judge(pipeline: Pipeline, ranks: RankSet) -> Finding | None:
    traces = ranks.job.traces
    whole = {stage.rank: whole_ns(traces[stage.rank]) for stage in pipeline.stages}
    size, longest = len(pipeline.stages), max(whole.values())
    cost = sum(stage.wait_ns for stage in pipeline.stages) // size
    if cost < WAIT_SHARE * longest or longest <= 0:
        return None
    slowest = max(pipeline.stages, key=lambda stage: stage.compute_ns)
    uneven = sum(_for_slowest(stage, slowest) for stage in pipeline.stages) // size
    is_uneven = uneven > UNEVEN_SHARE * cost
    count = pipeline.microbatches
    expected = None if count is None else bubble_share(size, count)
    explains = (
        f"rank {slowest.rank} computes longest ({format_ns(slowest.compute_ns)}), which explains"
        if is_uneven
        else "uneven stages explain"
    )
    least = (
        "microbatches cannot be counted"
        if count is None or expected is None
        else f"{count:,} microbatches need at least {expected:.0%} without interleaving"
    )
    return Finding(
        subject="stages of uneven size" if is_uneven else "bubble of the schedule",
        title=f"{size} pipeline stages wait for their neighbours",
        detail=f"{explains[0].upper()}{explains[1:]} {format_share(uneven, cost)} of it; {least}.",
        **timed_cost(traces[slowest.rank], cost, longest),
        where=Where(op="send, recv"),
        ranks=pipeline.ranks,
        evidence=_evidence(pipeline, whole, slowest, expected),
        spans=spans_of_ranks(_exchanges(pipeline, traces)),
        advice=_uneven_advice(slowest, pipeline) if is_uneven else _schedule_advice(size, count),
    )


def _exchanges(pipeline: Pipeline, traces: Mapping[int, Trace]) -> list[tuple[int, int, int]]:
    """Return the sends and receives of its stages, longest first, because a long one is mostly waiting."""
    results = [
        (stage.rank, local.start_ns, local.end_ns)
        for stage in pipeline.stages
        for local in traces[stage.rank].fact(locals_of)
        if between_two(local)
    ]
    return sorted(results, key=lambda piece: piece[1] - piece[2])


def _for_slowest(stage: Stage, slowest: Stage) -> int:
    """Return the part of its wait that ends with the slowest stage's longer compute."""
    return min(stage.wait_ns, slowest.compute_ns - stage.compute_ns)


def _evidence(
    pipeline: Pipeline, whole: dict[int, int], slowest: Stage, expected: float | None
) -> tuple[dict[str, Cell], ...]:
    rows: list[dict[str, Cell]] = [
        {
            "rank": stage.rank,
            "stage": index,
            "wait_ns": stage.wait_ns,
            "wait_share": round(stage.wait_ns / max(1, whole[stage.rank]), 4),
            "expected_share": None if expected is None else round(expected, 4),
            "mostly_for": stage.mostly_for,
            "for_slowest_ns": _for_slowest(stage, slowest),
            "compute_ns": stage.compute_ns,
            "exposed_send_recv_ns": stage.exposed_ns,
            "idle_ns": stage.idle_ns,
            "kernels": stage.kernels,
        }
        for index, stage in enumerate(pipeline.stages)
    ]
    rows.sort(key=lambda row: -int(row["wait_ns"] or 0))
    return tuple(rows[:MOST_ROWS])


def _uneven_advice(slowest: Stage, pipeline: Pipeline) -> str:
    least = min(pipeline.stages, key=lambda stage: stage.compute_ns)
    return (
        f"Move layers from rank {slowest.rank} ({format_ns(slowest.compute_ns)} of compute) to rank {least.rank} "
        f"({format_ns(least.compute_ns)}). Choose another split point, or set --decoder-first-pipeline-num-layers and "
        "--decoder-last-pipeline-num-layers of Megatron-LM."
    )


def _schedule_advice(size: int, count: int | None) -> str:
    more = (
        "Use more microbatches"
        if count is None
        else f"Use more microbatches ({4 * count:,} leave {bubble_share(size, 4 * count):.0%})"
    )
    return (
        f"{more}, or interleaved stages. ScheduleInterleaved1F1B (--num-layers-per-virtual-pipeline-stage of "
        "Megatron-LM) makes the bubble as many times smaller as each rank has parts."
    )


# Pipelines of a job: ranks that send to and receive from each other, and the wait of each stage for its neighbours.
# If both sides of a message are known (matching.pair), the shorter one is the transfer and the rest of the other is
# waiting for that rank. Otherwise the shortest kernel of its operation and size in the pipeline is the transfer. The
# excess of a stage's kernels, as far as the device computes nothing meanwhile, is waiting.


class Stage(Struct, frozen=True, kw_only=True):
    """One rank of a pipeline; times are summed over its trace."""

    rank: int
    sends: int
    """Number of sends of the largest size (smaller ones transmit shapes); 0 if kernels do not distinguish sends from
    receives.
    """
    kernels: int
    steps: int
    """Number of steps; 0 if unknown."""
    compute_ns: int
    exposed_ns: int
    """Time in sends and receives while the device computed nothing."""
    wait_ns: int
    """``exposed_ns`` without the transfers themselves."""
    mostly_for: int | None
    """Rank that accounts for most of ``wait_ns``; None if no other side of its messages is known."""
    idle_ns: int
    """Time in which the device did nothing; excluded from ``wait_ns`` because the host may be the cause."""


class Pipeline(Struct, frozen=True, kw_only=True):
    """Ranks that are joined by sends and receives."""

    ranks: Group
    named: bool
    """Whether the program calls it a pipeline."""
    stages: tuple[Stage, ...]
    """The recorded stages, by rank."""
    on_host: bool
    """Whether some of its sends and receives ran on the host (gloo), where waits are unknown."""

    @property
    def complete(self) -> bool:
        """Whether all its ranks are recorded."""
        return len(self.stages) == len(self.ranks)

    @property
    def ring(self) -> bool:
        """Whether each of at least three ranks sends as much as the others, so that there is no first or last stage."""
        return len(self.ranks) > 2 and len({(stage.sends, stage.kernels) for stage in self.stages}) == 1

    @property
    def microbatches(self) -> int | None:
        """Number of microbatches per step: the first and last stage send one message per microbatch, the others two.

        None if steps are unknown, or if the counts do not match such a schedule (interleaved stages).
        """
        each = set()
        for stage in self.stages:
            if not self.complete or not stage.steps or not stage.sends or stage.sends % stage.steps:
                return None
            each.add(stage.steps)
        counts = sorted(stage.sends // stage.steps for stage in self.stages)
        fits = len(each) == 1 and counts[0] == counts[1] and all(count == 2 * counts[0] for count in counts[2:])
        return counts[0] if fits else None


def bubble_share(stages: int, microbatches: int) -> float:
    """Return the idle share of each stage in a step: (p - 1) / (m + p - 1), for GPipe and 1F1B without interleaving.

    Huang et al. 2019 (GPipe); Narayanan et al. 2021 (Megatron-LM, section 2.2), relative to the ideal time there.
    """
    return (stages - 1) / (microbatches + stages - 1)


def pipelines_of(ranks: RankSet) -> tuple[Pipeline, ...]:
    """Return the pipelines of a job: groups with sends and receives, merged if they share a rank."""
    sending: dict[Group, set[str]] = defaultdict(set)
    for member in ranks.job.members:
        for local in member.collectives:
            if local.ranks is not None and len(local.ranks) > 1 and between_two(local):
                sending[local.ranks].update(() if local.description is None else (local.description,))
    pipelined: list[set[int]] = []
    for group in sorted(sending):
        joined = [connected for connected in pipelined if connected.intersection(group)]
        pipelined = [connected for connected in pipelined if connected not in joined] + [set(group).union(*joined)]
    pipelines = []
    for members in pipelined:
        axes = [named_axis(sorted(called)) for group, called in sending.items() if members >= set(group)]
        named = any(axis is not None and axis[0] == "PP" for axis in axes)
        pipelines.append(_pipeline(tuple(sorted(members)), ranks, named=named))
    return tuple(pipelines)


def between_two(local: Local) -> bool:
    """Whether it is a send or a receive. In a larger group, a kernel of sends and receives may be an all-to-all."""
    if local.operation in POINT_TO_POINT:
        return True
    return local.operation in ("send_recv", "coalesced") and local.ranks is not None and len(local.ranks) == 2


def _pipeline(members: Group, ranks: RankSet, *, named: bool) -> Pipeline:
    waits = waits_by_kernel(ranks.pairing)
    recorded = [member for member in ranks.job.members if member.rank in members]
    messages = {
        member.rank: [
            collective
            for collective in member.collectives
            if between_two(collective) and set(collective.ranks or ()) <= set(members)
        ]
        for member in recorded
    }
    kernels = {rank: [local for local in found if local.kernel != MISSING] for rank, found in messages.items()}
    launched = [local for locals_ in kernels.values() for local in locals_]
    largest = max((local.elements or 0 for local in launched), default=0)
    shortest: dict[Kind, int] = {}
    for local in launched:
        kind = local.operation, local.elements
        shortest[kind] = min(shortest.get(kind, local.duration_ns), local.duration_ns)
    return Pipeline(
        ranks=members,
        named=named,
        on_host=kernels != messages,
        stages=tuple(_stage(member, kernels[member.rank], shortest, largest, waits) for member in recorded),
    )


def _stage(
    member: Member,
    kernels: Sequence[Local],
    shortest: Mapping[Kind, int],
    largest: int,
    waits: Mapping[tuple[int, int], tuple[int, int]],
) -> Stage:
    trace = member.trace
    exposed = trace.fact(exposed_communication)
    waited: Counter[int | None] = Counter()
    for kernel in kernels:
        beyond = kernel.duration_ns - shortest[kernel.operation, kernel.elements]
        wait_ns, other = waits.get((member.rank, kernel.kernel), (beyond, None))
        waited[other] += min(int(exposed[kernel.kernel]), wait_ns)
    by_rank = {other: ns for other, ns in waited.items() if other is not None and ns > 0}
    devices = trace.fact(device_times)
    return Stage(
        rank=member.rank,
        sends=sum(kernel.operation == "send" and (kernel.elements or 0) == largest for kernel in kernels),
        kernels=len(kernels),
        steps=trace.fact(step_windows).count,
        compute_ns=sum(device.compute_ns for device in devices),
        exposed_ns=sum(int(exposed[kernel.kernel]) for kernel in kernels),
        wait_ns=waited.total(),
        mostly_for=max(sorted(by_rank), key=lambda other: by_rank[other], default=None),
        idle_ns=sum(device.idle_ns for device in devices),
    )
