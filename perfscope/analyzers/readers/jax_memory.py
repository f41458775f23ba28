"""JAX's device memory profile (``jax.profiler.save_device_memory_profile``): live buffers and their call stacks.

The file is a pprof profile, usually gzipped. A sample is a stack with the number and bytes of its live buffers (or
compiled programs). Bytes are those that the client counts for its buffers, without the allocator's rounding.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.analyzers.hlo import decode, is_library
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, TABLES, Trace, TraceBuilder
from perfscope.model.trace.tables import HeldState, MemoryCategory

FORMAT = "jax_memory"

MAX_BYTES = 64 << 20
"""Maximum bytes of the decompressed profile; a large program with thousands of stacks has 100 kB."""
MAX_FRAMES = 4_000_000
"""Maximum number of frames of all stacks together: 10,000 stacks, 400 deep."""

_HEAD = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04"
"""Two sample types, named by the strings 1 to 4, as XLA writes them. Their names are at the end of the file."""
_TYPES = ("allocations", "count", "space", "bytes")
_ORDINAL = re.compile(r"[:_](\d+)")
_HOST = re.compile(r"(^|[^a-z])cpu", re.IGNORECASE)
_JAX = re.compile(r"(?:^|/)(?:jax|jaxlib)/")
_OURS = re.compile(r"(?:^|/)perfscope/profiler/")
"""Frames of `perfscope run` between the program and jax."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a pprof profile with two sample types as XLA writes them (``head``: first bytes)."""
    return head.startswith(_HEAD)


def read(path: Path) -> Trace:
    """Return a trace with ``held`` and ``frames``: a row per stack, kind and device, with the user's innermost frame.

    ``DataError``, one line, for a file that is truncated, corrupt, too large or not a memory profile of JAX.
    """
    shown = str(path)
    with open_bytes(path, MAX_BYTES) as data:
        profile = decode("pprof.Profile", bytes(data), shown)
    builder = TraceBuilder(shown, FORMAT)
    try:
        _Profile(profile, builder).make_tables()
    except ValueError as error:
        raise DataError(f"{shown}: corrupt, or not a memory profile of JAX: {error}") from error
    builder.events, builder.events_only = len(profile.sample), True
    builder.note("one moment: bytes held by arrays and programs, and the calls that made them; no history")
    builder.record("memory_state")
    return builder.build()


class _Profile:
    """One profile on its way to the tables. ``ValueError`` for an index out of range."""

    def __init__(self, profile: Any, builder: TraceBuilder) -> None:
        self._profile, self._builder = profile, builder
        self._strings = list(profile.string_table)
        types = [self._text(one) for kind in profile.sample_type for one in (kind.type, kind.unit)]
        if tuple(types) != _TYPES:
            raise ValueError(f"its samples count {', '.join(types[::2])[:80] or 'nothing'}")
        self._functions = {one.id: (self._text(one.name), self._text(one.filename)) for one in profile.function}
        self._locations = {one.id: tuple((line.function_id, line.line) for line in one.line) for one in
                           profile.location}  # fmt: skip
        self._rows: dict[tuple[int, int, int], int] = {}
        """Function, line and row of the caller -> row of ``frames``."""
        self._frames: list[tuple[int, int, int, int]] = []
        self._files: list[str] = []
        """File of each row."""

    def make_tables(self) -> None:
        """Make ``held`` and ``frames``."""
        samples = self._profile.sample
        if sum(len(sample.location_id) for sample in samples) > MAX_FRAMES:
            raise ValueError(f"stacks of more than {MAX_FRAMES:,} frames")
        labels = [{self._text(label.key): self._text(label.str) for label in sample.label} for sample in samples]
        devices = {label["device"] for label in labels if label.get("device")}
        only = devices.pop() if len(devices) == 1 else ""
        columns: dict[str, list[Any]] = {key: [] for key in ("on_device", "ordinal", "bytes", "count", "kind",
                                                             "category", "frame")}  # fmt: skip
        for sample, label in zip(samples, labels, strict=True):
            if len(sample.value) != 2 or min(sample.value) < 0:
                raise ValueError("a sample without a number and a size")
            # A compiled program has no device: use the profile's, if there is one.
            device = label.get("device", "") or only
            kind = label.get("kind", "")
            ordinal = _ORDINAL.search(device)
            on_device = bool(device) and _HOST.search(device) is None
            columns["on_device"].append(on_device)
            columns["ordinal"].append(int(ordinal[1][:9]) if on_device and ordinal is not None else MISSING)
            columns["count"].append(sample.value[0])
            columns["bytes"].append(sample.value[1])
            columns["kind"].append(self._builder.code(kind) if kind else MISSING)
            columns["category"].append(MemoryCategory.CODE if kind == "executable" else MemoryCategory.UNKNOWN)
            columns["frame"].append(self._users(self._stack(sample.location_id)))
        size = len(samples)
        self._builder.table(
            "held",
            {
                **{key: np.array(values, TABLES["held"].column(key).dtype) for key, values in columns.items()},
                "address": np.zeros(size, np.uint64),
                "state": np.full(size, HeldState.IN_USE, np.uint8),
            },
        )
        frames = [np.array(values, np.int32) for values in zip(*self._frames, strict=True)] or [
            np.empty(0, np.int32)
        ] * 4
        named = dict(zip(("name", "file", "line", "parent"), frames, strict=True))
        self._builder.table("frames", named)

    def _stack(self, locations: Any) -> list[int]:
        """Return rows of ``frames``, innermost first. Callers come first in the table, and stacks share them."""
        parent = MISSING
        result = []
        for location in reversed(locations):
            lines = self._locations.get(location)
            if lines is None:
                raise ValueError(f"a stack refers to location {location}, which is missing")
            for function, line in reversed(lines):
                if function not in self._functions:
                    raise ValueError(f"location {location} refers to function {function}, which is missing")
                key = (function, line, parent)
                if key not in self._rows:
                    name, file = self._functions[function]
                    number = line if 0 < line < 2**31 else MISSING
                    self._rows[key] = len(self._frames)
                    self._files.append(file)
                    self._frames.append(
                        (self._builder.code(name), self._builder.code(file) if file else MISSING, number, parent)
                    )
                parent = self._rows[key]
                result.append(parent)
        return result[::-1]

    def _users(self, stack: list[int]) -> int:
        """Return the innermost frame of user code, else of a package that is not JAX, else the innermost."""
        files = [self._files[row] for row in stack]
        own = next((row for row, file in zip(stack, files, strict=True) if file and not _skipped(file)), None)
        if own is not None:
            return own
        other = next((row for row, file in zip(stack, files, strict=True) if file and not _JAX.search(file)), None)
        return other if other is not None else stack[0] if stack else MISSING

    def _text(self, index: int) -> str:
        if not 0 <= index < len(self._strings):
            raise ValueError(f"string {index} of {len(self._strings):,}")
        result: str = self._strings[index]
        return result


def _skipped(file: str) -> bool:
    return is_library(file) or _OURS.search(file) is not None
