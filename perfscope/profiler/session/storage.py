"""Bytes that this process and its workers read and wrote, by the system's counters (Linux: ``/proc/PID/io``).

The system adds the counters of a process that has ended to those of its parent when the parent waits for it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, NamedTuple


class Storage(NamedTuple):
    """Bytes since the process began."""

    read: int
    """By system calls that read, also from pipes and from the page cache."""
    fetched: int
    """From storage, also for memory that is mapped to a file."""
    written: int
    """By system calls that write."""


def own_storage() -> Storage | None:
    """The counters of this process without its workers; ``None`` if the system has none."""
    return _counted("self")


def storage_with_workers() -> Storage | None:
    """The counters of this process and of its living processes of ``multiprocessing``; ``None`` as above."""
    own = _counted("self")
    if own is None:
        return None
    total = list(own)
    module: Any = sys.modules.get("multiprocessing.process")
    for child in list(getattr(module, "_children", ())):
        with suppress(Exception):  # one that has not started, or is gone
            counted = _counted(str(child.pid)) if child.pid else None
            total = [left + right for left, right in zip(total, counted or (0, 0, 0), strict=True)]
    return Storage(*total)


def _counted(process: str) -> Storage | None:
    try:
        file = os.open(f"/proc/{process}/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = dict(line.split(b": ") for line in os.read(file, 1024).splitlines())
        return Storage(*(int(fields[name]) for name in (b"rchar", b"read_bytes", b"wchar")))
    except (OSError, KeyError, ValueError):
        return None
    finally:
        os.close(file)
