"""The account of a job for Prometheus: an endpoint, or a file for node_exporter's textfile collector.

The endpoint answers in OpenMetrics 1.0: ``# TYPE``, ``# HELP`` and ``# UNIT`` before the samples of a family, label
values with backslash, quote and line feed escaped, ``# EOF`` at the end. node_exporter reads Prometheus's older text
format: there the name of a counter's family ends in ``_total``, and there is neither unit nor end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from perfscope.model.errors import PerfscopeError, UsageError
from perfscope.plugins.job.account import JobAccount
from perfscope.plugins.job.outlets import Moment
from perfscope.plugins.job.steps import RankState

TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

ALWAYS = ("save", "failed save", "failed restore", "stalled", "killed")
"""Kinds of events that are exposed from 0 on: ``increase`` in Prometheus misses the first event of a new series."""

QUICK_S = 3.0
"""A job that takes longer to read is read between scrapes: Prometheus waits ten seconds."""


class Family(NamedTuple):
    """A metric: ``kind`` is ``gauge`` or ``counter``; samples are (labels, value)."""

    name: str
    kind: str
    unit: str
    meaning: str
    samples: tuple[tuple[dict[str, str], float], ...]


def openmetrics(moment: Moment) -> str:
    """The exposition for scrapes."""
    return "\n".join([*_lines(moment, openmetrics=True), "# EOF", ""])


def textfile(moment: Moment) -> str:
    """The content of a file for node_exporter's textfile collector."""
    return "\n".join([*_lines(moment, openmetrics=False), ""])


def _lines(moment: Moment, *, openmetrics: bool) -> Iterator[str]:
    for family in families(moment):
        if not family.samples:
            continue
        sampled = f"{family.name}_total" if family.kind == "counter" else family.name
        named = family.name if openmetrics else sampled
        yield f"# TYPE {named} {family.kind}"
        if openmetrics and family.unit:
            yield f"# UNIT {named} {family.unit}"
        yield f"# HELP {named} {family.meaning}"
        for labels, value in family.samples:
            pairs = (f'{key}="{_escaped(text)}"' for key, text in {"job_name": moment.job, **labels}.items())
            yield f"{sampled}{{{','.join(pairs)}}} {value:.12g}"


def families(moment: Moment) -> Iterator[Family]:
    """All metrics of a job."""
    account = moment.account
    yield Family("perfscope_job_running", "gauge", "", "1 until the job has ended.", (({}, moment.running),))
    yield Family(
        "perfscope_job_time_seconds",
        "gauge",
        "seconds",
        "Time of all ranks by cause so far; a restart moves what was trained in vain to lost work.",
        tuple(({"cause": cause.cause}, cause.ns / 1e9) for cause in account.causes),
    )
    yield Family(
        "perfscope_job_goodput_ratio",
        "gauge",
        "ratio",
        "Share of the time in which the job trained what it kept.",
        (({}, account.goodput),),
    )
    yield Family("perfscope_job_steps", "counter", "", "Completed steps.", (({}, account.steps),))
    if account.tokens:
        yield Family("perfscope_job_tokens", "counter", "", "Trained tokens of all ranks.", (({}, account.tokens),))
    kinds = dict.fromkeys((*ALWAYS, *(event.kind for event in account.events)))
    yield Family(
        "perfscope_job_events",
        "counter",
        "",
        "Saves, restores, stalls, starts and ends of processes.",
        tuple(({"kind": kind}, sum(event.kind == kind for event in account.events)) for kind in kinds),
    )
    yield Family(
        "perfscope_job_step_time_changes", "counter", "", "Changes of the step time.", (({}, len(account.changes)),)
    )
    yield from _by_rank(account)


_RANK_GAUGES: tuple[tuple[str, str, str, Callable[[RankState], float | None]], ...] = (
    ("step_time_seconds", "seconds", "Training time per step.", lambda rank: rank.step_ns and rank.step_ns / 1e9),
    ("tokens_per_second", "", "Tokens that the program reports.", lambda rank: rank.tokens_per_s),
    ("loss", "", "Loss that the program last reported.", lambda rank: rank.loss),
    (
        "resident_memory_bytes",
        "bytes",
        "Resident memory of the process.",
        lambda rank: rank.resident if rank.resident >= 0 else None,
    ),
    ("gpu_utilization_ratio", "ratio", "Time in which a kernel ran.", lambda rank: rank.gpu and rank.gpu[0]),
    ("gpu_power_watts", "watts", "Power of the GPU.", lambda rank: rank.gpu and rank.gpu[1]),
    ("gpu_memory_bytes", "bytes", "Bytes given out by the allocator.", lambda rank: rank.gpu and rank.gpu[2]),
)
"""Name without its beginning, unit, meaning, value of a rank at its last rows."""


def _by_rank(account: JobAccount) -> Iterator[Family]:
    for name, unit, meaning, value in _RANK_GAUGES:
        samples = []
        for rank in account.ranks:
            number = value(rank)
            if number is not None:
                samples.append(({"rank": _name(rank.rank), "host": rank.host}, float(number)))
        yield Family(f"perfscope_job_{name}", "gauge", unit, meaning, tuple(samples))


def _name(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Latest:
    """The exposition for scrapes: read at each, or the last one at once while a large job is read again."""

    def __init__(self, make: Callable[[], str]) -> None:
        """``make`` reads the job."""
        self._make = make
        self._text = ""
        self._took_s = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self) -> str:
        """The text; errors of the first reading are raised."""
        with self._lock:
            if self._took_s < QUICK_S:
                self._read()
            elif self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._read_later, daemon=True)
                self._thread.start()
            return self._text

    def _read(self) -> None:
        began = time.monotonic()
        self._text = self._make()
        self._took_s = time.monotonic() - began

    def _read_later(self) -> None:
        with suppress(PerfscopeError):  # the last text stays
            self._read()


def serve(make: Callable[[], str], port: int) -> ThreadingHTTPServer:
    """A server on loopback that answers ``GET /metrics`` with ``make()``; ``serve_forever`` starts it.

    ``UsageError`` if the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            try:
                content = make().encode()
            except PerfscopeError as error:
                self.send_error(503, str(error).splitlines()[0][:100])
                return
            self.send_response(200)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: scrapes come every few seconds."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"--serve {port}: {(error.strerror or 'cannot listen').lower()}") from error
