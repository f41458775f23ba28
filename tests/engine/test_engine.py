"""The engine: abstention is never clean, ranks are merged, a broken rule costs only itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers import engine, registry
from perfscope.analyzers.causes import MOST_ROWS, one_per_cause
from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule, rule_ids
from perfscope.model.errors import UsageError
from perfscope.model.finding import AbstainError, Finding, Rule, Scope, Span, Where
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.conftest import REPOSITORY


def finding(cost: int | None, subject: str = "thing", line: int = 1) -> Finding:
    return Finding(
        subject=subject,
        title=f"{subject} costs {cost}",
        severity="low",
        basis="measured",
        advice="mend it",
        cost_ns_per_step=cost,
        where=Where(file="train.py", line=line),
        evidence=({"wait_ns": cost},),
    )


def rule(check: Callable[[Trace], Iterable[Finding]], *needs: str) -> Rule:
    return Rule(id="made_up", doc="A rule.", needs=needs, check=check)


def trace(rank: int | None = 0, *, recorded: frozenset[str] = EVERYTHING) -> Trace:
    build = TraceBuilder(rank=rank, recorded=recorded)
    build.step(0, 0, 100)
    build.kernel("k", 0, 50)
    return build.build()


def outcome_of_rule(monkeypatch: pytest.MonkeyPatch, made: Rule, *traces: Trace) -> engine.Outcome:
    monkeypatch.setattr(registry, "load_rule", lambda name: made)
    (outcome,) = analyze(traces, rules=["made_up"])
    return outcome


def test_flagged_is_sorted_by_cost_with_timeless_ones_last() -> None:
    outcome = judge(rule(lambda _: [finding(None), finding(5, line=2), finding(9, line=3)]), trace())
    assert outcome.status == "flagged"
    assert [found.cost_ns_per_step for found in outcome.findings] == [9, 5, None]


def test_nothing_found_is_clean_and_nothing_recorded_is_not() -> None:
    assert judge(rule(lambda _: []), trace()).status == "clean"
    blind = judge(rule(lambda _: [], "memory", "shapes"), trace(recorded=EVERYTHING - {"memory", "shapes"}))
    assert blind.status == "abstained"
    assert blind.reason == "not recorded: allocator events; input shapes of ops"


def test_no_device_work_is_reason_enough() -> None:
    none = trace(recorded=EVERYTHING - {"device_work", "launch_links"})
    blind = judge(rule(lambda _: [], "launch_links", "device_work"), none)
    assert blind.reason == "not recorded: kernels and copies of an accelerator"


def test_a_rule_may_abstain_in_its_own_words() -> None:
    def check(_: Trace) -> Iterable[Finding]:
        raise AbstainError("one rank only; record all of them")

    outcome = judge(rule(check), trace())
    assert (outcome.status, outcome.reason) == ("abstained", "one rank only; record all of them")


def test_a_broken_rule_abstains_and_says_so() -> None:
    def check(_: Trace) -> Iterable[Finding]:
        yield finding(1)
        raise ZeroDivisionError("by zero")

    outcome = judge(rule(check), trace())
    assert (outcome.status, outcome.findings) == ("abstained", ())
    assert outcome.reason == "the rule failed: ZeroDivisionError: by zero"


def test_the_same_finding_on_several_ranks_is_one_with_the_worst_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {0: 5, 1: 9, 2: None}
    made = rule(lambda t: [finding(cost)] if (cost := costs[t.source.rank or 0]) else [])
    outcome = outcome_of_rule(monkeypatch, made, *(trace(rank) for rank in costs))
    (found,) = outcome.findings
    assert (found.cost_ns_per_step, found.ranks) == (9, (0, 1))
    assert found.evidence == ({"source": "rank 1", "wait_ns": 9}, {"source": "rank 0", "wait_ns": 5})


def test_spans_name_the_trace_on_whose_clock_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(one: Trace) -> list[Finding]:
        begins = 1_000 * (one.source.rank or 0)
        return [replace(finding(5), spans=(Span(start_ns=begins, end_ns=begins + 10),))]

    (found,) = outcome_of_rule(monkeypatch, rule(late), trace(0), trace(3)).findings
    assert [(one.source, one.start_ns) for one in found.spans] == [(0, 0), (1, 3_000)]


def test_spans_of_a_comparison_are_of_the_rank_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = (Span(start_ns=7, end_ns=9, rank=3), Span(start_ns=1, end_ns=2, rank=8))
    made = replace(rule(lambda _: []), compare=lambda _: [replace(finding(5), spans=spans)])
    (found,) = outcome_of_rule(monkeypatch, made, trace(0), trace(3), trace(8), trace(8)).findings
    assert found.spans == (Span(start_ns=7, end_ns=9, rank=3, source=1),)  # two traces call themselves rank 8


def test_each_source_says_when_it_begins() -> None:
    build = TraceBuilder()
    build.kernel("k", 20, 50)
    assert analyze(build.build(), rules=[]).starts_ns == (20_000,)


def test_other_lines_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rule(lambda t: [finding(5, line=t.source.rank or 0)])
    outcome = outcome_of_rule(monkeypatch, made, trace(1), trace(2))
    assert [found.where.line for found in outcome.findings] == [1, 2]


def test_clean_needs_every_rank_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = trace(1, recorded=EVERYTHING - {"memory"})
    outcome = outcome_of_rule(monkeypatch, rule(lambda _: [], "memory"), trace(0), blind)
    assert outcome.status == "abstained"
    assert outcome.reason == "rank 1: not recorded: allocator events"
    flagged = outcome_of_rule(monkeypatch, rule(lambda _: [finding(3)], "memory"), trace(0), blind)
    assert (flagged.status, flagged.reason) == ("flagged", "rank 1: not recorded: allocator events")


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no_such: unknown rule"):
        analyze(trace(), rules=["no_such"])


def test_every_rule_answers_an_empty_trace() -> None:
    """Nothing recorded at all: everything abstains, nothing is clean."""
    nothing = TraceBuilder(recorded=frozenset()).build()
    assert {outcome.status for outcome in analyze(nothing)} == {"abstained"}


def test_a_rule_that_cannot_be_imported_abstains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.load_rule.__globals__["RULES"], "gone", "no.such.module")
    (outcome,) = analyze(trace(), rules=["gone"])
    assert outcome.status == "abstained"
    assert outcome.reason == "the rule cannot be loaded: ModuleNotFoundError: No module named 'no'"


def test_evidence_of_many_ranks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rule(lambda t: [finding(t.source.rank)])
    outcome = outcome_of_rule(monkeypatch, made, *(trace(rank) for rank in range(MOST_ROWS + 5)))
    (found,) = outcome.findings
    assert len(found.evidence) == MOST_ROWS
    assert found.evidence[0] == {"source": "rank 64", "wait_ns": 64}
    assert len(found.ranks) == 65


def _apart(cost: int, start: int, line: int = 1, **more: Any) -> Finding:
    spans = (Span(start_ns=start, end_ns=start + cost),)
    return replace(finding(cost, line=line), cost_ns=cost, spans=spans, covers_ns={"sync": cost}, **more)


def test_one_cause_is_one_finding_with_a_count_and_added_costs() -> None:
    (found,) = one_per_cause([_apart(9, 0), _apart(5, 100), _apart(3, 200)], 1_000)
    assert (found.count, found.cost_ns, found.cost_ns_per_step, found.covers_ns) == (3, 17, 17, {"sync": 17})
    assert (found.title, len(found.evidence), len(found.spans)) == ("thing costs 9", 3, 3)


def test_costs_that_overlap_in_time_are_not_added_and_none_is_above_the_steps() -> None:
    (found,) = one_per_cause([_apart(9, 0), _apart(5, 8)], 1_000)
    assert (found.count, found.cost_ns) == (2, 9)
    (found,) = one_per_cause([_apart(9, 0), _apart(5, 100)], 10)
    assert found.cost_ns == 10


def test_programs_of_one_function_are_one_cause_and_not_added() -> None:
    programs = [replace(finding(cost), cost_ns=cost, evidence=({"program": f"f.{cost}"},)) for cost in (9, 5)]
    (found,) = one_per_cause(programs, 1_000)
    assert (found.count, found.cost_ns) == (2, 9)


def test_other_lines_and_subjects_are_other_causes() -> None:
    several = [finding(9), finding(5, line=2), finding(3, subject="other")]
    assert [found.count for found in one_per_cause(several, 1_000)] == [1, 1, 1]


def test_without_a_line_ranks_share_a_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rule(lambda t: [replace(finding(t.source.rank), where=Where(op=f"op{t.source.rank}"))])
    (found,) = outcome_of_rule(monkeypatch, made, trace(0), trace(1)).findings
    assert found.ranks == (0, 1)


def test_clean_takes_records_that_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = replace(rule(lambda _: []), examined=lambda _: Scope(0, "copies"))
    outcome = judge(nothing, trace())
    assert (outcome.status, outcome.examined) == ("abstained", 0)
    assert "copies" in (outcome.reason or "")
    together = outcome_of_rule(
        monkeypatch, replace(nothing, compare=lambda _: [], compared=lambda _: Scope(7, "collectives")), trace(0)
    )
    assert (together.status, together.examined, together.examined_what) == ("clean", 7, "collectives")


def test_every_rule_says_what_it_examines() -> None:
    assert [rule_id for rule_id in rule_ids() if load_rule(rule_id).examined is None] == []


def test_severity_follows_the_share() -> None:
    assert [severity_of(cost, 1000) for cost in (0, 9, 10, 49, 50)] == ["low", "low", "medium", "medium", "high"]
    assert severity_of(5, 0) == "low"


def test_a_rule_that_cannot_compare_abstains_unless_it_found_something(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> Iterable[Finding]:
        raise AbstainError("one rank")

    alone = replace(rule(lambda _: []), compare=refuse)
    outcome = outcome_of_rule(monkeypatch, alone, trace())
    assert (outcome.status, outcome.reason) == ("abstained", "one rank")
    found = outcome_of_rule(monkeypatch, replace(rule(lambda _: [finding(5)]), compare=refuse), trace())
    assert (found.status, found.reason) == ("flagged", None)
    blind = replace(rule(lambda _: [], "memory"), compare=refuse)
    reason = outcome_of_rule(monkeypatch, blind, trace(recorded=EVERYTHING - {"memory"})).reason
    assert reason == "not recorded: allocator events"


def test_a_path_is_no_trace() -> None:
    with pytest.raises(TypeError, match=r"perfscope.analyze\(perfscope.load\(path\)\)"):
        analyze("runs/latest")  # type: ignore[arg-type]


def tables_of(trace: Trace) -> dict[str, object]:
    """Hash of every column, and the other parts that facts might touch."""
    columns = {
        f"{table}.{name}": hashlib.blake2b(np.ascontiguousarray(values).tobytes()).hexdigest()
        for table, rows in trace.rows.items()
        for name, values in rows.items()
    }
    return {**columns, "strings": trace.strings, "source": trace.source, "recorded": trace.recorded}


@pytest.mark.parametrize("path", ["cpu-attention-sdpa", "cpu-moe-loop", "programs-h100/attention-blocked"])
def test_rules_leave_the_trace_as_it_was(path: str) -> None:
    (trace,) = load_all(REPOSITORY / "fixtures" / path)
    recordings = [one for one in (trace, trace.detail, trace.held_before) if one is not None]
    before = list(map(tables_of, recordings))
    found = analyze(trace)
    assert len(found) > 20
    assert not [one.reason for one in found if one.reason is not None and "rule failed" in one.reason]
    assert list(map(tables_of, recordings)) == before
