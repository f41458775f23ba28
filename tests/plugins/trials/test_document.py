"""The document of a try: measurements of the launches, and predictions of the findings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import Analysis
from perfscope.model.errors import DataError
from perfscope.model.finding import Finding, Outcome
from perfscope.plugins.trials import document as documents
from perfscope.plugins.trials.judge import (
    GARBAGE_COLLECTION,
    Promise,
    TrialJudge,
    answered,
    best_first,
    neighbours,
    promises,
    signs,
    unanswered,
)
from tests.plugins.trials.launches import (
    NOISE,
    attempt,
    document,
    intervention,
    launch,
    left,
    pairs_of,
    rejected,
    report,
    unchanged,
)


def test_a_faster_step_is_a_gain_with_its_interval() -> None:
    (trial,) = document(attempt("fused", 0.8, "unfused_optimizer")).trials
    assert trial.state == "gain"
    assert trial.effect == pytest.approx(-0.2, abs=0.005)
    assert trial.low is not None
    assert trial.high is not None
    assert trial.low < -0.2 < trial.high
    assert (trial.answers, trial.predicted_ns) == (("unfused_optimizer",), 4_000_000)
    assert trial.results is not None
    assert trial.results.state == "same"


@pytest.mark.parametrize(("factor", "state"), [(1.0, "no gain"), (1.1, "slower")])
def test_no_gain_and_slower_are_answers(factor: float, state: str) -> None:
    assert document(attempt("fused", factor)).trials[0].state == state


def test_launches_that_scatter_cannot_tell() -> None:
    pairs = pairs_of([10] * 6, [9, 11, 8, 12, 9.5, 8.5])
    (trial,) = document(replace(attempt("fused", 0.97), pairs=pairs)).trials
    assert trial.state == "cannot tell"


def test_what_moves_time_between_steps_is_judged_by_the_mean() -> None:
    made = attempt("workers", 1.0)
    uneven = {"step_ns": (1_000_000, 19_000_000) * 200}
    pairs = pairs_of([10 * noise for noise in NOISE], [10 * noise for noise in NOISE], **uneven)
    (trial,) = document(replace(made, intervention=intervention("workers", by_mean=True), pairs=pairs)).trials
    assert trial.estimator == "mean"
    assert trial.state == "no gain", "the fastest step took a tenth, and all together as long as before"


def test_changed_results_are_rejected_whatever_the_time() -> None:
    (trial,) = document(rejected("bf16")).trials
    assert (trial.state, trial.effect) == ("rejected", None)
    assert trial.results is not None
    assert (trial.results.state, trial.results.first_step) == ("different", 1)


def test_memory_and_the_steps_that_pay_for_the_start() -> None:
    of_head = {"reports": (report(rss=600 << 20),), "seconds": 2.0 + 1.0 + 30 * 8 / 1e3}
    (trial,) = document(attempt("compile", 0.8, **of_head)).trials
    assert trial.base_bytes is not None
    assert trial.head_bytes == 2 * trial.base_bytes
    assert trial.startup_ns == pytest.approx(1e9, rel=0.01)
    assert trial.payback_steps == pytest.approx(500, abs=5), "a second, at 2 ms per step"


def test_an_intervention_that_was_not_launched_has_no_results() -> None:
    (trial,) = document(left("pin-memory", "the program uses no GPU")).trials
    assert (trial.state, trial.reason, trial.results) == ("not applicable", "the program uses no GPU", None)


def test_a_judge_rejects_only_what_differs() -> None:
    judge = TrialJudge(pairs=6, least=0.02)
    base, other, silent = (launch(reports=(trial,)) for trial in (report(1.0), report(2.0), report()))
    assert judge.rejects(base, base) is None
    assert judge.rejects(base, silent) is None, "it is shown as not compared"
    assert "loss differs" in (judge.rejects(base, other) or "")


def finding(**more: object) -> Finding:
    fields: dict[str, object] = {"subject": "x", "title": "x", "severity": "low", "basis": "measured", "advice": "x"}
    return Finding(**{**fields, **more})  # type: ignore[arg-type]


def test_promises_are_of_open_findings_without_a_profiler() -> None:
    outcomes = (
        Outcome(
            rule="host_sync",
            status="flagged",
            findings=(finding(cost_ns_per_step=50, untraced_ns_per_step=40), finding(cost_ns_per_step=5)),
        ),
        Outcome(rule="input_stall", status="flagged", findings=(finding(cost_ns_per_step=9, silenced="known"),)),
        Outcome(rule="peak_owner", status="flagged", findings=(finding(cost_bytes=9),)),
    )
    analysis = Analysis(sources=(), devices=(), steps=(), outcomes=outcomes)
    assert promises(analysis) == {
        "host_sync": Promise(findings=2, ns=45),
        "peak_owner": Promise(findings=1, ns=None),
    }


def test_the_largest_promise_comes_first_and_rules_without_an_answer_are_named() -> None:
    promised = {"a": Promise(findings=1, ns=5), "b": Promise(findings=1, ns=9), "c": Promise(findings=1, ns=1)}
    interventions = [intervention("one", "a"), intervention("two", "a", "b"), intervention("three")]
    assert [one.name for one in best_first(interventions, promised)] == ["two", "one", "three"]
    setting = promised | {"three": Promise(findings=1, ns=None)}
    assert [one.name for one in best_first(interventions, setting)] == ["three", "two", "one"], "a setting that costs"
    assert answered(interventions[1], promised) == (("a", "b"), 9)
    assert unanswered(interventions, promised) == ("c",)


def test_garbage_collection_in_steps_is_a_sign_from_two_percent_on() -> None:
    program = unchanged(3.0)
    for share, shown in ((0.019, {}), (0.021, {GARBAGE_COLLECTION: Promise(findings=1, ns=210_000)})):
        trial = dataclasses.replace(report(3.0), gc_ns_per_step=round(share * 1e7))
        first = replace(program.first, reports=(trial,))
        assert signs(replace(program, first=first), ()) == shown
    seen = signs(program, ("debug-off",))
    assert answered(intervention("debug-off"), seen) == (("debug-off",), None)
    assert unanswered([intervention("debug-off")], seen) == ()


def test_the_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = document(attempt("fused", 0.8), rejected("bf16"), together=attempt("together", 0.7))
    (tmp_path / documents.FILE).write_bytes(documents.dump(made))
    assert documents.load(tmp_path) == made


def test_a_damaged_document_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "try.json"
    file.write_bytes(documents.dump(document(attempt("fused", 0.8))).replace(b'"state": "gain"', b'"state": "won"'))
    with pytest.raises(DataError, match=r"try\.json"):
        documents.load(file)


def test_of_equal_promises_that_which_answers_more_comes_first() -> None:
    promised = {"unfused_ops": Promise(findings=1, ns=9), "host_bound": Promise(findings=1, ns=4)}
    given = [intervention("channels-last", "unfused_ops"), intervention("compile", "unfused_ops", "host_bound")]
    assert [one.name for one in best_first(given, promised)] == ["compile", "channels-last"]
    both = [intervention("foreach", "unfused_ops", after="fused"), intervention("fused", "unfused_ops")]
    assert [one.name for one in best_first(both, promised)] == ["fused", "foreach"]


def test_what_takes_long_to_try_comes_later_unless_it_promises_more() -> None:
    given = [intervention("compile", "unfused_ops", effort=3.0), intervention("fused", "unfused_optimizer")]
    for ns, first in ((8, "fused"), (10, "compile")):
        promised = {
            "unfused_ops": Promise(findings=1, ns=ns),
            "unfused_optimizer": Promise(findings=1, ns=3),
        }
        assert best_first(given, promised)[0].name == first


def test_the_unchanged_program_against_itself_are_its_launches_in_the_pairs() -> None:
    pairs = pairs_of([10, 11, 12, 13, 14], [9] * 5)
    alike = neighbours([replace(attempt("fused", 0.9), pairs=pairs), left("pin-memory", "no GPU")])
    assert [(first.step_ns[0] // 1_000_000, second.step_ns[0] // 1_000_000) for first, second in alike] == [
        (10, 11),
        (12, 13),
    ]


def test_fewer_than_six_pairs_answer_only_if_launches_do_not_overlap() -> None:
    judge = TrialJudge(pairs=6, least=0.02)
    apart = replace(attempt("fused", 0.8), pairs=pairs_of([10, 11, 10, 11], [8, 8.8, 8.01, 8.79]))
    overlapping = replace(apart, pairs=pairs_of([10, 20, 10, 20], [8, 16, 8.01, 15.99]))
    assert judge.helped(apart)
    assert not judge.helped(overlapping)
    assert judge.so_far(apart.intervention, pairs_of([10], [8]).measured).endswith("(no interval before 4 pairs)")
    assert apart.pairs is not None
    told = judge.so_far(apart.intervention, apart.pairs.measured)
    assert re.fullmatch(r"fused: step time -20\.0% after 4 pairs \(\[-20\.\d%, -19\.\d%\]\)", told)
