"""Metrics of a job in a real Prometheus, node_exporter and Grafana's own schema; alert rules by promtool."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perfscope.plugins.job.account import JobAccount, job_account
from perfscope.plugins.job.outlets import Moment, moment_of
from perfscope.plugins.job.outlets.metrics import TYPE, Latest, openmetrics, serve, textfile
from tests.conftest import REPOSITORY
from tests.plugins.job.written import Written, killed_and_resumed

MONITORING = REPOSITORY / "ci" / "monitoring"
BOARD = json.loads((MONITORING / "grafana.json").read_text())
EXPRESSIONS = sorted({target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())})
PATIENCE_S = 60


def needed(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} (Debian: apt install {package})")
    return found


def answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=10) as reply:
        content: bytes = reply.read()
        return content


def until(ask: Callable[[], Any], what: str) -> Any:
    """The first answer that is not empty."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            found = ask()
            if found:
                return found
        time.sleep(0.1)
    pytest.fail(f"no {what} in {PATIENCE_S} s")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A job that goes on, and its endpoint."""
    run = killed_and_resumed(tmp_path_factory.mktemp("job") / 'a "job"')
    growing = Written(run, rank=2, pid=9)
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.2):
            growing.row({"train": 8, "data": 2}, steps=5, tokens=100, resident=1 << 29, loss=0.25, gpu=[0.9, 400.0, 7])

    server = serve(lambda: openmetrics(moment_of([run])), 0)
    threads = [threading.Thread(target=server.serve_forever, daemon=True), threading.Thread(target=grow, daemon=True)]
    for thread in threads:
        thread.start()
    try:
        yield run, f"127.0.0.1:{server.server_address[1]}"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        threads[1].join()


@pytest.fixture(scope="module")
def prometheus(endpoint: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Queries of a Prometheus that scrapes the endpoint, five times a second."""
    yaml = pytest.importorskip("yaml", reason="no PyYAML")
    program = needed("prometheus", "prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    jobs = [{"job_name": "perfscope", "static_configs": [{"targets": [endpoint[1]]}]}]
    scrapes = {"global": {"scrape_interval": "200ms"}, "rule_files": [str(MONITORING / "alerts.yml")]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({**scrapes, "scrape_configs": jobs}))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}/api/v1"

    def query(expression: str) -> Any:
        words = urllib.parse.urlencode({"query": expression})
        return json.loads(answer(f"{base}/query?{words}"))["data"]["result"]

    try:
        until(lambda: query("count_over_time(perfscope_job_steps_total[1m]) > 3"), (folder / "log").read_text())
        yield query
    finally:
        server.terminate()
        server.wait(30)


def test_prometheus_has_the_numbers_of_the_ledger(endpoint: tuple[Path, str], prometheus: Callable[[str], Any]) -> None:
    account = job_account([endpoint[0]])
    found = {row["metric"]["cause"]: float(row["value"][1]) for row in prometheus("perfscope_job_time_seconds")}
    for cause in account.causes:
        if cause.cause in ("lost work", "between attempts", "evaluation", "saving checkpoints"):  # they do not grow
            assert found[cause.cause] == cause.ns / 1e9
    assert found.keys() == {cause.cause for cause in account.causes}
    (steps,) = prometheus("perfscope_job_steps_total")
    assert steps["metric"]["job_name"] == 'a "job"'
    assert 0 < float(steps["value"][1]) <= account.steps
    (killed,) = prometheus('perfscope_job_events_total{kind="killed"}')
    assert float(killed["value"][1]) == 1
    (power,) = prometheus('perfscope_job_gpu_power_watts{rank="1"}')
    assert (float(power["value"][1]), power["metric"]["host"]) == (300, "host")


def test_each_query_of_the_board_has_data(prometheus: Callable[[str], Any]) -> None:
    for expression in EXPRESSIONS:
        until(partial(prometheus, expression.replace("$job", ".*")), f"data for {expression}")


