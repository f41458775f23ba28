"""`perfscope job`: its report, JSON and metrics, and the errors of its options."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from perfscope.__main__ import run as command_line
from perfscope.plugins.job.account import job_account
from perfscope.plugins.job.outlets.json_document import JobDocument
from perfscope.plugins.job.rank import Event
from perfscope.plugins.job.report import together
from tests.conftest import REPOSITORY
from tests.plugins.job.written import FIXTURE, S


def test_the_first_screen_has_the_answer(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["job", str(job)]) == 0
    shown = capsys.readouterr().out
    share = job_account([job]).goodput
    assert f"{share:.1%} of 92.0 s of 2 ranks trained what was kept" in shown
    assert "most of the rest: between attempts" in shown
    assert "killed" in shown


def test_json_is_the_account(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["job", str(job), "--json", "-"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=JobDocument)
    assert document.account == job_account([job])


def test_markdown_and_metrics_go_to_files(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markdown, metrics = tmp_path / "job.md", tmp_path / "job.prom"
    assert command_line(["job", str(job), "--markdown", str(markdown), "--metrics", str(metrics)]) == 0
    assert "lost work 5.00 s" in markdown.read_text()
    assert 'perfscope_job_steps_total{job_name="run"} 65\n' in metrics.read_text()


def test_a_run_without_a_ledger_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["job", str(FIXTURE)]) == 4
    assert "no ledger; `perfscope run --ledger` keeps one" in capsys.readouterr().err


def test_every_needs_a_file(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["job", str(job), "--every", "5"]) == 2
    assert "--every writes and sends again: it needs a file or a receiver" in capsys.readouterr().err


def test_the_schema_fits_a_document(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert command_line(["job", str(job), "--json", "-"]) == 0
    schema = json.loads((REPOSITORY / "docs" / "job-schema.json").read_text())
    jsonschema.validate(json.loads(capsys.readouterr().out), schema)


def test_events_of_many_ranks_at_once_are_a_row() -> None:
    events = [
        Event(kind="killed", unix_ns=S + rank * S // 1000, ns=0, rank=rank, line="", text=f"process {rank}")
        for rank in range(1024)
    ]
    save = Event(kind="save", unix_ns=S, ns=S, rank=0, line="train.py:60")
    later = msgspec.structs.replace(save, unix_ns=30 * S)
    again = msgspec.structs.replace(save, unix_ns=31 * S)
    assert [len(row) for row in together([*events, save, later, again])] == [1024, 1, 1, 1]
    other = msgspec.structs.replace(save, rank=7, ns=2 * S)
    assert [len(row) for row in together([save, other])] == [2]
