"""A job in OTLP, in trackers and as messages: what real packages and receivers get."""

from __future__ import annotations

import gzip
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.__main__ import run as command_line
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.history.store import RunStore
from perfscope.plugins.job.outlets import Moment, moment_of, tell
from perfscope.plugins.job.outlets.webhook import MOST_LINES, Webhook
from perfscope.plugins.job.rank import Event
from tests.plugins.history.conftest import postgres as postgres
from tests.plugins.history.conftest import server as server
from tests.plugins.history.conftest import where as where
from tests.plugins.job.receivers import Receiver, receiver
from tests.plugins.job.written import BEGAN, S


def sent(kept: Receiver, path: str, kind: Any) -> Any:
    (body,) = [body for where, body in kept.posts if where == path]
    message = kind()
    message.ParseFromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    return message


def test_otlp_has_the_numbers_and_the_spans_of_the_job(job: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="no OpenTelemetry SDK")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    account = moment_of([job]).account
    with receiver() as kept:
        assert command_line(["job", str(job), "--otlp", kept.address]) == 0
    (metrics,) = sent(kept, "/v1/metrics", ExportMetricsServiceRequest).resource_metrics
    assert {item.key: item.value.string_value for item in metrics.resource.attributes}["service.name"] == "run"
    held = {metric.name: metric for metric in metrics.scope_metrics[0].metrics}
    times = {
        point.attributes[0].value.string_value: point.as_double
        for point in held["perfscope.job.time"].gauge.data_points
    }
    assert times == {cause.cause: cause.ns / 1e9 for cause in account.causes}
    assert held["perfscope.job.time"].unit == "s"
    assert held["perfscope.job.steps"].sum.is_monotonic
    assert held["perfscope.job.steps"].sum.data_points[0].as_double == account.steps
    (traced,) = sent(kept, "/v1/traces", ExportTraceServiceRequest).resource_spans
    spans = list(traced.scope_spans[0].spans)
    assert len({span.trace_id for span in spans}) == 1
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    above = {span.name: by_id[span.parent_span_id].name for span in spans if span.parent_span_id}
    assert above == {
        "process": "job", "set-up": "process", "training": "process", "save": "process", "restore": "process",
        "killed": "process", "evaluation": "process",
    }  # fmt: skip
    (save,) = [span for span in spans if span.name == "save"]
    assert (save.start_time_unix_nano, save.end_time_unix_nano) == (BEGAN + 41 * S, BEGAN + 42 * S)
    killed = [span for span in spans if span.name == "process" and span.status.code == 2]
    assert [span.end_time_unix_nano - span.start_time_unix_nano for span in killed] == [48 * S]


def test_spans_that_have_ended_are_sent_once(job: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="no OpenTelemetry SDK")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from perfscope.plugins.job.outlets.otlp import Otlp

    class Metrics:
        export = staticmethod(lambda data: MetricExportResult.SUCCESS if data else MetricExportResult.FAILURE)
        shutdown = staticmethod(lambda: None)

    assert InMemoryMetricReader is not None
    spans = InMemorySpanExporter()
    otlp = Otlp("here", Metrics(), spans)
    ended = moment_of([job])
    otlp.send(replace(ended, running=True))
    first = {span.context.span_id for span in spans.get_finished_spans()}
    assert "job" not in {span.name for span in spans.get_finished_spans()}
    otlp.send(ended)
    both = [span.context.span_id for span in spans.get_finished_spans()]
    assert len(both) == len(set(both)) > len(first)


def test_a_collector_that_does_not_answer_is_one_line(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="no OpenTelemetry SDK")
    with receiver() as kept:
        kept.answer = 400
        assert command_line(["job", str(job), "--otlp", kept.address.replace("//", "//user:secret@")]) == 4
    said = capsys.readouterr().err
    assert "--otlp 127.0.0.1: the metrics were refused" in said
    assert "secret" not in said


