"""The report in a GitHub job: warnings on lines, and a log in which no line of a trace is a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfscope.dashboards.report import text
from perfscope.dashboards.report.github import MOST_OF_A_KIND, render
from perfscope.model.finding import Finding, Outcome
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, hostile


def commands(report: str) -> list[str]:
    """The lines that a runner takes for commands."""
    lines: list[str] = []
    token = None
    for line in report.splitlines():
        if token is None and (stop := re.fullmatch("::stop-commands::([0-9a-f]+)", line)):
            token = stop.group(1)
        elif token is not None:
            token = None if line == f"::{token}::" else token
        elif line.startswith("::"):
            lines.append(line)
    assert token is None
    return lines


def test_each_finding_is_a_warning_at_its_line_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    first, *rest = commands(render(analysis(), repository=tmp_path))
    assert first.startswith("::warning file=train.py,line=88,title=perfscope%3A host_sync::")
    findings = analysis().findings()
    assert sum(line.startswith("::warning ") for line in (first, *rest)) == len(findings)
    assert rest[-2].startswith("::group::")
    assert rest[-1] == "::endgroup::"


def test_what_is_not_of_the_checkout_has_no_place(tmp_path: Path) -> None:
    assert "file=" not in "".join(commands(render(analysis(), repository=tmp_path)))


def test_the_log_has_the_text_report(tmp_path: Path) -> None:
    assert text.render(analysis()) in render(analysis(), repository=tmp_path)


def test_more_than_github_shows_is_counted(tmp_path: Path) -> None:
    findings = tuple(
        Finding(subject=str(n), title=f"finding {n}", severity="low", basis="measured", advice="", cost_ns=n * MS)
        for n in range(MOST_OF_A_KIND + 5)
    )
    outcomes = (Outcome(rule="host_sync", status="flagged", findings=findings),)
    warnings = [line for line in commands(render(analysis(outcomes=outcomes))) if line.startswith("::warning")]
    assert len(warnings) == MOST_OF_A_KIND
    assert "6 more findings" in warnings[-1]


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "::error::x", "a\n::error::x"])
def test_no_name_is_a_command(name: str, tmp_path: Path) -> None:
    kinds = {line.split("::")[1].split(" ")[0] for line in commands(render(hostile(name), repository=tmp_path))}
    assert kinds <= {"warning", "group", "endgroup"}
