"""Content of the findings page, and the effect of the project's configuration there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.dashboards.report import json_report
from perfscope.dashboards.web.server.child import main
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.views import Job, findings, overview
from perfscope.model.errors import UsageError
from perfscope.model.finding import Outcome
from tests.report.analyses import BRANCH, HOST_SYNC, analysis

FIXTURE = Path(__file__).parents[2] / "fixtures" / "cpu-attention-sdpa"


def job(folder: Path) -> Job:
    first = replace(HOST_SYNC, detail="Each of the 40 reads stops the launches behind it for `120 us`.")
    judged = analysis(outcomes=(Outcome(rule="host_sync", status="flagged", findings=(first, BRANCH)),))
    return Job(analysis=judged, traces=(), report=json_report.document(judged), gathered=(), folder=folder)


def test_cards_of_findings(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    view = findings.view(job(tmp_path))
    golden("findings.html", "\n".join(row["html"].replace("><", ">\n<") for row in view["findings"]) + "\n")


def test_the_first_page_has_the_detail(tmp_path: Path) -> None:
    rows = overview.view(job(tmp_path))["first"]
    assert [row["detail"] != "" for row in rows] == [True, False]


def test_the_configuration_of_the_project_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (item,) = Shelf([FIXTURE]).items()
    before = item.fingerprint()
    Path("pyproject.toml").write_text('[tool.perfscope.rules.host_sync]\noff = "reads are wanted here"\n')
    assert item.fingerprint() != before
    folder = tmp_path / "made"
    folder.mkdir()
    assert main(["item", str(FIXTURE), str(folder)]) == 0
    coverage = json.loads((folder / "findings.json").read_text())["view"]["after"]
    assert "reads are wanted here" in coverage


def test_a_device_that_is_not_known_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.perfscope]\ndevice = "no such"\n')
    assert main(["item", str(tmp_path / "t.json"), str(tmp_path)]) == UsageError.exit_code
    assert "no such" in (tmp_path / "state.json").read_text()
