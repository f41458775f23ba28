"""Keeps torch's structured trace: the same lines that ``TORCH_TRACE=DIR`` writes, in a file of the run.

The file is made by the first record of a compilation, so that a program which compiles nothing has none.
Each record is on disk before the program goes on: what a crash leaves is whole but for the last line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from perfscope.profiler import torch_compat

FILE = "torch_trace.log"
PACKED = f"{FILE}.gz"
COMPRESSION = 1
"""gzip level: text shrinks to a sixth, at 100 MB a second, which the program's end waits for."""
MOST_BYTES = 256 << 20
"""A compiled block of a transformer writes 1 MB; a thousand graphs of that size fill it."""
MOST_PENDING = 200
"""Records kept from before the first compilation; there are a handful."""
MARKS = ("frame_id", "compiled_autograd_id", "dynamo_start")
"""Keys of records that belong to a compilation."""


class TraceFile(logging.Handler):
    """A handler of torch's trace logger. ``place()``: the folder for the file, asked for once, when it is due."""

    def __init__(
        self,
        formatter: logging.Formatter,
        place: Callable[[], Path],
        *,
        seen: Callable[[dict[str, Any]], None],
        announce: Callable[[], None],
    ) -> None:
        """``seen(facts)``: called for each record from the first compilation on; ``announce()``: a file is there."""
        super().__init__()
        self.setFormatter(formatter)
        self._place = place
        self._seen = seen
        self._announce = announce
        self._stream: BinaryIO | None = None
        self._pending: list[str] = []
        self._bytes = 0
        self.opened = False
        """Whether a compilation was seen."""
        self.dropped = 0
        """Records that there was no room for."""
        self.problem: str | None = None
        """Why nothing more is written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; it never raises, as the program compiles."""
        if not any(mark in record.metadata for mark in MARKS):  # type: ignore[attr-defined]
            self._keep(record)
            return
        # From here on compiled code may log as it runs, and dynamo would compile a method of ours with it.
        self.emit = torch_compat.uncompiled(self._keep)  # type: ignore[method-assign]
        self._keep(record)

    def close(self) -> None:
        """Let go of the file."""
        self.acquire()
        try:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.close()
        finally:
            self.release()
        super().close()

    def _keep(self, record: logging.LogRecord) -> None:
        if self.problem is not None:
            return
        try:
            facts: dict[str, Any] = record.metadata  # type: ignore[attr-defined]
            if self.opened or any(mark in facts for mark in MARKS):
                self._seen(facts)
                self._write(self.format(record))
            elif len(self._pending) < MOST_PENDING:
                self._pending.append(self.format(record))
            else:
                self.dropped += 1
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _write(self, line: str) -> None:
        if not self.opened:
            self.opened = True
            folder = self._place()
            folder.mkdir(exist_ok=True)
            # Unbuffered: what the program is killed in has its records on disk.
            self._stream = (folder / FILE).open("wb", buffering=0)
            pending, self._pending = self._pending, []
            for earlier in (*pending, self._version_line()):
                self._write(earlier)
            self._announce()
        if self._stream is None:
            return
        content = line.encode(errors="backslashreplace") + b"\n"
        if self._bytes + len(content) > MOST_BYTES:
            self.dropped += 1
            return
        self._bytes += len(content)
        self._stream.write(content)

    def _version_line(self) -> str:
        """The record that torch's own handler begins a file with."""
        payload = json.dumps({"pytorch_version": torch_compat.torch_version()})
        record = logging.LogRecord(torch_compat.TRACE_LOGGER, logging.DEBUG, __file__, 0, "", (), None)
        record.pathname = FILE  # nobody's own path
        record.metadata = {
            "artifact": {"name": "torch_version", "encoding": "json"},
            "has_payload": hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest(),
        }
        record.payload = payload
        return self.format(record)


def pack(folder: Path) -> str:
    """Compress the file in ``folder``; the name of what is there now."""
    draft = folder / f".{PACKED}.part"
    try:
        with (folder / FILE).open("rb") as source, gzip.open(draft, "wb", compresslevel=COMPRESSION) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        draft.replace(folder / PACKED)
        (folder / FILE).unlink()
    except OSError:  # a full disk: the file stays as it is
        draft.unlink(missing_ok=True)
        return FILE
    return PACKED
