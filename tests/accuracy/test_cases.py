"""Every labelled case is found at its line, or its miss is explained; docs/accuracy.md is that of its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.accuracy.__main__ import PAGE, RESULTS, SCHEMA
from tests.accuracy.cases import CASES, Case, Program
from tests.accuracy.judge import Judge, lacking
from tests.accuracy.known import limit
from tests.accuracy.labels import NO_RULE, labelled_lines, lines_of
from tests.accuracy.page import page, scores, total

IN_PLANS = {"decoder.py", "kernels/ssd.py"}
"""Workloads whose defects are found in plans for an H100: `tests/workloads/test_kernels.py`."""
EVERYDAY = {"torch H100: attention-sdpa-item", "jax H100: attention-naive", "jax v5e: moe-einsum"}


def marks_of(case: Case) -> list[Any]:
    marks = [] if case.title in EVERYDAY else [pytest.mark.slow]
    if isinstance(case.source, Program):
        marks.append(getattr(pytest.mark, case.framework))
    elif case.story:
        marks.append(pytest.mark.corpus)
    return marks


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("accuracy"))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.title, marks=marks_of(case)) for case in CASES])
def test_a_defect_is_found_at_its_line_and_its_twin_is_clean(case: Case, judge: Judge) -> None:
    if (absent := lacking(case)) is not None:
        pytest.skip(f"no {absent}")
    result = judge.result(case)
    wrong = [answer for answer in result.answers if not answer.found or answer.line_found is False]
    assert [answer for answer in wrong if answer.explained is None] == []
    assert [alarm for alarm in result.alarms if alarm.explained is None] == []
    first = result.first
    if first is not None and isinstance(case.source, Program) and case.expects:
        assert first.rule in case.expects or limit(case.title, first.rule, "first") is not None


def test_cases_are_many_and_named_once() -> None:
    titles = [case.title for case in CASES]
    assert len(titles) == len(set(titles))
    assert sum(bool(case.expects) for case in CASES) >= 60
    assert {case.mode for case in CASES} == {
        "eager", "compiled", "jit", "4 gloo processes", "8 devices", "H100", "v5e", "GPU trace", "TPU trace",
    }  # fmt: skip


def test_every_label_of_a_rule_belongs_to_a_case_or_is_known_not_to() -> None:
    used = {
        place
        for case in CASES
        for rule, text in case.expects.items()
        if text
        for place in lines_of(rule, text, module(case))
    }
    assert labelled_lines().keys() - used == {
        place
        for place, (line, rules) in labelled_lines().items()
        if rules == {NO_RULE}
        or rules & {"pageable_copy", "memory_fragmentation"}
        or "precision(" in line
        or place[0] in IN_PLANS
    }, "only what needs an accelerator or a compiler for one has no case"


def module(case: Case) -> str:
    return "perfscope.workloads.jax." if case.framework == "jax" else "perfscope.workloads."


def document() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return result


def test_the_page_is_that_of_the_results() -> None:
    results = document()
    assert results["schema"] == SCHEMA
    assert PAGE.read_text(encoding="utf-8") == page(results)
    kept = [f"{case['framework']} {case['mode']}: {case['name']}" for case in results["cases"]]
    assert kept == [case.title for case in CASES if case.title in kept]
    assert results["not_judged"] == [case.title for case in CASES if case.title not in kept]
    assert sum(bool(case["answers"]) for case in results["cases"]) >= 60


def test_every_miss_in_the_results_is_explained() -> None:
    cases = document()["cases"]
    assert sum(len(case["answers"]) for case in cases) >= 60
    for case in cases:
        for answer in case["answers"]:
            assert answer["explained"] or (answer["found"] and answer["line_found"] is not False), case["name"]
        assert all(alarm["explained"] for alarm in case["alarms"]), case["name"]


def test_scores_by_hand() -> None:
    case = {
        "mode": "eager",
        "answers": [
            {"rule": "host_sync", "found": True, "line_found": True},
            {"rule": "graph_break", "found": False, "line_found": None},
        ],
        "alarms": [{"rule": "host_sync"}],
        "besides": {"host_sync (twin)": "by design"},
        "clean": ["input_stall", "input_stall"],
    }
    by_rule = scores([case])
    assert (by_rule["host_sync"].precision, by_rule["host_sync"].recall) == (0.5, 1.0)
    assert by_rule["host_sync"].least_precision == pytest.approx(1 / 3)
    assert (by_rule["graph_break"].precision, by_rule["graph_break"].recall) == (None, 0.0)
    whole = total(by_rule.values())
    assert (whole.found, whole.missed, whole.lines, whole.alarms, whole.clean) == (1, 1, 1, 1, 2)


def test_a_label_that_names_no_rule_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.accuracy import labels

    (tmp_path / "program.py").write_text("x = 1  # defect: host_sink\n")
    monkeypatch.setattr(labels, "WORKLOADS", tmp_path)
    labels.labelled_lines.cache_clear()
    with pytest.raises(ValueError, match="host_sink"):
        labels.labelled_lines()
    labels.labelled_lines.cache_clear()
