"""The record of one run in a store: JSON in the store and in an export.

No host name, user name, environment or absolute path is in it. Keys are only added within a schema version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from perfscope.model.errors import DataError
from perfscope.model.finding import FindingSummary

RECORD_SCHEMA = "perfscope.stored-run/1"

MOST_BYTES = 8 << 20
"""Largest record: a job of a thousand ranks with every finding needs less than a tenth of it."""

MOST_VALUE = 1e30
"""Largest metric: more than any FLOPs, bytes or ns, and small enough that quotients of two remain finite."""

KEY_LENGTH = 16
"""Hexadecimal digits of a machine's key: there are a few machines, and it is read by people."""


class StoredMetric(Struct, frozen=True, kw_only=True):
    """One number under the name and unit that ``compare`` gives it."""

    name: str
    unit: str
    """``ns``, ``bytes``, ``FLOP``, ``count`` or ``text``."""
    known: str
    """``exact``, or ``single captures`` for times."""
    value: float | None = None
    text: str | None = None
    """Text of a fingerprint, in place of the value."""
    neutral: bool = False
    """More of it is neither better nor worse."""


class StoredSteps(Struct, frozen=True, kw_only=True):
    """The steps of one rank that ran without a profiler, in ns. All of one launch: they share its luck."""

    rank: int
    count: int
    mean_ns: float | None = None
    p10_ns: float | None = None
    median_ns: float | None = None
    p90_ns: float | None = None
    window_ns: float | None = None
    """A step of a window that waits for the devices at both ends; ``None``: not measured."""


class StoredFinding(FindingSummary, frozen=True, kw_only=True):
    """A finding by rule, subject and place, with its cost. The place is flat, unlike that of `FindingHead`."""

    rule: str
    op: str | None = None
    kernel: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None


class NotMeasured(Struct, frozen=True, kw_only=True):
    """A metric that was not recorded, and why."""

    name: str
    reason: str


class StoredRun(Struct, frozen=True, kw_only=True):
    """Data of a run that remain without its files."""

    uid: str
    """Hash of the content: the same run has one uid in every store, another run with the same id has another."""
    id: str
    """Name of its folder or file."""
    name: str
    kind: str
    """Kind of recording, as in ``compare``; ``no recording`` without one."""
    created_utc: str
    """ISO 8601."""
    schema: str = RECORD_SCHEMA
    branch: str | None = None
    commit: str | None = None
    dirty: bool = False
    """The checkout had changes that were not committed."""
    command: tuple[str, ...] = ()
    state: str = "finished"
    exit_code: int | None = None
    ranks: int = 1
    hardware: Mapping[str, str] = field(default_factory=dict)
    """``gpu``, ``cpu``, ``arch``: what times cannot be compared across."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions of Python, the frameworks and the driver."""
    perfscope: str = ""
    """Version that counted the metrics."""
    metrics: tuple[StoredMetric, ...] = ()
    steps: tuple[StoredSteps, ...] = ()
    findings: tuple[StoredFinding, ...] = ()
    not_looked: tuple[NotMeasured, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """A key of the hardware: runs of other keys are other series."""
        text = json.dumps(sorted(self.hardware.items())).encode()
        return hashlib.sha256(text).hexdigest()[:KEY_LENGTH]

    @property
    def finished(self) -> bool:
        """Whether its program ended by itself and well: only such runs are points of a history."""
        return self.state == "finished" and self.exit_code in (None, 0)


class Baseline(Struct, frozen=True, kw_only=True):
    """A run under a name. ``digest``: of its packed files, ``None`` if only its numbers are kept."""

    name: str
    run: StoredRun
    set_utc: str
    digest: str | None
    bytes: int
    """Size of the pack."""


def encode(record: StoredRun) -> str:
    """The record as JSON on one line; the same record gives the same text."""
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":"), allow_nan=False)


def decode(text: str | bytes, origin: str) -> StoredRun:
    """Parse a record; a ``DataError`` begins with ``origin`` if it is invalid or too large."""
    from perfscope.model.documents.bounded_json import decode_document

    record = decode_document(text, origin, StoredRun, RECORD_SCHEMA, what="a stored run", most_bytes=MOST_BYTES)
    names = [metric.name for metric in record.metrics]
    if len(set(names)) < len(names):
        raise DataError(f"{origin}: a metric is in it twice")
    if any(metric.value and not 1 / MOST_VALUE < abs(metric.value) < MOST_VALUE for metric in record.metrics):
        raise DataError(f"{origin}: a metric is outside the range of measurable numbers")
    return record
