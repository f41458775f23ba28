"""The modelled cost of planned collectives, on steps that are small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfscope.analyzers.estimate.assumptions import factors_for
from perfscope.analyzers.estimate.collective_time import Exchange, exchange_range
from perfscope.analyzers.estimate.spans import Range
from perfscope.analyzers.facts.plan_collectives import Asked, StepExchanges, eager_asked, planned_asked, step_exchanges
from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.profiler.aot.torch_processes_file import (
    GraphCollectives,
    GraphRun,
    Moment,
    PlannedCollective,
    PlannedProcesses,
)

TARGET = parse_target("h100x8", None)
FACTORS = factors_for(TARGET)
EVERYBODY = tuple(range(8))
US = 1_000


def asked_for(at: int, *, after: int | None = None, until: int | None, **changes: Any) -> PlannedCollective:
    parts: dict[str, Any] = {
        "kind": "all-reduce", "op": "c10d.allreduce_", "bytes": 64 << 20, "dtype": "float32", "group": 0,
        "by": "the program", "phase": "backward", "at": Moment(ops=at),
        "after": Moment(ops=at if after is None else after), "until": None if until is None else Moment(ops=until),
    }  # fmt: skip
    return PlannedCollective(**{**parts, **changes})


def step(kernels: list[int], *rows: PlannedCollective) -> StepExchanges:
    """Kernels in us, that take as long at either end."""
    ranges = [Range(low=one * US, high=one * US) for one in kernels]
    alone = sum(ranges, Range(low=0, high=0))
    return step_exchanges(ranges, alone, eager_asked(rows), [EVERYBODY, (0, 1)], TARGET, FACTORS)


def takes(size: int = 64 << 20) -> Range:
    return exchange_range(Exchange(kind="all-reduce", bytes=size, group=EVERYBODY), TARGET, FACTORS).time


def test_what_is_waited_for_at_once_adds_all_of_its_time() -> None:
    found = step([100, 100], asked_for(1, until=1))
    assert found.exposed == takes() == found.rows[0].exposed
    assert found.step == Range(low=200 * US + takes().low, high=200 * US + takes().high)
    assert found.rows[0].blocks


def test_what_long_kernels_run_beside_adds_nothing() -> None:
    found = step([100, 100_000, 100], asked_for(1, until=2))
    assert found.exposed == Range(low=0, high=0)
    assert found.rows[0].beside == Range(low=100_000 * US, high=100_000 * US)
    assert not found.rows[0].blocks


def test_what_short_kernels_run_beside_adds_the_rest() -> None:
    found = step([100, 50, 100], asked_for(1, until=2))
    assert found.exposed == Range(low=takes().low - 50 * US, high=takes().high - 50 * US)


def test_it_begins_when_what_it_was_asked_for_behind_is_done_and_not_when_it_is_asked_for() -> None:
    found = step([100, 100_000, 100], asked_for(2, after=1, until=2))
    assert found.exposed == Range(low=0, high=0)


def test_those_of_a_group_run_one_after_another_and_those_of_others_beside_them() -> None:
    one = step([100], asked_for(1, until=None), asked_for(1, until=None))
    assert one.exposed == takes().times(2)
    other = step([100], asked_for(1, until=None), asked_for(1, until=None, group=1, bytes=1 << 10))
    assert other.exposed == takes()
    behind = step([100], asked_for(1, until=None), asked_for(1, until=None, group=1, bytes=1 << 10, behind=(0,)))
    assert behind.exposed.low > other.exposed.low


def test_a_group_of_one_takes_no_time() -> None:
    rows = eager_asked([asked_for(0, until=0)])
    found = step_exchanges([], Range(low=0, high=0), rows, [(0,)], TARGET, FACTORS)
    assert found.busy == Range(low=0, high=0)
    assert found.known


def test_without_a_known_link_the_time_is_said_to_be_the_least() -> None:
    target = parse_target("l4x8", None)
    rows = eager_asked([asked_for(0, until=0)])
    found = step_exchanges([], Range(low=0, high=0), rows, [EVERYBODY], target, factors_for(target))
    assert found.known is (target.device.link_bandwidth is not None)


def test_runs_of_graphs_lie_between_the_ops_outside_of_them() -> None:
    inside = asked_for(1, until=2)
    processes = PlannedProcesses(
        world_size=8,
        backend="nccl",
        groups=(EVERYBODY,),
        outside=(replace(asked_for(0, until=None), at=Moment(ops=3, runs=2), after=Moment(ops=1, runs=1)),),
        inside=(GraphCollectives(graph=0, collectives=(inside,)),),
        runs=(GraphRun(graph=0, ops=1), GraphRun(graph=0, ops=2)),
    )
    ops, graph = [Range(low=n, high=n) for n in (1, 2, 3)], [Range(low=n, high=n) for n in (10, 20)]
    kernels, asked = planned_asked(processes, ops, [graph])
    assert [one.low for one in kernels] == [1, 10, 20, 2, 10, 20, 3]
    assert asked == (
        Asked(collective=processes.outside[0], after=3, at=7, until=None, behind=()),  # type: ignore[index]
        Asked(collective=inside, after=2, at=2, until=3, behind=()),
        Asked(collective=inside, after=5, at=5, until=6, behind=()),
    )
