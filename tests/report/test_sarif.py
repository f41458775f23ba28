"""SARIF: what the standard and code scanning require, and findings that remain the same when lines move."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.dashboards.report import github
from perfscope.dashboards.report.sarif import FINGERPRINT, LEVELS, render
from perfscope.model.finding import Excerpt, Finding, Outcome, Where
from tests.report.analyses import HOST_SYNC, HOSTILE_NAMES, analysis, hostile


def log_of(report: str) -> dict[str, Any]:
    """The one run of a log, after a check of what SARIF 2.1.0 requires (sections 3.13 to 3.58)."""
    log = json.loads(report)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert isinstance(driver["name"], str)
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]  # code scanning refuses a result without one
        place = location["physicalLocation"]
        assert not place["artifactLocation"]["uri"].startswith(("/", ".."))
        assert place.get("region", {"startLine": 1})["startLine"] >= 1
        assert all(isinstance(text, str) for text in result["partialFingerprints"].values())
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        for notification in invocation["toolExecutionNotifications"]:
            assert notification["message"]["text"]
            assert notification["descriptor"]["id"]
    found: dict[str, Any] = run
    return found


def prints(report: str) -> list[str]:
    return [result["partialFingerprints"][FINGERPRINT] for result in log_of(report)["results"]]


def of(*findings: Finding) -> Any:
    return analysis(outcomes=(Outcome(rule="host_sync", status="flagged", findings=findings),))


def test_a_finding_in_the_checkout_is_a_result_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    run = log_of(render(analysis(), repository=tmp_path))
    (result,) = run["results"]
    assert result["ruleId"] == "host_sync"
    assert result["level"] == LEVELS["high"] == "error"
    place = result["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 88},
    }
    assert HOST_SYNC.title in result["message"]["text"]


def test_findings_elsewhere_are_notifications(tmp_path: Path) -> None:
    run = log_of(render(analysis(), repository=tmp_path))
    assert run["results"] == []
    notifications = run["invocations"][0]["toolExecutionNotifications"]
    assert len(notifications) == len(analysis().findings())


def test_the_help_of_a_rule_is_its_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (rule,) = log_of(render(analysis(), repository=tmp_path))["tool"]["driver"]["rules"]
    assert "Why it costs:" in rule["help"]["text"]
    assert "## Why it costs\n\nAn accelerator" in rule["help"]["markdown"]


def test_a_fingerprint_survives_lines_added_above_and_changes_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert HOST_SYNC.excerpt is not None
    moved = replace(
        HOST_SYNC,
        where=replace(HOST_SYNC.where, line=98),
        excerpt=Excerpt(path=HOST_SYNC.excerpt.path, first=96, lines=HOST_SYNC.excerpt.lines),
    )
    other = replace(moved, excerpt=Excerpt(path="/train.py", first=98, lines=("seen += loss.item()",)))
    first, second, third = (prints(render(of(item), repository=tmp_path)) for item in (HOST_SYNC, moved, other))
    assert first == second
    assert first != third


def test_equal_lines_of_a_file_are_two_results(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    twin = replace(HOST_SYNC, where=replace(HOST_SYNC.where, line=120), excerpt=None)
    both = [replace(twin, excerpt=Excerpt(path="/train.py", first=120, lines=("x.item()",))) for _ in range(2)]
    assert len(set(prints(render(of(*both), repository=tmp_path)))) == 2


def test_silenced_findings_are_left_out_and_those_of_the_recording_are_notifications(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    silenced = replace(HOST_SYNC, silenced="known")
    recording = replace(HOST_SYNC, about="recording", title="the trace lacks stacks")
    run = log_of(render(of(silenced, recording), repository=tmp_path))
    assert run["results"] == []
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["message"]["text"] == "the trace lacks stacks"


def test_a_file_without_a_line_and_with_a_space(tmp_path: Path) -> None:
    (tmp_path / "my train.py").touch()
    finding = replace(HOST_SYNC, where=Where(file="my train.py"), excerpt=None)
    (result,) = log_of(render(of(finding), repository=tmp_path))["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "my%20train.py", "uriBaseId": "%SRCROOT%"}}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_of_a_trace_are_text(name: str, tmp_path: Path) -> None:
    report = render(hostile(name), repository=tmp_path)
    log_of(report)
    assert not {"\x1b", "\x00", "‮"} & set(report)


def test_the_documented_problem_matcher_matches_the_warnings(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    pattern = json.loads(next(re.finditer(r'"regexp": (".*"),', page)).group(1))
    (tmp_path / "train.py").touch()
    matches = [re.match(pattern, line) for line in github.render(analysis(), repository=tmp_path).splitlines()]
    (found,) = [match.groups() for match in matches if match]
    assert found == ("warning", "train.py", "88", "host_sync", HOST_SYNC.title.replace("%", "%25"))
