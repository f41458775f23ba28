from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.file_names import files_in_stacks, one_name_per_file
from perfscope.model.finding import Finding, Outcome, Where
from tests.build import TraceBuilder


def _finding(file: str | None, line: int | None, *, title: str = "slow", site: str = "") -> Finding:
    evidence = ({"site": site, "op": "/not/a/place"},) if site else ()
    return Finding(
        subject="s", title=title, severity="low", basis="measured", advice="Fix.", where=Where(file=file, line=line),
        evidence=evidence,
    )  # fmt: skip


def _named(*findings: Finding, sources: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    (outcome,) = one_name_per_file([Outcome(rule="r", status="flagged", findings=findings)], sources)
    return outcome.findings


def test_a_file_has_the_name_that_another_finding_gives_it() -> None:
    first, second = _named(_finding("/data/me/proj/train.py", 3), _finding("train.py", 9))
    assert (first.where.file, second.where.file) == ("train.py", "train.py")


def test_a_file_has_the_name_that_a_stack_gives_it() -> None:
    builder = TraceBuilder()
    builder.sample("train.py(3): main", 100)
    stacks = files_in_stacks([builder.build()])
    (outcome,) = one_name_per_file(
        [Outcome(rule="r", status="flagged", findings=(_finding("/data/me/train.py", 3),))], (), stacks
    )
    assert outcome.findings[0].where.label() == "train.py:3"


def test_other_files_of_that_folder_lose_it_too_and_those_of_others_keep_theirs() -> None:
    names = _named(_finding("/d/proj/train.py", 3), _finding("train.py", 9), _finding("/d/proj/lib/a.py", 1),
                   _finding("/opt/other/b.py", 1))  # fmt: skip
    assert [finding.where.file for finding in names] == ["train.py", "train.py", "lib/a.py", "/opt/other/b.py"]


def test_two_files_of_one_name_stay_apart() -> None:
    names = _named(_finding("/a/models/net.py", 3), _finding("data/net.py", 3))
    assert [finding.where.file for finding in names] == ["/a/models/net.py", "data/net.py"]


def test_the_folder_of_the_runs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    run = tmp_path / "perfscope-runs" / "20260101-000000-train-0000"
    (finding,) = _named(_finding(f"{tmp_path}/train.py", 3, site=f"{tmp_path}/train.py:3"), sources=(str(run),))
    assert finding.where.label() == "train.py:3"
    assert finding.evidence[0] == {"site": "train.py:3", "op": "/not/a/place"}


def test_a_line_that_is_not_known_is_left_out() -> None:
    (finding,) = _named(_finding("train.py", -1))
    assert finding.where.label() == "train.py"


def test_the_same_is_said_once() -> None:
    assert len(_named(_finding("/d/p/train.py", 3), _finding("train.py", 3))) == 1
    assert len(_named(_finding("train.py", 3), _finding("train.py", 4))) == 2
    assert len(_named(_finding(None, None), _finding(None, None))) == 2, "nothing tells that it is the same"
