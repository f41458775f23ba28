from __future__ import annotations

from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.calls import RAMP_NS, short_pairs
from perfscope.model.compile_log import CodeLine, CompiledKernel, CompileLog
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

RULE = load_rule("small_kernels")


_judge = judged_by("small_kernels")


def _queued(duration: float, count: int, gap: float = 1.0, big: float = 0.0) -> TraceBuilder:
    """``count`` kernels that were all launched early, then one of ``big`` us."""
    b = TraceBuilder()
    now = 1000.0
    for number in range(count):
        b.op("aten::mul", number, number + 0.5, external_id=number + 1)
        b.launched("k", number, now, now + duration, correlation=number + 1, cost=0.5, external_id=number + 1)
        now += duration + gap
    if big:
        b.launched("gemm", count, now, now + big, correlation=count + 1)
    return b


def test_flagged_with_gaps_and_ramps_of_all_but_the_first():
    outcome = _judge(_queued(duration=3, count=11, gap=1))
    (finding,) = outcome.findings
    assert (outcome.status, finding.basis) == ("flagged", "modelled")
    assert finding.cost_ns == 10 * (1_000 + RAMP_NS)
    assert finding.evidence[0]["op"] == "aten::mul"
    assert finding.evidence[0]["saved_ns"] == finding.cost_ns


def test_a_kernel_shorter_than_the_ramp_saves_no_more_than_itself():
    (finding,) = _judge(_queued(duration=1, count=11, gap=1)).findings
    assert finding.cost_ns == 10 * 2_000


def test_the_threshold_is_a_twentieth_of_the_devices_span():
    # Eleven kernels of 3 us and ten gaps of 1 us save 30 us; a gap and a long kernel fill the span to 600 us or more.
    assert _judge(_queued(duration=3, count=11, big=600 - 44)).status == "flagged"
    assert _judge(_queued(duration=3, count=11, big=601 - 44)).status == "clean"


def test_kernels_of_ten_microseconds_are_not_short():
    assert _judge(_queued(duration=9.999, count=11)).status == "flagged"
    assert _judge(_queued(duration=10, count=11)).status == "clean"


def test_short_kernels_the_host_is_late_with_belong_to_launch_bound():
    b = TraceBuilder()
    for number in range(11):
        b.launched("k", 20 * number, 20 * number + 5, 20 * number + 8, correlation=number + 1)
    assert _judge(b).status == "clean"


def test_pairs_under_other_work_on_two_streams_or_of_collectives_do_not_count():
    hidden = _queued(duration=3, count=11)
    hidden.launched("long", 0, 1000, 1100, correlation=99, stream=9)
    assert len(short_pairs(hidden.build(), 0).kernel) == 0

    b = TraceBuilder()
    b.launched("a", 0, 100, 103, correlation=1, stream=7)
    b.launched("b", 1, 104, 107, correlation=2, stream=8)
    b.launched("c", 2, 108, 111, correlation=3, stream=8, communication=True)
    assert len(short_pairs(b.build(), 0).kernel) == 0


def test_a_program_with_mostly_long_kernels_is_clean():
    for long_ones, status in ((11, "flagged"), (12, "clean")):
        b = _queued(duration=3, count=11)
        for number in range(long_ones):
            b.launched("gemm", 100 + number, 1044 + 11 * number, 1055 + 11 * number, correlation=100 + number)
        assert _judge(b).status == status


def test_abstains_without_launch_links():
    b = TraceBuilder(recorded=EVERYTHING - {"launch_links"})
    b.kernel("k", 0, 3)
    assert _judge(b).status == "abstained"


def test_kernels_of_a_compiled_graph_are_shown_with_the_line_they_compute():
    b = TraceBuilder()
    b.annotation("## Call CompiledFxGraph fabc ##", 0, 50)
    for number in range(11):
        b.op("triton_poi_fused_add_0", 1 + number, 1.5 + number, external_id=number + 1)
        b.launched("triton_poi_fused_add_0", 1 + number, 1000 + 4 * number, 1003 + 4 * number, correlation=number + 1,
                   cost=0.5, external_id=number + 1)  # fmt: skip
    trace = b.build()
    place = CodeLine(file="/home/user/train.py", line=31)
    kernel = CompiledKernel(
        name="triton_poi_fused_add_0",
        backend="triton",
        compile_id="0/0",
        direction="forward",
        calls=11,
        places=(place,),
    )
    assert judge(RULE, trace).findings[0].evidence[0]["at"] is None
    trace = b.build()
    trace = replace(trace, compile_log=CompileLog(path="x.log", kernels=(kernel,)))
    assert judge(RULE, trace).findings[0].evidence[0]["at"] == "/home/user/train.py:31"
