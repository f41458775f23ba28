"""First advice: the judge by hand, everyday cases of files, and every case where there is time."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.registry import rule_ids
from perfscope.dashboards.report.blocks import Amount, FindingBlock
from perfscope.model.finding import Finding, Where
from tests.accuracy.advice import PROGRAMS, RECORDED, AdviceCase
from tests.accuracy.advice_cases import ADVICE
from tests.accuracy.advice_judge import Said, judge, judge_file, judge_recorded, missing_package, verdict_of
from tests.accuracy.page import page
from tests.accuracy.test_cases import document
from tests.conftest import REPOSITORY

CONTROLS, LEAST_CASES = 10, 70


def verdicts() -> dict[str, dict[str, Any]]:
    """The verdicts in docs/accuracy.json by title."""
    return {f"{case['framework']} {case['kind']}: {case['name']}": case for case in document().get("advice", [])}


def marks_of(case: AdviceCase) -> list[Any]:
    marks = [] if case.everyday else [pytest.mark.slow]
    return marks if case.how == "analyze" else [*marks, getattr(pytest.mark, case.framework)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.title, marks=marks_of(case)) for case in ADVICE])
def test_first_advice(case: AdviceCase, tmp_path: Path) -> None:
    package = missing_package(case)
    if package is not None:
        pytest.skip(f"no {package}")
    if case.how == "analyze":
        assert judge_file(case, tmp_path / "case") == ("right", "")
        return
    judged = judge(case, tmp_path / "case")
    kept = verdicts().get(case.title)
    if kept is not None and kept["verdict"] != "right" and judged.verdict != "right":
        pytest.xfail(f"docs/accuracy.md has it as {kept['verdict']}: {judged.why}")
    assert (judged.verdict, judged.why, judged.first) == ("right", "", judged.first)


@pytest.mark.parametrize("case", [case for case in ADVICE if case.recorded], ids=lambda case: case.title)
def test_first_advice_of_a_recording(case: AdviceCase) -> None:
    assert judge_recorded(case) == ("right", "")


def test_recordings_are_those_that_are_listed_and_name_no_machine() -> None:
    folders = {path.name: path for path in (REPOSITORY / "fixtures" / "advice").iterdir() if path.is_dir()}
    assert set(folders) == RECORDED <= {Path(case.program).stem for case in ADVICE}
    for name, folder in folders.items():
        provenance = tomllib.loads((folder / "provenance.toml").read_text(encoding="utf-8"))
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != "provenance.toml"]
        assert provenance["names_found"] == [], name
        assert provenance["sha256"] == {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        }, name


def test_cases_are_many_and_named_once() -> None:
    titles = [case.title for case in ADVICE]
    assert len(titles) == len(set(titles)) >= LEAST_CASES
    assert sum(case.is_control for case in ADVICE) >= CONTROLS
    assert all(case.rules or case.says or case.is_control for case in ADVICE)
    assert all(case.thread for case in ADVICE)


def test_every_rule_has_a_case_in_the_everyday_suite() -> None:
    cases = [case for case in ADVICE if case.recorded or (case.everyday and case.how == "analyze")]
    assert {case.rules[0] for case in cases if case.rules} >= set(rule_ids())


def test_every_program_is_of_a_case() -> None:
    used = {case.program for case in ADVICE}
    assert {path.name for path in PROGRAMS.iterdir() if path.is_file()} <= used


def test_every_line_is_in_its_file() -> None:
    assert [case.title for case in ADVICE if case.line and not case.places] == []


def test_the_results_are_of_the_table() -> None:
    kept = [f"{case['framework']} {case['kind']}: {case['name']}" for case in document().get("advice", [])]
    assert kept == [case.title for case in ADVICE if case.title in kept]
    assert document().get("advice_not_judged", []) == [case.title for case in ADVICE if case.title not in kept]


CASE = AdviceCase(
    name="a read", framework="torch", kind="reads", thread="own", program="grad_norms.py", rules=("host_sync",),
    line=("history.append",), fix=("every N steps",),
)  # fmt: skip
LINE = next(iter(CASE.places))[1]


def block(
    rule: str = "host_sync", line: int = LINE, advice: str = "Read it every N steps.", **more: Any
) -> FindingBlock:
    finding = Finding(
        subject="s", title="reads", severity="high", basis="measured", advice=advice,
        where=Where(file="grad_norms.py", line=line),
    )  # fmt: skip
    return FindingBlock(
        rule=rule, finding=finding, saves=Amount(1, "ns"), over="", share=0.5, share_of="step", ranks=(), **more
    )


@pytest.mark.parametrize(
    ("blocks", "verdict"),
    [
        ([block()], "right"),
        ([block(), block("launch_bound")], "right"),
        ([block("launch_bound"), block()], "partly"),
        ([block(line=LINE + 1)], "partly"),
        ([block(advice="Do it less often.")], "partly"),
        ([block("launch_bound")], "wrong"),
        ([], "wrong"),
        ([block(), block("launch_bound", advice="Move `<module>` out of the step.")], "wrong"),
        ([block(), block("launch_bound", advice="Use jax.lax.scan.")], "wrong"),
    ],
)  # fmt: skip
def test_verdicts_by_hand(blocks: list[FindingBlock], verdict: str) -> None:
    assert verdict_of(CASE, Said(findings=tuple(blocks), screen=""))[0] == verdict


def test_a_share_above_the_whole_is_wrong() -> None:
    import msgspec

    impossible = msgspec.structs.replace(block(), share=1.2)
    assert verdict_of(CASE, Said(findings=(impossible,), screen=""))[0] == "wrong"


def test_a_control_is_wrong_with_advice_that_matters() -> None:
    import msgspec

    control = AdviceCase(name="fine", framework="torch", kind="control", thread="own", program="control_mlp.py")
    low = msgspec.structs.replace(block(), finding=msgspec.structs.replace(block().finding, severity="low"))
    assert verdict_of(control, Said(findings=(), screen=""))[0] == "right"
    assert verdict_of(control, Said(findings=(low,), screen=""))[0] == "right"
    assert verdict_of(control, Said(findings=(block(),), screen=""))[0] == "wrong"


def test_the_page_has_the_verdicts() -> None:
    results = document()
    case = {
        "name": "a read", "framework": "torch", "kind": "reads", "thread": "own", "program": "p.py", "how": "run",
        "expected": "host_sync", "verdict": "partly", "why": "names p.py:1", "first": "host_sync p.py:1: reads",
    }  # fmt: skip
    text = page({**results, "advice": [case], "advice_date": "2026-01-01", "advice_not_judged": ["one"]})
    assert "| reads | 0 of 1 (0%) | 1 of 1 (100%) | 0 of 1 (0%) |" in text
    assert "names p.py:1" in text
    assert "Not judged in this run: one." in text
