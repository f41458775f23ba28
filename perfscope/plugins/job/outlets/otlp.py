"""A job in OTLP, by the SDK of OpenTelemetry: metrics as in `metrics.py`; spans of processes, phases and events.

Steps have no spans, because a day has a million. The trace of a job has the same identifiers each time, so that it can
be sent again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from perfscope.model.errors import DataError, UsageError
from perfscope.model.untrusted_text import sanitize
from perfscope.model.version import install_command
from perfscope.plugins.job.outlets import Moment
from perfscope.plugins.job.outlets.metrics import Family, families
from perfscope.plugins.job.rank import Attempt

UNITS = {"seconds": "s", "ratio": "1", "bytes": "By", "watts": "W"}
"""Unit in a metric's name -> unit of OpenTelemetry (UCUM), whose names have no unit."""
BATCH = 512
"""Spans per request."""
FAILED = frozenset({"failed save", "failed restore", "stalled", "killed"})


class Part(Struct, frozen=True, kw_only=True):
    """A span; times since 1970."""

    key: tuple[Any, ...]
    """Its identity in the job."""
    parent: tuple[Any, ...] | None
    name: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, str | int | float]
    failed: bool = False


def parts_of(moment: Moment) -> Iterator[Part]:
    """The finished spans of a job: itself once it has ended, its processes, their phases, and its events."""
    account = moment.account
    if not moment.running:
        times = {f"perfscope.time_s.{cause.cause.replace(' ', '_')}": cause.ns / 1e9 for cause in account.causes}
        whole = {"perfscope.goodput": account.goodput, "perfscope.steps": account.steps, **times}
        end = account.begin_unix_ns + account.wall_ns
        yield Part(key=(), parent=None, name="job", begin_ns=account.begin_unix_ns, end_ns=end, attributes=whole)
    last = {attempt.rank: attempt for attempt in account.attempts}
    process_of: dict[int | None, list[Attempt]] = {}
    for attempt in account.attempts:
        process_of.setdefault(attempt.rank, []).append(attempt)
        over = attempt.ended or attempt is not last[attempt.rank] or not moment.running
        yield from _process(attempt, over=over, killed=not attempt.ended and attempt is not last[attempt.rank])
    for event in account.events:
        if event.kind in ("started", "ended"):
            continue
        attempts = [attempt for attempt in process_of.get(event.rank, ()) if attempt.begin_ns <= event.unix_ns]
        yield Part(
            key=(event.kind, event.rank, event.unix_ns),
            parent=_key(attempts[-1]) if attempts else (),
            name=event.kind,
            begin_ns=event.unix_ns,
            end_ns=event.unix_ns + event.ns,
            attributes=_named(event.rank, **{"code.line": event.line, "perfscope.details": event.text}),
            failed=event.kind in FAILED,
        )
    for change in account.changes:
        yield Part(
            key=("step time changed", change.rank, change.unix_ns),
            parent=(),
            name="step time changed",
            begin_ns=change.unix_ns,
            end_ns=change.unix_ns,
            attributes={
                **_named(change.rank, **{"code.line": change.line}),
                "perfscope.step_time_before_s": change.before_ns / 1e9,
                "perfscope.step_time_after_s": change.after_ns / 1e9,
            },
        )


def _process(attempt: Attempt, *, over: bool, killed: bool) -> Iterator[Part]:
    named = _named(attempt.rank, **{"host.name": attempt.host})
    key, stepped = _key(attempt), attempt.stepped_ns
    if over:
        numbers = {
            "process.pid": attempt.pid,
            "perfscope.steps": attempt.steps,
            "perfscope.lost_s": attempt.lost_ns / 1e9,
        }
        yield Part(
            key=key,
            parent=(),
            name="process",
            begin_ns=attempt.begin_ns,
            end_ns=attempt.end_ns,
            attributes={**named, **numbers},
            failed=killed,
        )
    if stepped is not None:
        begin = attempt.begin_ns
        yield Part(key=(*key, "set-up"), parent=key, name="set-up", begin_ns=begin, end_ns=stepped, attributes=named)
    if stepped is not None and over:
        yield Part(
            key=(*key, "training"),
            parent=key,
            name="training",
            begin_ns=stepped,
            end_ns=attempt.end_ns,
            attributes=named,
        )


def _key(attempt: Attempt) -> tuple[Any, ...]:
    return ("process", attempt.rank, attempt.begin_ns, attempt.pid)


def _named(rank: int | None, **texts: str) -> dict[str, str | int | float]:
    named: dict[str, str | int | float] = {key: sanitize(text) for key, text in texts.items() if text}
    return named if rank is None else {"perfscope.rank": rank, **named}


