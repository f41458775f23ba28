"""Findings side by side: what is new, fixed, worse, better; and what one side did not look for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.analyzers.compare.findings import FindingChange, findings_change
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.finding import Finding, Outcome, Where

SYNC = Finding(
    subject="item read",
    title="`.item()` waits 1 ms",
    severity="medium",
    basis="measured",
    advice="do not",
    cost_ns=3_000_000,
    cost_ns_per_step=1_000_000,
    where=Where(file="train.py", line=88),
)


def analysis(*findings: Finding, status: str = "", reason: str | None = None) -> Analysis:
    held = status or ("flagged" if findings else "clean")
    outcome = Outcome(rule="host_sync", status=held, reason=reason, findings=findings)  # type: ignore[arg-type]
    return Analysis(sources=(), devices=(), steps=(), outcomes=(outcome,))


def changes(base: Analysis, head: Analysis, **more: float) -> list[str]:
    return [one.change for one in findings_change(base, head, **more)]


def moved(line: int, cost: int = 1_000_000) -> Finding:
    return replace(SYNC, where=Where(file="train.py", line=line), cost_ns_per_step=cost)


def test_new_fixed_and_unchanged() -> None:
    assert changes(analysis(), analysis(SYNC)) == ["new"]
    assert changes(analysis(SYNC), analysis()) == ["fixed"]
    assert changes(analysis(SYNC), analysis(SYNC)) == ["unchanged"]


@pytest.mark.parametrize(("cost", "change"), [(1_400_000, "unchanged"), (1_600_000, "worse"), (600_000, "better")])
def test_cost_must_move_by_half(cost: int, change: str) -> None:
    assert changes(analysis(SYNC), analysis(moved(88, cost))) == [change]


def test_a_cost_that_moved_by_less_than_a_percent_of_the_step_is_the_same() -> None:
    assert changes(analysis(SYNC), analysis(moved(88, 2_000_000)), step_ns=200_000_000.0) == ["unchanged"]
    assert changes(analysis(SYNC), analysis(moved(88, 2_000_000)), step_ns=50_000_000.0) == ["worse"]


def test_a_moved_line_is_the_same_finding_and_a_second_one_is_new() -> None:
    assert changes(analysis(SYNC), analysis(moved(95))) == ["unchanged"]
    (first, second) = findings_change(analysis(SYNC), analysis(moved(90), moved(95)))
    assert (first.change, first.shown.where.line) == ("new", 95)
    assert second.change == "unchanged"


def test_another_checkout_is_the_same_finding() -> None:
    elsewhere = replace(SYNC, where=Where(file="/other/train.py", line=88))
    here = replace(SYNC, where=Where(file="/one/train.py", line=88))
    assert changes(analysis(here), analysis(elsewhere)) == ["unchanged"]


def test_what_a_side_did_not_look_for_is_neither_new_nor_fixed() -> None:
    blind = analysis(status="abstained", reason="not recorded")
    assert changes(blind, analysis(SYNC)) == ["first looked at"]
    assert changes(analysis(SYNC), blind) == ["no longer looked at"]
    partly = analysis(status="clean", reason="rank 3: not recorded")
    assert changes(partly, analysis(SYNC)) == ["first looked at"]
    assert changes(Analysis(sources=(), devices=(), steps=(), outcomes=()), analysis(SYNC)) == ["first looked at"]


def test_without_times_the_severity_decides() -> None:
    plain = replace(SYNC, cost_ns=None, cost_ns_per_step=None)
    assert changes(analysis(plain), analysis(replace(plain, severity="high"))) == ["worse"]
    assert changes(analysis(plain), analysis(replace(plain, severity="low"))) == ["better"]
    assert changes(analysis(plain), analysis(plain)) == ["unchanged"]


def test_new_ones_come_first_the_severest_before_the_others() -> None:
    other = replace(SYNC, subject="other", severity="high")
    found = findings_change(analysis(SYNC), analysis(moved(88), replace(other, subject="low", severity="low"), other))
    assert [(one.change, one.shown.subject) for one in found] == [
        ("new", "other"), ("new", "low"), ("unchanged", "item read"),
    ]  # fmt: skip


def test_only_new_and_worse_are_for_a_gate() -> None:
    kinds = ("new", "worse", "fixed", "better", "unchanged", "first looked at", "no longer looked at")
    gated = [kind for kind in kinds if FindingChange(rule="r", change=kind, base=SYNC, head=SYNC).is_worse]  # type: ignore[arg-type]
    assert gated == ["new", "worse"]
