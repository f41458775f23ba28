"""`perfscope job`: its report, JSON and metrics, and the errors of its options."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from perfscope.__main__ import run as command_line
from perfscope.model.documents.run import RUN_FILE
from perfscope.plugins.job.account import job_account
from perfscope.plugins.job.json_document import JobDocument
from perfscope.plugins.job.metrics import TYPE, openmetrics, serve
from tests.conftest import REPOSITORY
from tests.plugins.job.written import Written

FIXTURE = REPOSITORY / "fixtures" / "cpu-attention-sdpa-item"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A run with two ranks, one of which was killed and resumed."""
    run = tmp_path / "run"
    run.mkdir()
    (run / RUN_FILE).write_bytes((FIXTURE / RUN_FILE).read_bytes())
    first = Written(run, rank=0, pid=1)
    first.row({"train": 30, "data": 10}, steps=30, resident=1 << 30)
    first.row({"save": 1}, checkpoints=[first.checkpoint("save", 1, "aa")])
    first.row({"train": 5}, steps=5)
    second = Written(run, rank=0, pid=2, at=60)
    second.row({"train": 30}, steps=30, checkpoints=[second.checkpoint("restore", 0, "aa")], loss=0.5, tail={})
    Written(run, rank=1, pid=3).row({"train": 88, "eval": 2}, steps=60, gpu=[0.5, 300.0, 1 << 33], tail={})
    return run


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
    assert metrics.read_text().endswith("# EOF\n")


def test_metrics_are_openmetrics(job: Path) -> None:
    """Prometheus's own client reads them."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus-client is not installed")
    account = job_account([job])
    families = {
        family.name: family for family in parser.text_string_to_metric_families(openmetrics(account, 'a "job"\\\n'))
    }
    times = families["perfscope_job_time_seconds"].samples
    assert {sample.labels["cause"]: round(sample.value * 1e9) for sample in times} == {
        cause.cause: cause.ns for cause in account.causes
    }
    assert times[0].labels["job_name"] == 'a "job"\\\n'
    assert families["perfscope_job_steps"].samples[0].value == 65
    assert families["perfscope_job_gpu_power_watts"].samples[0].value == 300
    assert families["perfscope_job_loss"].samples[0].labels["rank"] == "0"
    assert "perfscope_job_tokens" not in families


def test_a_scrape_over_http(job: Path) -> None:
    server = serve(lambda: openmetrics(job_account([job]), "run"), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        base = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            assert answer.headers["Content-Type"] == TYPE
            assert b"perfscope_job_goodput_ratio" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/else")
    finally:
        server.shutdown()
        server.server_close()


def test_a_run_without_a_ledger_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["job", str(FIXTURE)]) == 4
    assert "no ledger; `perfscope run --ledger` keeps one" in capsys.readouterr().err


def test_every_needs_a_file(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["job", str(job), "--every", "5"]) == 2
    assert "--every writes files again" in capsys.readouterr().err


def test_the_schema_fits_a_document(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert command_line(["job", str(job), "--json", "-"]) == 0
    schema = json.loads((REPOSITORY / "docs" / "job-schema.json").read_text())
    jsonschema.validate(json.loads(capsys.readouterr().out), schema)
