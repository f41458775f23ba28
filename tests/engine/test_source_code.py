"""Findings that a comment in the code or a pattern of paths silences."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfscope.analyzers.source_code import AROUND, NO_REASON, with_code
from perfscope.model.finding import Excerpt, Finding, Outcome, Where


def outcome(file: str | None, line: int | None, rule: str = "host_sync") -> Outcome:
    finding = Finding(
        subject="read", title="a read", severity="high", basis="measured", advice="Do not.",
        where=Where(file=file, line=line),
    )  # fmt: skip
    return Outcome(rule=rule, status="flagged", findings=(finding,))


def reason(outcome: Outcome, sources: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> str | None:
    (judged,) = with_code([outcome], sources, ignore)
    return judged.findings[0].silenced


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [
        "x.item()  # perfscope: ignore[host_sync] printed on purpose",
        "x.item()  # perfscope: ignore[unfused_ops, host-sync]: both",
        "x.item()  # perfscope: ignore[host_sync]",
        "x.item()  # perfscope: ignore[unfused_ops] another rule",
        "x.item()  # perfscope: ignore",
        "x.item()",
    ]
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize(
    ("line", "expected"),
    [(1, "printed on purpose"), (2, "both"), (3, NO_REASON), (4, None), (5, None), (6, None), (7, None), (0, None)],
)
def test_a_comment_silences_the_rules_it_names(code: Path, line: int, expected: str | None) -> None:
    assert reason(outcome(str(code), line)) == expected
    assert reason(outcome(code.name, line)) == expected, "relative to the working directory"


def test_relative_paths_begin_beside_the_folder_of_runs(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "perfscope-runs" / "20260101-000000-train-0000" / "rank0" / "trace.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert reason(outcome(code.name, 1)) is None
    assert reason(outcome(code.name, 1), (source,)) == "printed on purpose"


def test_what_is_no_source_file_is_not_read(code: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text(code.read_text())
    (tmp_path / "folder.py").mkdir()
    for file in ("notes.txt", "folder.py", "absent.py", "/dev/zero", "a\0.py"):
        assert reason(outcome(file, 1)) is None
    assert reason(outcome(None, None)) is None
    assert reason(outcome(code.name, None)) is None


@pytest.mark.parametrize(
    ("file", "pattern", "matches"),
    [
        ("third_party/a/b.py", "third_party/*", True),
        ("/home/x/third_party/a/b.py", "third_party/", True),
        ("my_third_party/a.py", "third_party/*", False),
        ("src/gen_model.py", "gen_*.py", True),
        ("src/model.py", "gen_*.py", False),
    ],
)
def test_patterns_of_paths(file: str, pattern: str, matches: bool) -> None:
    assert (reason(outcome(file, None), ignore=(pattern,)) is not None) == matches


LINES = tuple(f"line_{number}()" for number in range(1, 8))


def excerpt(file: str, line: int, recording: str = "trace.json") -> Excerpt | None:
    (judged,) = with_code([outcome(file, line)], [recording])
    return judged.findings[0].excerpt


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for file in (folder / "train.py", tmp_path / "other.py"):
        file.write_text("\n".join(LINES))
        os.utime(file, (1000, 1000))
    (folder / "trace.json").write_text("{}")
    os.utime(folder / "trace.json", (2000, 2000))
    return folder


def test_the_line_and_those_around_it(project: Path) -> None:
    for file in ("train.py", str(project / "train.py")):
        shown = excerpt(file, 4)
        assert shown is not None
        assert (shown.first, shown.lines) == (4 - AROUND, LINES[3 - AROUND : 4 + AROUND])
    first = excerpt("train.py", 1)
    assert first is not None
    assert (first.first, first.lines) == (1, LINES[: 1 + AROUND])
    assert excerpt("train.py", 8) is None


def test_a_file_that_was_changed_after_the_recording_is_not_shown(project: Path) -> None:
    os.utime("train.py", (3000, 3000))
    assert excerpt("train.py", 4) is None
    os.utime("train.py", (1000, 1000))
    assert excerpt("train.py", 4, "gone.json") is None


def test_no_file_outside_the_project_is_shown(project: Path) -> None:
    assert excerpt("../other.py", 4) is None
    assert excerpt(str(project.parent / "other.py"), 4) is None
    Path("link.py").symlink_to(project.parent / "other.py")
    assert excerpt("link.py", 4) is None
