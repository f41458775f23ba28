from __future__ import annotations

from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.calls import launch_delays
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import CallKind, Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import hlo_module
from tests.rules import judged_by


def test_delay_and_mean_queue():
    b = TraceBuilder()
    b.launched("a", 0, 5, 25, correlation=1)  # 5 us: nothing queued in front of it
    b.launched("b", 5, 25, 45, correlation=2)  # 20 us
    b.launched("c", 10, 45, 105, correlation=3)  # 35 us
    delay = b.build().fact(launch_delays)[0]
    assert (delay.launches, delay.unqueued) == (3, 1)
    assert delay.mean_queue == 60 / 100  # delays of 60 us over a span of 100 us


def test_of_a_graph_launch_only_the_first_kernel_counts():
    b = TraceBuilder()
    b.call("cudaGraphLaunch", 0, 5, kind=CallKind.GRAPH, correlation=1)
    b.kernel("first", 8, 20, correlation=1)
    b.kernel("second", 20, 30, correlation=1)
    delay = b.build().fact(launch_delays)[0]
    assert (delay.launches, delay.mean_queue) == (1, 8 / 22)


def test_a_kernel_that_starts_before_its_call_by_clock_skew_has_no_delay():
    b = TraceBuilder()
    b.launched("a", 10, 9, 20, correlation=1)
    assert b.build().fact(launch_delays)[0].mean_queue == 0


def test_no_link_no_delay():
    b = TraceBuilder()
    b.kernel("a", 0, 5)
    assert b.build().fact(launch_delays) == {}


_judge = judged_by("launch_bound")


def _eager(gap: float, kernels: int = 10, busy: float = 20.0, until: float | None = None) -> TraceBuilder:
    """A step of kernels of ``busy`` us with ``gap`` us between them, each but the first launched 3 us before it."""
    b = TraceBuilder()
    b.step(1, 10, until or 10 + kernels * (busy + gap) - gap)
    now = 10.0
    for number in range(kernels):
        b.op("aten::add", now - 5, now)
        b.launched("k", max(10, now - 3), now, now + busy, correlation=number + 1)
        now += busy + gap
    return b


def test_flagged_with_the_sum_of_the_gaps():
    outcome = _judge(_eager(gap=30))
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "launch overhead", "measured")
    assert finding.cost_ns == 9 * 30_000
    assert finding.evidence[0] == {"op": "aten::add", "idle_ns": 270_000, "gaps": 9, "longest_ns": 30_000}
    assert "10 of 10 launches started within 10 us" in finding.detail
    assert [(one.start_ns, one.end_ns) for one in finding.spans[:2]] == [(30_000, 60_000), (80_000, 110_000)]


def test_the_threshold_is_a_tenth_of_the_step():
    # Step of 100 us: ten of it idle; then a hair less. Launched 3 us before it starts, the host is late either way.
    assert _judge(_eager(gap=10, kernels=2, busy=45)).status == "flagged"
    assert _judge(_eager(gap=9.99, kernels=2, busy=45)).status == "clean"


def test_gaps_of_queued_work_are_not_the_hosts():
    b = TraceBuilder()
    for number in range(10):
        b.launched("k", number, 100 + 50 * number, 120 + 50 * number, correlation=number + 1)
    assert _judge(b).status == "clean"


def test_idle_after_a_wait_belongs_to_host_sync():
    b = TraceBuilder()
    b.launched("a", 0, 5, 100, correlation=1)
    b.op("aten::item", 10, 110)
    b.call("cudaStreamSynchronize", 20, 105, kind=CallKind.SYNC)
    b.launched("b", 190, 195, 300, correlation=2)
    assert _judge(b).status == "clean"


def test_idle_in_a_data_loader_belongs_to_input_stall():
    b = TraceBuilder()
    b.launched("a", 0, 5, 100, correlation=1)
    b.annotation("enumerate(DataLoader)#x", 90, 189)
    b.launched("b", 190, 195, 300, correlation=2)
    assert _judge(b).status == "clean"


def test_long_gaps_are_the_hosts_own_work_and_not_launching():
    b = _eager(gap=30, kernels=10, until=10_100)
    b.launched("late", 10_000, 10_003, 10_100, correlation=99)
    assert {finding.subject: finding.cost_ns for finding in _judge(b).findings} == {}
    b = _eager(gap=300, kernels=10, until=10_100)
    b.launched("late", 10_000, 10_003, 10_100, correlation=99)
    assert {finding.subject: finding.cost_ns for finding in _judge(b).findings} == {"launch overhead": 2_703_000}


