"""The result of an A/B as text and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from perfscope.analyzers.compare.ab_judge import AbJudge
from perfscope.dashboards.reports import ab_report
from perfscope.profiler.ab_pairs import Pairs
from tests.analyzers.compare.test_ab_judge import CALIBRATION, pairs
from tests.profiler.test_ab import plan

JUDGE = AbJudge(pairs=10, least=0.02)


def test_a_regression_on_a_few_lines() -> None:
    found = Pairs(calibration=CALIBRATION, measured=pairs(6, 0.06), confirming=pairs(6, 0.05, seed=1))
    lines = ab_report.as_text(JUDGE.result(found), plan()).splitlines()
    assert lines[0] == "main (aaaaaaaaaaaa) -> HEAD (bbbbbbbbbbbb)"
    assert lines[1].startswith("  regression    step time  9.98 ms -> 10.5 ms  +5.5%")
    assert " at 97.2%)  p " in lines[1]
    assert any(line.startswith("  beside        step time, mean  ") for line in lines)
    assert any("confirmed by a second batch: +" in line for line in lines)
    assert lines[-1] == "  6 pairs of launches and 6 to confirm, order by seed 7, a change below 2.0% does not matter"


def test_what_is_open_says_what_would_settle_it() -> None:
    found = Pairs(calibration=CALIBRATION, measured=pairs(10, spread=0.05), confirming=())
    result = JUDGE.result(found)
    assert f"about {result.step.needed_pairs} pairs in all would settle it" in ab_report.as_text(result, plan())


def test_nothing_at_all_has_a_text_and_a_json() -> None:
    result = JUDGE.result(Pairs(calibration=(), measured=(), confirming=()))
    assert "inconclusive  step time  - -> -" in ab_report.as_text(result, plan())
    held = json.loads(ab_report.as_json(result, plan()))
    assert (held["schema"], held["metrics"][0]["verdict"]) == ("perfscope.ab-result/1", "inconclusive")


def test_secrets_and_what_steers_a_terminal_are_not_shown() -> None:
    result = JUDGE.result(Pairs(calibration=(), measured=pairs(6), confirming=()))
    asked = replace(plan(), command=("train.py", "--api-key", "hush"), base_ref="\x1b[31mred\nline")
    text, held = ab_report.as_text(result, asked), ab_report.as_json(result, asked)
    assert "\x1b" not in text
    assert "hush" not in held
    assert math.isclose(json.loads(held)["plan"]["least"], 0.02)