def test_tensorboard_has_the_job_over_its_steps(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = tmp_path / "board"
    assert command_line(["job", str(job), "-q", "--log-to", f"tensorboard:{place}"]) == 0
    events = EventAccumulator(str(place / "run"))
    events.Reload()
    account = moment_of([job]).account
    (goodput,) = events.Scalars("perfscope/job/goodput_share")
    assert (goodput.step, goodput.value) == (account.steps, pytest.approx(account.goodput))
    assert events.Scalars("perfscope/job/loss")[0].value == 0.5
    assert events.Scalars("perfscope/job/time_s/lost_work")[0].value == 5


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_other_trackers_keep_the_job(tracker: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip(tracker, reason=f"{tracker} is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    place = f"file://{tmp_path / 'store'}" if tracker == "mlflow" else "demo"
    assert command_line(["job", str(job), "-q", "--log-to", f"{tracker}:{place}"]) == 0
    if tracker == "wandb":
        (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        assert kept.stat().st_size > 0
        package.teardown()  # or a later run in this process goes to the same folder
        return
    client = package.MlflowClient(tracking_uri=place)
    (run,) = client.search_runs(["0"])
    (goodput,) = client.get_metric_history(run.info.run_id, "perfscope/job/goodput_share")
    assert (goodput.step, goodput.value) == (65, pytest.approx(moment_of([job]).account.goodput))


def texts(kept: Receiver) -> list[str]:
    return [json.loads(body)["text"] for _, body in kept.posts]


def test_a_single_message_fits_a_screen(job: Path) -> None:
    with receiver() as kept:
        assert command_line(["job", str(job), "-q", "--webhook", f"{kept.address}/services/T0/secret"]) == 0
    (text,) = texts(kept)
    lines = text.splitlines()
    assert lines[0] == "run: the job has ended"
    assert "of 92.0 s of 2 ranks trained what was kept" in lines[1]
    assert len(lines) <= MOST_LINES


def happened(moment: Moment, *events: Event) -> Moment:
    return replace(moment, account=replace(moment.account, events=(*moment.account.events, *events)))


def test_each_event_is_sent_once_and_what_was_there_before_is_not(job: Path) -> None:
    start = replace(moment_of([job]), running=True)
    stalls = [
        Event(kind="stalled", unix_ns=BEGAN + 90 * S, ns=0, rank=rank, line="train.py:44", text="x") for rank in (0, 1)
    ]
    saved = Event(kind="save", unix_ns=BEGAN + 95 * S, ns=S, rank=0, line="train.py:60")
    with receiver() as kept:
        webhook = Webhook(kept.address, follows=True)
        webhook.send(start)
        webhook.send(happened(start, saved))
        assert texts(kept) == []  # it was killed before, and a save is no news
        webhook.send(happened(start, saved, *stalls))
        webhook.send(happened(start, saved, *stalls))
        (stalled,) = texts(kept)
        assert stalled.startswith("run: no step ends on ranks 0, 1 since 11-14 22:14:50 at train.py:44\n")
        kept.answer = 500
        with pytest.raises(DataError, match=r"127\.0\.0\.1: the receiver answered 500"):
            webhook.send(replace(start, running=False))
        kept.answer = 200
        webhook.send(replace(start, running=False))
        webhook.send(replace(start, running=False))
    assert [text.splitlines()[0] for text in texts(kept)[1:]] == ["run: the job has ended"] * 2


def test_a_message_has_no_secrets(job: Path) -> None:
    start = replace(moment_of([job]), running=True)
    line = "token=hf_abcdefghijklmnopqrstuvwxyz0123456789 \x1b[31m"
    with receiver() as kept:
        webhook = Webhook(kept.address, follows=True)
        webhook.send(start)
        webhook.send(happened(start, Event(kind="stalled", unix_ns=BEGAN, ns=0, rank=0, line=line, text="")))
    (text,) = texts(kept)
    assert "hf_abcdef" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("answer", [302, 404])
def test_a_receiver_that_refuses_is_one_line_without_the_address(
    answer: int, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with receiver() as kept:
        kept.answer = answer
        assert command_line(["job", str(job), "-q", "--webhook", f"{kept.address}/services/secret"]) == 4
    said = capsys.readouterr().err
    assert f"--webhook 127.0.0.1: the receiver answered {answer}" in said
    assert "secret" not in said
    assert len(kept.posts) == 1  # no redirect is followed


def test_a_webhook_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "ftp://secret")
    for address in ("env:HOOK", "env:ABSENT_HOOK", "hooks.example.com/secret", "http://[secret"):
        with pytest.raises(UsageError) as error:
            Webhook(address, follows=False)
        assert "secret" not in str(error.value)


def test_the_job_is_followed_to_its_end(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An outlet that fails meanwhile is a line on stderr; the others go on."""
    ended = moment_of([job])
    moments = iter([replace(ended, running=True), replace(ended, running=True), ended])
    got: list[bool] = []

    class Keeps:
        def send(self, moment: Moment) -> None:
            got.append(moment.running)

        def close(self) -> None:
            got.append(False)

    class Fails(Keeps):
        def send(self, moment: Moment) -> None:
            if moment.running:
                raise DataError("the receiver is away")

        def close(self) -> None:
            pass

    tell(lambda: next(moments), [Fails(), Keeps()], every=0.01)
    assert got == [True, True, False, False]
    assert capsys.readouterr().err.count("the receiver is away") == 2


def test_a_job_that_has_not_started_is_waited_for(job: Path, tmp_path: Path) -> None:
    place = tmp_path / "later"

    def start() -> None:
        time.sleep(0.3)
        job.rename(place)

    threading.Thread(target=start).start()
    metrics = tmp_path / "job.prom"
    assert command_line(["job", str(place), "-q", "--metrics", str(metrics), "--every", "1"]) == 0
    assert 'perfscope_job_running{job_name="later"} 0\n' in metrics.read_text()


def test_a_job_in_a_store_is_a_point_of_a_history(
    where: str | Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account = moment_of([job]).account
    for _ in range(2):  # the second one replaces the first
        assert command_line(["job", str(job), "-q", "--store", str(where)]) == 0
    (stored,) = RunStore(where).runs()
    values = {metric.name: metric.value for metric in stored.metrics}
    steps = sum(attempt.steps for attempt in account.attempts)
    assert values["time per step, everything"] == pytest.approx(account.total_ns / steps)
    assert values["time per step, lost work"] == pytest.approx(5 * S / steps)
    assert sum(values.values()) == pytest.approx(2 * account.total_ns / steps)
    assert (stored.kind, stored.finished, stored.ranks) == ("ledger", True, 2)
    capsys.readouterr()
    assert command_line(["history", "--store", str(where)]) == 0
    assert f"1 runs, {len(values)} series" in capsys.readouterr().out
