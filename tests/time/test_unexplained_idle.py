from __future__ import annotations

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.registry import load_rule
from tests.build import TraceBuilder

RULE = load_rule("unexplained_idle")


def _waiting(idle_us: float) -> TraceBuilder:
    """A step of 10 ms whose device waits ``idle_us`` for another stream of the device."""
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.launched("a", 0, 0, 5_000, correlation=1)
    b.launched("b", 10, 5_000 + idle_us, 10_000, correlation=2)
    return b


def test_time_in_no_other_finding_is_one() -> None:
    (finding,) = judge(RULE, _waiting(999).build()).findings
    assert finding.cost_ns == 999_000
    assert finding.evidence[0] == {"cause": "waiting for other device work", "idle_ns": 999_000, "share": 0.0999}


def test_the_threshold_is_a_twentieth_of_the_step() -> None:
    assert judge(RULE, _waiting(500).build()).status == "flagged"
    assert judge(RULE, _waiting(499).build()).status == "clean"


def test_what_another_rule_flagged_is_not_said_twice() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.launched("gemm", 5_000, 5_001, 10_000, correlation=1)
    analysis = analyze(b.build())
    assert analysis["host_bound"].status == "flagged"
    assert analysis["unexplained_idle"].status == "clean"


def test_waits_that_no_front_end_takes_are_for_work_that_is_not_recorded() -> None:
    (short,), (long,) = (judge(RULE, _waiting(idle).build()).findings for idle in (999, 1_000))
    assert (short.about, long.about) == ("program", "recording")
    assert "synchronize" not in short.advice
    assert "synchronize" in long.record
    assert (long.advice, long.cost_ns, long.cost_ns_per_step) == ("", None, None), "another recording saves nothing"
    analysis = analyze(_waiting(1_000).build())
    assert [rule for rule, _ in analysis.of_recording()] == ["unexplained_idle"]
    assert analysis.findings() == ()


def test_small_causes_add_up() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.launched("a", 0, 0, 4_000, correlation=1)
    b.launched("b", 10, 4_300, 8_000, correlation=2)  # 3 % dependency
    b.launched("c", 8_250, 8_300, 10_000, correlation=3)  # 3 % launching
    analysis = analyze(b.build())
    assert [rule for rule, _ in analysis.findings()] == ["unexplained_idle"]
    assert analysis["unexplained_idle"].findings[0].cost_ns == 600_000


def test_without_any_work_it_abstains() -> None:
    assert judge(RULE, TraceBuilder().build()).status == "abstained"