def test_alerts_are_silent_below_and_fire_above_their_thresholds() -> None:
    yaml = pytest.importorskip("yaml", reason="no PyYAML")
    promtool = needed("promtool", "prometheus")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        said = subprocess.run([promtool, *words], cwd=MONITORING, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout + said.stderr
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    tested = (MONITORING / "alerts_test.yml").read_text()
    assert all(f"alertname: {rule['alert']}" in tested for rule in rules)


def test_grafana_reads_each_panel_of_the_board() -> None:
    """By the types that Grafana generates from its schema: no field is lost."""
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="no grafana-foundation-sdk")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")

    def read(board: dict[str, Any]) -> Any:
        return json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(board)))

    assert lost(BOARD, read(BOARD)) == []
    planted = {**BOARD, "panels": [{**BOARD["panels"][0], "grid": {}}]}
    assert lost(planted, read(planted)) == ["/panels/0/grid"]


def lost(written: Any, read: Any, at: str = "") -> list[str]:
    """Places of ``written`` that ``read`` lacks or has in another form."""
    if isinstance(written, dict):
        if not isinstance(read, dict):
            return [at]
        return [place for key, value in written.items() for place in lost(value, read.get(key), f"{at}/{key}")]
    if isinstance(written, list):
        if not isinstance(read, list) or len(read) != len(written):
            return [at]
        pairs = enumerate(zip(written, read, strict=True))
        return [place for number, (old, new) in pairs for place in lost(old, new, f"{at}/{number}")]
    return [] if written == read else [at]


def test_node_exporter_reads_the_file(job: Path, tmp_path: Path) -> None:
    program = needed("prometheus-node-exporter", "prometheus-node-exporter")
    (tmp_path / "text").mkdir()
    account = job_account([job])
    (tmp_path / "text" / "perfscope.prom").write_text(textfile(moment(account)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    exporter = subprocess.Popen(
        [program, "--collector.disable-defaults", "--collector.textfile",
         f"--collector.textfile.directory={tmp_path / 'text'}", f"--web.listen-address=127.0.0.1:{port}"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        text = until(lambda: answer(f"http://127.0.0.1:{port}/metrics").decode(), "answer of node_exporter")
    finally:
        exporter.terminate()
        exporter.wait(30)
    assert "# TYPE perfscope_job_steps_total counter" in text
    assert f'perfscope_job_steps_total{{job_name="a \\"job\\"\\\\\\n"}} {account.steps}\n' in text
    assert "node_textfile_scrape_error 0" in text


def moment(account: JobAccount) -> Moment:
    return Moment(job='a "job"\\\n', run=Path(), account=account, running=False)


def test_metrics_are_openmetrics(job: Path) -> None:
    """Prometheus's own client reads them."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus-client is not installed")
    account = job_account([job])
    families = {family.name: family for family in parser.text_string_to_metric_families(openmetrics(moment(account)))}
    times = families["perfscope_job_time_seconds"].samples
    assert {sample.labels["cause"]: round(sample.value * 1e9) for sample in times} == {
        cause.cause: cause.ns for cause in account.causes
    }
    assert times[0].labels["job_name"] == 'a "job"\\\n'
    assert families["perfscope_job_steps"].samples[0].value == 65
    assert families["perfscope_job_running"].samples[0].value == 0
    assert families["perfscope_job_gpu_power_watts"].samples[0].value == 300
    assert families["perfscope_job_loss"].samples[0].labels["rank"] == "0"
    assert "perfscope_job_tokens" not in families


def test_a_scrape_over_http(endpoint: tuple[Path, str]) -> None:
    with urllib.request.urlopen(f"http://{endpoint[1]}/metrics") as reply:
        assert reply.headers["Content-Type"] == TYPE
        assert b"perfscope_job_goodput_ratio" in reply.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{endpoint[1]}/else")


def test_a_large_job_is_read_between_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.plugins.job.outlets.metrics.QUICK_S", 0.0)
    texts = iter(["one", "two", "three"])
    read, go = threading.Event(), threading.Event()

    def make() -> str:
        text = next(texts)
        if text == "two":
            go.wait(30)
        read.set()
        return text

    latest = Latest(make)
    latest._read()
    read.clear()
    assert latest() == latest() == "one"  # "two" is being read
    go.set()
    assert read.wait(30)
    until(lambda: latest() in ("two", "three"), "newer text")
