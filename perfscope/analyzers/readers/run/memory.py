"""CUDA memory snapshots of a run, added to the trace of their pass, or of a failed allocation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.readers import jax_memory
from perfscope.analyzers.readers.run.parts import RunPart
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.model.documents.bounded_json import read_document
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, TABLES, Rows, Trace, TraceBuilder
from perfscope.model.trace.tables import MemoryAction, MemoryCategory

SNAPSHOT_PASS = "memory"  # noqa: S105 (a pass of ours)
"""Name of the CUDA allocator's recording during the detail pass; other snapshots are of a failed allocation."""

_ELSEWHERE = ("op", "thread")
"""Columns of events that refer to other tables of the snapshot, which are not taken."""

MOMENTS, SUFFIX = ("before", "after"), ".prof"
"""Names as in `profiler/jax/memory.py`, which imports jax."""

MAX_BYTES = 256 << 20
"""Maximum decompressed bytes. The capture lists 20,000 storages twice, some MB."""

CATEGORY = {
    "parameter": MemoryCategory.PARAMETER,
    "buffer": MemoryCategory.PARAMETER,  # Buffers live as long as the weights, in the same modules.
    "gradient": MemoryCategory.GRADIENT,
    "optimizer_state": MemoryCategory.OPTIMIZER_STATE,
}

Count = Annotated[int, msgspec.Meta(ge=0)]


def attach_snapshot(builder: TraceBuilder, snapshot: Trace) -> None:
    """Add the allocator's held memory to a recording, and replace the profiler's events by the allocator's.

    Both record the same device memory on the same clock. The allocator's own events also have requested sizes, streams,
    Python stacks, and older blocks. Events without times are left out. Host memory is taken from the profiler.
    """
    merged = builder.merge_tables(snapshot, ("frames", "segments", "held", "memory"), blank=_ELSEWHERE)
    events = merged.pop("memory")
    builder.rows |= merged
    builder.record("memory_state")
    if not len(events) or snapshot.source.events_only:
        return
    ours = builder.rows["memory"]
    builder.rows["memory"] = _joined(ours.take(~ours["on_device"]), events, by_time=True)
    builder.record("memory")


def _joined(first: Rows, second: Rows, *, by_time: bool = False) -> Rows:
    """Return the rows of both; ``by_time``: in order of ``time_ns``."""
    joined = Rows(first.table, {name: np.concatenate((first[name], second[name])) for name in first})
    return joined.take(np.argsort(joined["time_ns"], kind="stable")) if by_time else joined


def failed_allocations(path: Path, part: RunPart) -> tuple[list[Trace], DataError | None]:
    """Return snapshots of failed allocations, and the error of the last corrupt one."""
    traces: list[Trace] = []
    damaged = None
    for process in part.processes:
        for capture in process.captures:
            if capture.tool == "torch_memory" and capture.pass_name != SNAPSHOT_PASS and capture.artifact is not None:
                try:
                    traces.append(mark_failed(torch_memory_reader.read(path / capture.artifact)))
                except DataError as error:
                    damaged = error
    return traces, damaged


def mark_failed(snapshot: Trace) -> Trace:
    """Add the event that an allocation failed to a snapshot, because a snapshot without a history lacks it.

    The requested size is unknown then. With several devices, the full one is unknown, and none is marked.
    """
    events, segments = snapshot.rows["memory"], snapshot.rows["segments"]
    ordinals = np.unique(segments["ordinal"][segments["on_device"]])
    if (events["action"] == MemoryAction.OUT_OF_MEMORY).any() or len(ordinals) != 1:
        return snapshot
    last = {
        "time_ns": int(events["time_ns"].max(initial=0)),
        "on_device": True,
        "ordinal": int(ordinals[0]),
        "address": 0,
        "bytes": 0,
        "action": int(MemoryAction.OUT_OF_MEMORY),
    }
    row = Rows(
        TABLES["memory"],
        {column.name: [last.get(column.name, MISSING if column.default is None else column.default)]
         for column in TABLES["memory"].columns if column.name in last or not column.nullable},
    )  # fmt: skip
    return replace(snapshot, rows={**snapshot.rows, "memory": _joined(events, row)})


# Memory of a JAX program before and after its traced steps: ``rank00000/memory/{before,after}.prof``.


class MemoryMoments(Struct, frozen=True, kw_only=True):
    """The profiles as separate traces; ``None`` if missing or corrupt, as in ``notes``."""

    before: Trace | None
    after: Trace | None
    notes: tuple[str, ...] = field(default_factory=tuple)

    def attach(self, builder: TraceBuilder) -> None:
        """Add ``held`` and ``frames`` of the profile after the steps to a recording, and the profile before."""
        builder.attached["held_before"] = self.before
        if self.after is not None:
            builder.rows |= builder.merge_tables(self.after, ("held", "frames"))
            builder.record("memory_state")


