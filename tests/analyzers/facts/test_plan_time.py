"""Modelled times follow from counts and the target's own numbers."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.estimate.assumptions import factors_for
from perfscope.analyzers.facts.plan_time import kernel_range, plan_works
from perfscope.analyzers.hardware.target_text import parse_target
from tests.analyzers.plan_parts import graph, kernel, plan, product, trace_of


def test_a_kernel_takes_its_bytes_at_the_bandwidth_at_the_least() -> None:
    target = parse_target("h100", None)
    factors, device = factors_for(target), target.device
    found = kernel_range(device, factors, moved=10**9, flops=None, dtype=None, strided=False)
    least = 10**9 * 10**9 / device.memory_bandwidth
    assert found.low == int(least)
    assert least / factors.memory < found.high < least / factors.memory + factors.kernel[1] + 2


def test_a_product_takes_its_flops_at_the_peak_of_its_dtype() -> None:
    target = parse_target("h100", None)
    flops = 2 * 8192**3
    times = {
        dtype: kernel_range(target.device, factors_for(target), moved=1, flops=flops, dtype=dtype, strided=False).low
        for dtype in ("bfloat16", "tf32", "float32")
    }
    assert times["bfloat16"] == int(flops * 10**9 / target.device.peak_flops["bfloat16"])
    assert times["bfloat16"] < times["tf32"] < times["float32"]


def test_nothing_takes_less_than_the_shortest_kernel() -> None:
    target = parse_target("h100", None)
    factors = factors_for(target)
    found = kernel_range(target.device, factors, moved=4, flops=None, dtype=None, strided=False)
    assert found.low == factors.kernel[0]


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
