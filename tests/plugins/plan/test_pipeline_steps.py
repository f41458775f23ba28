"""Planned pipelines, played event by event: against closed formulas of their schedules."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

import pytest

from perfscope.analyzers.devices import parse_target
from perfscope.analyzers.plans.pipelines import RankParts, incomplete, played_step
from perfscope.analyzers.plans.time import StepParts
from perfscope.analyzers.predict import Range
from perfscope.model.documents.torch_plan import PlannedCollective, PlannedPipeline, StepPosition
from perfscope.plugins.plan.schedules import makespan

SECOND = 1_000_000_000


def stage(rank: int, stages: int, order: list[tuple[str, int]], forward: int, backward: int) -> RankParts:
    """A rank that runs forwards and backwards in this order, with a send and a receive where a schedule has them."""
    placed: list[PlannedCollective] = []

    def moved(kind: Literal["send", "recv"], pair: tuple[int, int], at: int, until: int | None) -> None:
        position = StepPosition(ops=at)
        placed.append(
            PlannedCollective(
                kind=kind, op=kind, bytes=0, dtype="float32", group=0, by="the program", phase="forward", at=position,
                after=position, until=None if until is None else StepPosition(ops=until), pairs=pair,
            )
        )  # fmt: skip

    for place, (kind, _) in enumerate(order):
        source, receiver = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
        if 0 <= source < stages:
            moved("recv", (source, rank), place, place)
        if 0 <= receiver < stages:
            moved("send", (rank, receiver), place + 1, None)
    kernels = tuple(
        Range(low=time, high=time) for kind, _ in order for time in ((forward if kind == "F" else backward),)
    )
    whole = [*accumulate(one.low for one in kernels)][-1]
    parts = StepParts(kernels=kernels, alone=Range(low=whole, high=whole), placed=tuple(placed))
    return RankParts(rank=rank, groups=(tuple(range(stages)),), parts=parts)


def order_of(rank: int, stages: int, micro_batches: int, *, all_forwards_first: bool) -> list[tuple[str, int]]:
    ahead = micro_batches if all_forwards_first else min(micro_batches, stages - rank)
    words = [("F", number) for number in range(ahead)]
    for number in range(micro_batches):
        words.append(("B", number))
        if ahead + number < micro_batches:
            words.append(("F", ahead + number))
    return words


@pytest.mark.parametrize(("slow", "gpipe", "shorter"), [(1, False, 0), (1, True, 0), (3, True, 0), (3, False, 6)])
def test_a_played_pipeline_takes_as_long_as_its_formula(slow: int, shorter: int, *, gpipe: bool) -> None:
    """The sends take microseconds, and the kernels seconds.

    Of 1F1B with a slow stage the formula is an upper bound: while stages 2 and 3 work on the first micro-batch (F and B
    of both, 6 seconds), the slow stage runs its next two forwards, 6 seconds.
    """
    stages, micro_batches = 4, 6
    times = [slow if rank == 1 else 1 for rank in range(stages)]
    ranks = [
        stage(rank, stages, order_of(rank, stages, micro_batches, all_forwards_first=gpipe),
              time * SECOND, 2 * time * SECOND)
        for rank, time in enumerate(times)
    ]  # fmt: skip
    step = played_step(ranks, parse_target("h100x4", None))
    assert isinstance(step, Range)
    wanted = (makespan([3.0 * time for time in times], micro_batches) - shorter) * SECOND
    assert step.low == pytest.approx(wanted, rel=1e-4)
    assert step.high == pytest.approx(wanted, rel=1e-4)


def test_sends_that_no_rank_receives_have_a_reason() -> None:
    ranks = [stage(rank, 2, [("F", 0)] * (1 + rank), SECOND, SECOND) for rank in range(2)]
    assert played_step(ranks, parse_target("h100x2", None)) == (
        "rank 0 sends 1 times to rank 1, which receives 2 times"
    )


def test_ranks_that_wait_for_one_another_have_a_reason() -> None:
    ranks = [stage(0, 2, [("B", 0), ("F", 0)], SECOND, SECOND), stage(1, 2, [("F", 0), ("B", 0)], SECOND, SECOND)]
    assert played_step(ranks, parse_target("h100x2", None)) == "its ranks wait for one another in a circle"


@pytest.mark.parametrize(("micro_batches", "reason"), [(6, ""), (13, "a recorded step has 36 sends")])
def test_steps_of_single_micro_batches_are_not_those_of_the_pipeline(micro_batches: int, reason: str) -> None:
    """Three hops forward and back for each of six micro-batches: 36 sends, and 13 micro-batches need 39."""
    pipeline = PlannedPipeline(ranks=(0, 1, 2, 3), stages=(0,), of=4, micro_batches=micro_batches)
    orders = [order_of(rank, 4, 6, all_forwards_first=True) for rank in range(4)]
    parts = [stage(rank, 4, order, 1, 1).parts for rank, order in enumerate(orders)]
    assert incomplete(pipeline, parts).startswith(reason)
    assert bool(incomplete(pipeline, parts)) == bool(reason)
