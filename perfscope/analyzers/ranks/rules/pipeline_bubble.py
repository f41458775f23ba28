"""Stages of a pipeline wait for their neighbours: too few microbatches, or stages of uneven size.

Why it costs:
    A stage of a pipeline computes only between what it receives from the stage before and from the one after.
    While the pipeline fills and drains, stages wait: with p stages and m microbatches each idles (p - 1) / (m + p - 1)
    of a step, whatever its speed. And all go at the pace of the slowest stage: where the last one has the output layer
    and the loss on top of its share of the layers, the others wait for it at every microbatch.

How it is found:
    From traces of all ranks of a pipeline: ranks joined by sends and receives. A receive is a kernel that waits on the
    device until its data is there. Where the recording names the ranks of a message, its send and receive are put
    together: the shorter of them is the transfer. Otherwise that is the shortest of its operation and size. What a
    kernel takes beyond it while the device computes nothing is waiting. A device that does nothing at all is listed
    beside it and not counted: its host may be why. What a stage waits because it computes less than the slowest one is
    put down to uneven stages, the rest to the schedule. Microbatches are counted from the sends of a step where steps
    are recorded and the first and last stage send half as often as those between them; then the share that GPipe and
    1F1B without interleaving cannot avoid stands beside the measured one (Huang et al. 2019; Narayanan et al. 2021).

    The cost is measured and an upper bound: the mean wait of the stages, what a pipeline of even stages without
    a bubble would save. One rank alone does not show a pipeline: there the rule abstains, as it does where stages are
    missing, where sends ran on the host (gloo), and where three or more ranks all send alike and the program does not
    call it a pipeline: ring attention does the same.

Fix:
    More microbatches: (p - 1) / (m + p - 1) is 43% of a step with 4 stages and 4 microbatches, 9% with 32. Where memory
    or the batch does not allow it, interleaved stages (`ScheduleInterleaved1F1B` of torch.distributed.pipelining,
    `--num-layers-per-virtual-pipeline-stage` of Megatron-LM): v parts a rank make the bubble v times smaller. Or split
    the backward pass (`ScheduleInterleavedZeroBubble`). Uneven stages: give the slowest one fewer layers
    (`--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`, another split point).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perfscope.analyzers.ranks.job import MIXED, has_ranks, locals_of, only_compared
from perfscope.analyzers.ranks.pipeline import Pipeline, Stage, between_two, bubble_share, pipelines_of
from perfscope.analyzers.ranks.sets import RankSet, rank_sets
from perfscope.analyzers.time import cost_text, spans_of_ranks, timed_cost, whole_ns
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, format_share

NEEDS = ()

WAIT_SHARE = 0.05
"""Of the steps' time, as mean wait of a stage. 32 microbatches on 4 stages leave 9%: below half of that, nothing."""

UNEVEN_SHARE = 0.5
"""Of the waiting: where uneven stages explain more than half of it, they are what to mend first."""

ROWS = 20


def examined(trace: Trace) -> Scope:
    """Nothing: one rank alone says nothing."""
    return Scope(0, "sends and receives in the recording")


def compared(traces: Sequence[Trace]) -> Scope:
    """Sends and receives."""
    return Scope(
        sum(between_two(local) for trace in traces if has_ranks(trace) for local in trace.fact(locals_of)),
        "sends and receives in the recording",
    )


check = only_compared


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield one finding for each pipeline of a job whose stages wait long for their neighbours."""
    ranked = [trace for trace in traces if has_ranks(trace)]
    if not any(between_two(local) for trace in ranked for local in trace.fact(locals_of)):
        return  # no sends and receives, so no pipeline
    reasons, judged = [], 0
    for ranks in rank_sets(traces):
        pipelines = pipelines_of(ranks)
        if not pipelines:
            reasons.append("who sends to whom is not recorded: the groups of sends and receives have no members")
        for pipeline in pipelines:
            why = _cannot_tell(pipeline, ranks)
            if why is not None:
                reasons.append(why)
                continue
            judged += 1
            finding = _judge(pipeline, ranks)
            if finding is not None:
                yield finding
    if not judged:
        raise AbstainError(reasons[0] if reasons else "the traces do not tell their ranks")


def _cannot_tell(pipeline: Pipeline, ranks: RankSet) -> str | None:
    """Why a pipeline cannot be judged; None if it can."""
    if not ranks.job.groups_agree:
        return MIXED
    if len(pipeline.stages) == 1:
        return "one rank alone does not show a pipeline: record all its stages"
    if not pipeline.complete:
        return f"{len(pipeline.stages):,} of {len(pipeline.ranks):,} stages of a pipeline are here: record all of them"
    if pipeline.on_host:
        return "the sends and receives ran on the host (gloo): what they cost the devices is not recorded"
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
        else f"{count:,} microbatches cannot do with less than {expected:.0%} without interleaving"
    )
    return Finding(
        subject="stages of uneven size" if is_uneven else "bubble of the schedule",
        title=f"{size} pipeline stages wait for their neighbours: {cost_text(traces[slowest.rank], cost, longest)} "
        "each",
        detail=f"{explains[0].upper()}{explains[1:]} {format_share(uneven, cost)} of it; {least}.",
        **timed_cost(traces[slowest.rank], cost, longest),
        where=Where(op="send, recv"),
        ranks=pipeline.ranks,
        evidence=_evidence(pipeline, whole, slowest, expected),
        spans=spans_of_ranks(_exchanges(pipeline, traces)),
        advice=_uneven_advice(slowest, pipeline) if is_uneven else _schedule_advice(size, count),
    )


def _exchanges(pipeline: Pipeline, traces: Mapping[int, Trace]) -> list[tuple[int, int, int]]:
    """Sends and receives of its stages, the longest first: most of such a one is waiting."""
    results = [
        (stage.rank, local.start_ns, local.end_ns)
        for stage in pipeline.stages
        for local in traces[stage.rank].fact(locals_of)
        if between_two(local)
    ]
    return sorted(results, key=lambda piece: piece[1] - piece[2])


def _for_slowest(stage: Stage, slowest: Stage) -> int:
    """The part of its wait that ends with the slowest stage's longer compute."""
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
    return tuple(rows[:ROWS])


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
