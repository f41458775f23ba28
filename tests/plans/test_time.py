"""The modelled cost of planned collectives, on steps that are small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.plans.collectives import StepExchanges, planned_collectives, step_exchanges
from perfscope.analyzers.plans.time import kernel_range, op_ranges, plan_works
from perfscope.analyzers.predict.assumptions import factors_for
from perfscope.analyzers.predict.collective_time import Exchange, exchange_range
from perfscope.analyzers.predict.efficiency import Work as KernelWork
from perfscope.analyzers.predict.spans import Range
from perfscope.model.documents.torch_plan import (
    GraphCollectives,
    GraphRun,
    PlannedCollective,
    PlannedProcesses,
    StepPosition,
)
from tests.graphs import GraphBuilder
from tests.plans.build import graph, kernel, plan, product, trace_of

TARGET = parse_target("h100x8", None)
FACTORS = factors_for(TARGET)
EVERYBODY = tuple(range(8))
US = 1_000


def planned_collective(at: int, *, after: int | None = None, until: int | None, **changes: Any) -> PlannedCollective:
    parts: dict[str, Any] = {
        "kind": "all-reduce",
        "op": "c10d.allreduce_",
        "bytes": 64 << 20,
        "dtype": "float32",
        "group": 0,
        "by": "the program",
        "phase": "backward",
        "at": StepPosition(ops=at),
        "after": StepPosition(ops=at if after is None else after),
        "until": None if until is None else StepPosition(ops=until),
    }
    return PlannedCollective(**{**parts, **changes})


def step(kernels: list[int], *rows: PlannedCollective) -> StepExchanges:
    """Kernels in us, that take as long at either end."""
    ranges = [Range(low=one * US, high=one * US) for one in kernels]
    alone = sum(ranges, Range(low=0, high=0))
    return step_exchanges(ranges, alone, rows, [EVERYBODY, (0, 1)], TARGET, FACTORS)


def exchange_time(size: int = 64 << 20) -> Range:
    return exchange_range(Exchange(kind="all-reduce", bytes=size, group=EVERYBODY), TARGET, FACTORS).time


def test_what_is_waited_for_at_once_adds_all_of_its_time() -> None:
    found = step([100, 100], planned_collective(1, until=1))
    assert found.exposed == exchange_time() == found.rows[0].exposed
    assert found.step == Range(low=200 * US + exchange_time().low, high=200 * US + exchange_time().high)
    assert found.rows[0].blocks


def test_what_long_kernels_run_beside_adds_nothing() -> None:
    found = step([100, 100_000, 100], planned_collective(1, until=2))
    assert found.exposed == Range(low=0, high=0)
    assert found.rows[0].overlap == Range(low=100_000 * US, high=100_000 * US)
    assert not found.rows[0].blocks


def test_what_short_kernels_run_beside_adds_the_rest() -> None:
    found = step([100, 50, 100], planned_collective(1, until=2))
    assert found.exposed == Range(low=exchange_time().low - 50 * US, high=exchange_time().high - 50 * US)


def test_it_begins_when_what_it_was_asked_for_behind_is_done_and_not_when_it_is_asked_for() -> None:
    found = step([100, 100_000, 100], planned_collective(2, after=1, until=2))
    assert found.exposed == Range(low=0, high=0)


def test_those_of_a_group_run_one_after_another_and_those_of_others_beside_them() -> None:
    one = step([100], planned_collective(1, until=None), planned_collective(1, until=None))
    assert one.exposed == exchange_time().times(2)
    other = step([100], planned_collective(1, until=None), planned_collective(1, until=None, group=1, bytes=1 << 10))
    assert other.exposed == exchange_time()
    behind = step(
        [100], planned_collective(1, until=None), planned_collective(1, until=None, group=1, bytes=1 << 10, behind=(0,))
    )
    assert behind.exposed.low > other.exposed.low


def test_a_group_of_one_takes_no_time() -> None:
    rows = [planned_collective(0, until=0)]
    found = step_exchanges([], Range(low=0, high=0), rows, [(0,)], TARGET, FACTORS)
    assert found.busy == Range(low=0, high=0)
    assert found.known


def test_without_a_known_link_the_time_is_said_to_be_the_least() -> None:
    target = parse_target("l4x8", None)
    rows = [planned_collective(0, until=0)]
    found = step_exchanges([], Range(low=0, high=0), rows, [EVERYBODY], target, factors_for(target))
    assert found.known is (target.device.link_bandwidth is not None)


def test_runs_of_graphs_lie_between_the_ops_outside_of_them() -> None:
    inside = planned_collective(1, until=2)
    processes = PlannedProcesses(
        world_size=8,
        backend="nccl",
        groups=(EVERYBODY,),
        outside=(
            replace(
                planned_collective(0, until=None), at=StepPosition(ops=3, runs=2), after=StepPosition(ops=1, runs=1)
            ),
        ),
        inside=(GraphCollectives(graph=0, collectives=(inside,)),),
        runs=(GraphRun(graph=0, ops=1), GraphRun(graph=0, ops=2)),
    )
    ops, graph = [Range(low=n, high=n) for n in (1, 2, 3)], [Range(low=n, high=n) for n in (10, 20)]
    kernels, placed = planned_collectives(processes, ops, [graph])
    assert [one.low for one in kernels] == [1, 10, 20, 2, 10, 20, 3]
    assert placed == (
        replace(planned_collective(0, until=None), after=StepPosition(ops=3), at=StepPosition(ops=7)),
        replace(inside, after=StepPosition(ops=2), at=StepPosition(ops=2), until=StepPosition(ops=3)),
        replace(inside, after=StepPosition(ops=5), at=StepPosition(ops=5), until=StepPosition(ops=6)),
    )


V5P = parse_target("v5p", None)
"""No kernel of a TPU was measured: its ranges are from the peaks to the assumed shares of them."""


def test_without_measured_kernels_bytes_take_the_bandwidth_at_the_least() -> None:
    factors, device = factors_for(V5P), V5P.device
    found = kernel_range(device, factors, KernelWork(category="elementwise", bytes=10**9))
    least = 10**9 * 10**9 / device.memory_bandwidth
    assert found.low == int(least)
    assert least / factors.memory < found.high < least / factors.memory + factors.kernel[1] + 2


def test_without_measured_kernels_nothing_takes_less_than_the_shortest_kernel() -> None:
    factors = factors_for(V5P)
    assert kernel_range(V5P.device, factors, KernelWork(category="elementwise", bytes=4)).low == factors.kernel[0]


def test_large_products_are_no_faster_than_the_peak_of_their_dtype() -> None:
    device = parse_target("h100", None).device
    flops = 2 * 32768**3
    times = {
        dtype: kernel_range(device, FACTORS, KernelWork(category="product", bytes=1, flops=flops, dtype=dtype))
        for dtype in ("bfloat16", "tf32", "float32")
    }
    for dtype, time in times.items():
        assert flops * 10**9 / device.peak_flops[dtype] <= time.low + 1 < time.high
    assert times["bfloat16"].high < times["tf32"].low < times["float32"].low


def test_half_precision_does_not_halve_the_time_of_an_op_that_moves_elements_one_by_one() -> None:
    times = {}
    for dtype in ("float32", "bfloat16"):
        g = GraphBuilder()
        g.op("roll", [g.input((8192, 8192), dtype)])
        g.op("add", [g.input((8192, 8192), dtype)])
        times[dtype] = op_ranges(g.graph(), TARGET, "float32")
    strided, in_rows = (times["bfloat16"][op].low / times["float32"][op].low for op in (0, 1))
    assert 0.65 < strided <= 1
    assert 0.45 < in_rows < 0.55


def test_a_step_runs_each_graph_as_often_as_it_is_called(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, plan(graph(kernel(), product(), calls=2), graph(product(), direction="backward")))
    (work,) = trace.fact(plan_works)
    assert work.inside.launches == 5
    assert work.inside.flops == 3 * 2 * 1024**3
    assert work.inside.bytes == 2 * 3_000_000 + 3 * (6 << 20)
    assert work.inside.device.low == sum(one.once.device.low * one.graph.calls for one in work.graphs)
    assert work.inside.step.low >= work.inside.launches * factors_for(parse_target("h100", None)).host[0]
    assert work.eager is None
    assert work.compiled is None


def test_what_a_long_reduction_reads_again_is_in_the_high_end_only(tmp_path: Path) -> None:
    once = trace_of(tmp_path / "a", plan(graph(kernel(kind="reduction"))))
    again = trace_of(tmp_path / "b", plan(graph(kernel(kind="reduction", reread_bytes=10**9))))
    first, second = (trace.fact(plan_works)[0].inside.device for trace in (once, again))
    assert first.low == second.low
    assert second.high > first.high + 10**9 * 10**9 // parse_target("h100", None).device.memory_bandwidth


def test_without_a_target_nothing_is_priced(tmp_path: Path) -> None:
    assert trace_of(tmp_path, plan(graph(kernel())), target=None).fact(plan_works) == ()
