"""``[tool.perfscope]`` in pyproject.toml, and comments in the code, as ``perfscope analyze`` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perfscope.__main__ import run
from perfscope.analyzers.configuration import NO_CONFIGURATION, find_configuration
from tests.conftest import REPOSITORY


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def test_it_is_found_upward_and_optional(project: Path) -> None:
    assert find_configuration() == NO_CONFIGURATION
    write(project, '[tool.perfscope]\nfail_on = "low"\ntopology = "node.toml"\nignore = ["a/*"]\n')
    write(project / "below", "[tool.other]\nx = 1\n")
    configuration = find_configuration()
    assert (configuration.fail_on, configuration.ignore) == ("low", ("a/*",))
    assert configuration.topology == str(project / "node.toml")


def test_a_file_that_cannot_be_read_is_passed_over(project: Path) -> None:
    write(project, '[tool.perfscope]\nfail-on = "low"\n')
    (project / "below" / "pyproject.toml").mkdir()
    assert find_configuration().fail_on == "low"


def test_it_holds_in_the_processes_that_judge_many_ranks(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = waits().read_text()
    for rank in range(2):
        Path(f"rank{rank}.json").write_text(
            trace.replace('"schemaVersion": 1', f'"distributedInfo": {{"rank": {rank}}}')
        )
    write(project, "[tool.perfscope.rules.host_sync]\nIDLE_SHARE = 1\n[tool.perfscope.rules.exposed_copy]\noff = 'x'\n")
    assert run(["analyze", "--jobs", "2", "--format", "json", "rank0.json", "rank1.json"]) == 0
    judged = {outcome["rule"]: outcome for outcome in json.loads(capsys.readouterr().out)["outcomes"]}
    assert judged["host_sync"]["status"] == "clean"
    assert "configuration: x" in judged["exposed_copy"]["reason"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[tool.perfscope]\nfail_onn = 'low'", "did you mean fail-on?"),
        ("[tool.perfscope]\nfail-on = 'worst'", "must be one of low, medium, high"),
        ("[tool.perfscope]\nignore = 'a'", "must be a list of strings"),
        ("[tool.perfscope]\ndevice = 3", "must be a string"),
        ("[tool.perfscope.rules.host_bond]\noff = 'x'", "did you mean host_bound"),
        ("[tool.perfscope.rules.host_sync]\noff = true", "must be a string: the reason"),
        ("[tool.perfscope.rules.host_sync]\nIDLE_SHAR = 1", "did you mean IDLE_SHARE"),
        ("[tool.perfscope.rules.host_sync]\nIDLE_SHARE = 'x'", "must be a number of at least 0"),
        ("[tool.perfscope.rules]\nhost_sync = 'off'", "is not a table"),
        ("[tool]\nperfscope = 3", "is not a table"),
        ("[tool.perfscope", "invalid TOML"),
    ],
)
def test_a_mistake_is_one_line(project: Path, text: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, text)
    for command in (["analyze", "trace.json"], ["run", "absent.py"]):
        assert run(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"perfscope: {project / 'pyproject.toml'}: ")
        assert hint in err
        assert err.count("\n") == 1


def outcomes(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run(["analyze", "--format", "json", *options, str(waits())]) == 0
    report = json.loads(capsys.readouterr().out)
    Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())).validate(report)
    return {"settings": report["settings"], **{outcome["rule"]: outcome for outcome in report["outcomes"]}}


def waits() -> Path:
    """A trace in which the host waits for each of 40 kernels, at one line, and launches late."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 4000}
    ]
    host: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1}
    for number in range(40):
        start, correlation = 100 * number, {"correlation": number}
        events += [
            host | {"cat": "python_function", "name": "train.py(2): main", "ts": start, "dur": 98, "args": {}},
            host | {"cat": "cpu_op", "name": "aten::add", "ts": start + 1, "dur": 8, "args": {"External id": number}},
            host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 2, "dur": 2, "args": correlation},
            host | {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": start + 10, "dur": 50, "args": {}},
            {"ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "ts": start + 5, "dur": 53,
             "args": {"device": 0, "stream": 7, **correlation}},
        ]  # fmt: skip
    path = Path("trace.json")
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_rule_that_is_off_is_not_evaluated_and_says_why(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcomes(capsys)["host_sync"]["status"] == "flagged"
    write(project, "[tool.perfscope.rules.host-sync]\noff = 'batch 1 by design'\n")
    judged = outcomes(capsys)["host_sync"]
    assert (judged["status"], judged["findings"]) == ("abstained", [])
    assert "batch 1 by design" in judged["reason"]
    assert outcomes(capsys, "--rule", "host_sync")["host_sync"]["status"] == "flagged"


def test_a_threshold_changes_what_is_found_and_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = outcomes(capsys)
    assert before["settings"] == []
    assert before["host_sync"]["status"] == "flagged"
    write(project, "[tool.perfscope.rules.host_sync]\nidle_share = 1\n")
    after = outcomes(capsys)
    assert after["host_sync"]["status"] == "clean"
    assert after["settings"] == ["host_sync.IDLE_SHARE = 1 (pyproject.toml)"]
    (project / "pyproject.toml").unlink()
    assert outcomes(capsys)["host_sync"]["status"] == "flagged", "the threshold is changed for one analysis only"


def test_silenced_findings_do_not_fail_a_build(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "[tool.perfscope]\nfail-on = 'low'\n")
    trace = str(waits())
    assert run(["analyze", trace, "--rule", "host_sync"]) == 1
    assert run(["analyze", trace, "--rule", "host_sync", "--fail-on", "none"]) == 0
    (finding,) = [finding for _, finding in _findings(trace) if finding.where.file]
    assert finding.where.line is not None
    Path("train.py").write_text("\n" * (finding.where.line - 1) + "step()  # perfscope: ignore[host_sync] tiny\n")
    capsys.readouterr()
    for form in ("text", "markdown", "html"):
        assert run(["analyze", trace, "--rule", "host_sync", "--format", form]) == 0
        text = capsys.readouterr().out
        assert "silenced: 1 finding" in text
        assert "tiny" in text
    assert run(["analyze", trace, "--rule", "host_sync", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [finding["silenced"] for finding in report["outcomes"][0]["findings"]] == ["tiny"]


def _findings(trace: str) -> Any:
    import perfscope

    return perfscope.analyze(perfscope.load(trace), rules=["host_sync"]).findings()