def test_memory_calls_are_a_finding_of_their_own_and_not_counted_twice():
    b = TraceBuilder()
    b.launched("a", 0, 5, 100, correlation=1)
    b.op("aten::bmm", 100, 199)
    b.call("cudaMalloc", 110, 180, kind=CallKind.MEMORY)
    b.launched("b", 195, 200, 300, correlation=2)
    costs = {finding.subject: finding.cost_ns for finding in _judge(b).findings}
    assert costs == {"device memory calls": 70_000, "launch overhead": 30_000}


def test_abstains_where_most_idle_time_follows_unknown_launches():
    b = TraceBuilder()
    b.kernel("a", 0, 100)
    b.kernel("b", 200, 300)
    assert _judge(b).status == "abstained"


def _on_host(*gaps: float) -> TraceBuilder:
    """Steps of 100 us without a device, each of two ops with a gap between them."""
    b = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "runtime_calls"})
    for number, gap in enumerate(gaps):
        start = 1000 + 100 * number
        b.step(number + 1, start, start + 100)
        b.op("aten::add", start, start + 50 - gap / 2)
        b.op("aten::mul", start + 50 + gap / 2, start + 100)
    return b


def test_without_a_device_the_time_between_ops_is_judged():
    (finding,) = _judge(_on_host(60, 80)).findings
    assert (finding.subject, finding.cost_ns, finding.basis) == ("between ops", 140_000, "measured")
    assert (finding.covers_ns, finding.spans[0].end_ns - finding.spans[0].start_ns) == ({"launch": 140_000}, 80_000)


def test_without_a_device_it_must_be_half_of_every_step():
    outcome = _judge(_on_host(60, 40, 80))
    assert (outcome.status, outcome.examined_what) == ("clean", "ops and calls of the host in the recording")


def test_abstains_without_any_work():
    outcome = _judge(TraceBuilder(recorded=frozenset()))
    assert (outcome.status, outcome.missing) == ("abstained", ("host_ops",))


def calls(
    *,
    result: str = "f32[]",
    work_us: float = 5,
    step_us: float = 50,
    sampled: str = "train.py(16): main",
    steps: int = 40,
) -> Trace:
    """Steps that are one call of a compiled function of ``f32[64]``, at line 16."""
    module = hlo_module(f"""
        ENTRY %main (a: f32[64]) -> {result} {{
          %a = f32[64]{{0}} parameter(0)
          ROOT %w = {result} custom-call(%a), custom_call_target="work"
        }}
    """, name="jit_score")  # fmt: skip
    b = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls"} | {"hlo"})
    b.step(1, 0, step_us)
    b.op("w", 0, work_us)
    b.row("hlo_ops", start_ns=0, end_ns=round(work_us * 1000), name=b.code("w"), module=b.code("jit_score"), run_id=1,
          ordinal=0, encloses=False)  # fmt: skip
    for number in range(steps):
        b.row("run_steps", number=number, from_ns=0, until_ns=round(step_us * 1000), free=number > 1, wait_ns=-1)
        b.sample(sampled, 1_000.0 + number, lasts=5_000, step=number + 2, step_us=step_us)
    event = CompileEvent(kind="compile", end_ns=0, duration_ns=1, function="jit(score)", file="train.py", line=16)
    return replace(
        b.build(), hlo=(module,), window_ns=round(step_us * 10_000), window_steps=10, compile_events=(event,)
    )


RULE = load_rule("launch_bound")


def test_short_calls_that_need_no_result_of_another_are_one_call_for_all():
    (finding,) = judge(RULE, calls()).findings
    assert (finding.cost_ns, finding.where.label()) == (45_000, "train.py:16")
    assert "score is called 40 times" in finding.title
    assert "jax.vmap(score)" in finding.advice


def test_short_calls_that_may_take_the_last_result_are_a_loop_on_the_device():
    (finding,) = judge(RULE, calls(result="f32[64]")).findings
    assert "jax.lax.scan" in finding.advice
    assert "vmap" not in finding.advice


def test_calls_of_half_work_are_no_short_calls():
    assert any("is called" in finding.title for finding in judge(RULE, calls(work_us=25)).findings)
    assert not any("is called" in finding.title for finding in judge(RULE, calls(work_us=26)).findings)


def test_long_steps_few_steps_and_work_at_other_lines_are_no_short_calls():
    for trace in (calls(step_us=1001), calls(steps=19), calls(sampled="train.py(20): load")):
        assert not any("is called" in finding.title for finding in judge(RULE, trace).findings)