def read_moments(folder: Path) -> MemoryMoments:
    """Return the profiles of a process; never raises for corrupt ones."""
    result: dict[str, Trace | None] = {}
    notes = []
    for moment in MOMENTS:
        path = folder / f"{moment}{SUFFIX}"
        result[moment] = None
        if path.is_file():
            try:
                result[moment] = jax_memory.read(path)
            except DataError as error:
                notes.append(f"a device memory profile is corrupt: {error}")
    return MemoryMoments(before=result["before"], after=result["after"], notes=tuple(notes))


# Reader of ``tensors.json.gz``: tensors of a PyTorch program when its recordings began (`perfscope run`).


class _Rest(msgspec.Struct, frozen=True):
    category: str
    device: str
    bytes: Count
    count: Count


class _Listing(msgspec.Struct, frozen=True):
    pass_name: str = msgspec.field(name="pass")
    step: Count
    name: list[Count]
    module: list[Count | None]
    category: list[Count]
    device: list[Count]
    address: list[Count]
    bytes: list[Count]
    freed_ns: list[Count | None]
    rest: list[_Rest]
    unreadable: Count


class _Document(msgspec.Struct, frozen=True):
    strings: list[str]
    listings: list[_Listing]


class TensorListings:
    """Listed tensors, by the pass that began then."""

    def __init__(self, document: _Document) -> None:
        """Check the parts; ``ValueError`` if they do not fit together."""
        self._texts = document.strings
        self._by_pass = {listing.pass_name: listing for listing in document.listings}
        for listing in self._by_pass.values():
            self._check(listing)

    def notes(self) -> list[str]:
        """Notes for a reader of the report."""
        most = max((listing.unreadable for listing in self._by_pass.values()), default=0)
        return [f"{most} tensors of the program have no storage that could be listed"] if most else []

    def attach(self, builder: TraceBuilder, pass_name: str) -> None:
        """Add the tensors from the beginning of ``pass_name`` to its recording, or the first listing."""
        listing = self._by_pass.get(pass_name) or next(iter(self._by_pass.values()), None)
        if listing is None:
            return
        own = listing.pass_name == pass_name
        first = builder.add_strings([*self._texts, *(f"{rest.count:,} smaller ones" for rest in listing.rest)])
        names = [*listing.name, *range(len(self._texts), len(self._texts) + len(listing.rest))]
        devices = [self._texts[code] for code in listing.device] + [rest.device for rest in listing.rest]
        categories = [self._texts[code] for code in listing.category] + [rest.category for rest in listing.rest]
        summed = len(listing.rest)
        builder.table(
            "tensors",
            {
                "name": [first + code for code in names],
                "module": [MISSING if code is None else first + code for code in listing.module] + [MISSING] * summed,
                "category": [CATEGORY.get(category, MemoryCategory.UNKNOWN) for category in categories],
                "on_device": [device.partition(":")[0] != "cpu" for device in devices],
                "ordinal": [_ordinal(device) for device in devices],
                "address": np.array([*listing.address, *([0] * summed)], np.uint64),
                "bytes": np.array([*listing.bytes, *(rest.bytes for rest in listing.rest)], np.int64),
                "count": np.array([*([1] * len(listing.bytes)), *(rest.count for rest in listing.rest)], np.int64),
                # Times of another pass do not apply.
                "freed_ns": [MISSING if when is None or not own else when for when in listing.freed_ns]
                + [MISSING] * summed,
            },
        )
        builder.record("tensors")

    def _check(self, listing: _Listing) -> None:
        columns = (
            listing.name,
            listing.module,
            listing.category,
            listing.device,
            listing.address,
            listing.bytes,
            listing.freed_ns,
        )
        if len({len(column) for column in columns}) > 1:
            raise ValueError("columns of different length")
        codes = [code for column in (listing.name, listing.module, listing.category, listing.device) for code in column]
        if max((code for code in codes if code is not None), default=-1) >= len(self._texts):
            raise ValueError("a missing text")
        sizes = [*listing.bytes, *(rest.bytes for rest in listing.rest), *(when or 0 for when in listing.freed_ns)]
        if sum(sizes[: len(listing.bytes) + len(listing.rest)]) >= 1 << 62 or max(sizes, default=0) >= 1 << 62:
            raise ValueError("an impossible number of bytes")
        if max(listing.address, default=0) >= 1 << 64:
            raise ValueError("an impossible address")


def read_tensors(path: Path) -> TensorListings:
    """Return the listings in a file.

    ``DataError`` (one line) if it is missing, truncated, corrupt or of another format.
    """
    what = "a list of tensors of perfscope"
    document = read_document(path, _Document, "perfscope.tensors/1", what=what, most_bytes=MAX_BYTES)
    try:
        return TensorListings(document)
    except ValueError as error:
        raise DataError(f"{path}: not {what}: {error}") from error


def _ordinal(device: str) -> int:
    number = device.partition(":")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 6 else MISSING
