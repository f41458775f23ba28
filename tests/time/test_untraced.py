"""Value of a saving in a step without a profiler."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from perfscope.analyzers.time.untraced import bounded
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder


def steps(bare_us: float, *, compiling_us: float = 0) -> Trace:
    """Three steps of 1,000 us, 400 of them in ops and 600 in a kernel; the first may compile for longer."""
    builder = TraceBuilder(step_times_us=(bare_us,) * 5)
    start = 0.0
    for number in range(3):
        extra = compiling_us if number == 0 else 0
        end = start + 1000 + extra
        builder.step(number, start, end)
        if extra:
            builder.annotation("compile_fx.compile (dynamo_timed)", start, start + extra)
        builder.op("aten::index", start + extra, end - 604)
        builder.launched("gemm", end - 603, end - 600, end, correlation=number + 1)
        start = end
    return builder.build()


def finding(cost_us: int) -> Finding:
    return Finding(
        subject="x", title="x", severity="high", basis="measured", advice="x",
        cost_ns=3000 * cost_us, cost_ns_per_step=1000 * cost_us,
    )  # fmt: skip


def test_costs_of_the_host_shrink_by_what_traced_steps_are_longer() -> None:
    trace = steps(800)  # 200 us of the profiler, taken from 400 us in which the device waits
    assert bounded(trace, "launch_bound", finding(400)).untraced_ns_per_step == 200_000
    assert bounded(trace, "launch_bound", finding(400)).cost_ns_per_step == 400_000


def test_costs_of_the_device_stay() -> None:
    assert bounded(steps(800), "unfused_ops", finding(400)).untraced_ns_per_step == 400_000


def test_no_saving_exceeds_its_step() -> None:
    result = bounded(steps(800), "unfused_ops", finding(5000))
    assert (result.cost_ns_per_step, result.untraced_ns_per_step) == (1_000_000, 800_000)


def test_compiling_is_not_the_profilers_doing() -> None:
    trace = steps(1000, compiling_us=9000)
    assert bounded(trace, "launch_bound", finding(400)).untraced_ns_per_step == 400_000


def test_compiling_longer_than_a_step_without_a_profiler_is_not_paid_by_each_step() -> None:
    trace = steps(1000, compiling_us=9000)
    compiling = replace(finding(3000), covers_ns={"compilation": 9_000_000})
    result = bounded(trace, "recompilation", compiling)
    assert (result.cost_ns, result.cost_ns_per_step, result.untraced_ns_per_step) == (9_000_000, None, None)
    assert result.once is not None
    assert result.once.steps == 3 + 5


def with_wait(*, ops: bool) -> Trace:
    """Three steps of 100 ms on the host, 20 ms of them asleep or in Python, the rest in ops; 60 ms each unprofiled."""
    builder = TraceBuilder(step_times_us=(60_000,) * 5, recorded=EVERYTHING - {"python_stack"})
    for number in range(3):
        start = number * 100_000.0
        builder.step(number, start, start + 100_000)
        builder.op("aten::mm", start, start + 80_000)
        if ops:
            builder.op("aten::copy_", start + 80_000, start + 100_000)
    return builder.build()


@pytest.mark.parametrize("cause", ["sleeping", "saving", "input", "other_host"])
def test_time_in_which_nothing_is_recorded_is_not_scaled(cause: str) -> None:
    waits = replace(finding(20), covers_ns={cause: 60_000_000}, cost_ns=60_000_000, cost_ns_per_step=20_000_000)
    assert bounded(with_wait(ops=False), "host_bound", waits).untraced_ns_per_step == 20_000_000


def test_ops_are_scaled_to_what_a_bare_step_leaves_beside_the_waits() -> None:
    ops = replace(finding(80), cost_ns=240_000_000, cost_ns_per_step=80_000_000)
    assert bounded(with_wait(ops=False), "unfused_ops", ops).untraced_ns_per_step == 40_000_000
    assert bounded(with_wait(ops=True), "unfused_ops", ops).untraced_ns_per_step == 48_000_000


def test_without_steps_that_were_timed_alone_nothing_is_said() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1000)
    builder.launched("gemm", 100, 200, 900, correlation=1)
    assert bounded(builder.build(), "launch_bound", finding(100)).untraced_ns_per_step is None


def test_compiling_that_is_most_of_every_step_is_a_share_of_it_and_not_once() -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    finding = Finding(
        subject="recompilation", title="compiled again", severity="high", basis="measured", advice="",
        cost_ns=9_000_000, cost_ns_per_step=3_000_000, covers_ns={"compilation": 900_000},
    )  # fmt: skip
    slower = msgspec.structs.replace(builder.build(), step_times_ns=(2_000_000,) * 4)
    kept = bounded(slower, "recompilation", finding)
    assert (kept.once, kept.untraced_ns_per_step) == (None, 1_800_000)
    warm = bounded(msgspec.structs.replace(slower, step_times_ns=(400_000,) * 4), "recompilation", finding)
    assert warm.once is not None


def test_where_a_bare_step_is_shorter_than_the_waits_of_a_traced_one_a_share_stays_a_share() -> None:
    """600 us of each traced step are the device's: a bare step of 300 us is of a machine that was less busy."""
    result = bounded(steps(300), "unfused_ops", finding(600))
    assert result.untraced_ns_per_step == 180_000, "60 % of it, as while traced, and not all of it"