class Otlp:
    """Metrics and spans of a job to two exporters of the SDK."""

    def __init__(self, where: str, metrics: Any, spans: Any) -> None:
        """``where``: for errors. ``metrics``, ``spans``: exporters."""
        self._where, self._metrics, self._spans = where, metrics, spans
        self._sent: set[tuple[Any, ...]] = set()
        self._pipes: tuple[_Metrics, _Spans] | None = None

    def send(self, moment: Moment) -> None:
        """Send the metrics, and the spans that have ended since the last time; ``DataError`` if they are refused."""
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._pipes is None:
            resource = Resource.create({"service.name": moment.job, "service.namespace": "perfscope"})
            self._pipes = _Metrics(resource), _Spans(resource, moment.job)
        metrics, spans = self._pipes
        if self._metrics.export(metrics.collected(families(moment))) is not MetricExportResult.SUCCESS:
            raise DataError(f"--otlp {self._where}: the metrics were refused, or nothing answers")
        fresh = [part for part in parts_of(moment) if part.key not in self._sent]
        for begin in range(0, len(fresh), BATCH):
            batch = fresh[begin : begin + BATCH]
            if self._spans.export(spans.made(batch)) is not SpanExportResult.SUCCESS:
                raise DataError(f"--otlp {self._where}: the spans were refused, or nothing answers")
            self._sent.update(part.key for part in batch)

    def close(self) -> None:
        """Let go of the connections."""
        self._metrics.shutdown()
        self._spans.shutdown()


def connect(url: str) -> Otlp:
    """Exporters over HTTP to ``url``, such as ``http://localhost:4318``; the SDK's variables for headers apply.

    ``UsageError`` without the extra ``otlp`` or for another kind of address.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as missing:
        raise UsageError(f"--otlp: OpenTelemetry is not installed; {install_command('otlp')}") from missing
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--otlp: give the address of a collector, such as http://localhost:4318")
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # refusals are errors of ours
    base = url.rstrip("/")
    return Otlp(
        parts.hostname,
        OTLPMetricExporter(endpoint=f"{base}/v1/metrics"),
        OTLPSpanExporter(endpoint=f"{base}/v1/traces"),
    )


class _Metrics:
    """Families as instruments of the SDK, which are read by it when they are exported."""

    def __init__(self, resource: Any) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        self._reader = InMemoryMetricReader()
        self._meter = MeterProvider([self._reader], resource, shutdown_on_exit=False).get_meter("perfscope")
        self._now: dict[str, Family] = {}
        self._made: set[str] = set()

    def collected(self, held: Iterable[Family]) -> Any:
        """The SDK's data of the families."""
        self._now = {family.name: family for family in held if family.samples}
        for name in self._now.keys() - self._made:
            self._make(self._now[name])
        return self._reader.get_metrics_data()

    def _make(self, family: Family) -> None:
        self._made.add(family.name)
        name = family.name.removesuffix(f"_{family.unit}" if family.unit else "")
        name = name.replace("perfscope_job_", "perfscope.job.")
        make = (
            self._meter.create_observable_counter if family.kind == "counter" else self._meter.create_observable_gauge
        )
        make(name, [self._observed(family.name)], UNITS.get(family.unit, "1"), family.meaning)

    def _observed(self, name: str) -> Callable[[Any], Iterator[Any]]:
        from opentelemetry.metrics import Observation

        def observed(_: Any) -> Iterator[Any]:
            if name in self._now:
                for labels, value in self._now[name].samples:
                    yield Observation(float(value), labels)

        return observed


class _Spans:
    """Parts as spans of the SDK, with identifiers that are made from the job's name and the part's key."""

    def __init__(self, resource: Any, job: str) -> None:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        self._job, self._next = job, 1
        ended: list[Any] = []
        spans = self

        class Ids(IdGenerator):
            def generate_span_id(self) -> int:
                return spans._next

            def generate_trace_id(self) -> int:
                return spans._number("trace", 16)

        class Ended(SpanProcessor):
            def on_end(self, span: Any) -> None:
                ended.append(span)

        provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
        provider.add_span_processor(Ended())
        self._ended, self._tracer = ended, provider.get_tracer("perfscope")

    def made(self, parts: Iterable[Part]) -> list[Any]:
        """The parts as ended spans."""
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            Status,
            StatusCode,
            TraceFlags,
            set_span_in_context,
        )

        self._ended.clear()
        for part in parts:
            self._next = self._number(repr(part.key), 8)
            context = None
            if part.parent is not None:
                above = SpanContext(
                    self._number("trace", 16), self._number(repr(part.parent), 8), False, TraceFlags(TraceFlags.SAMPLED)
                )
                context = set_span_in_context(NonRecordingSpan(above))
            span = self._tracer.start_span(part.name, context, attributes=part.attributes, start_time=part.begin_ns)
            if part.failed:
                span.set_status(Status(StatusCode.ERROR))
            span.end(part.end_ns)
        return list(self._ended)

    def _number(self, text: str, size: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._job}\0{text}".encode()).digest()[:size]) or 1
