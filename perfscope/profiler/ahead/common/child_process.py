"""Starts the child, reads what it says, and ends it when it takes too long or too much memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.model.errors import NotStartedError

CHILD = Path(__file__).with_name("child.py")
"""Started as a file and never imported: what it loads has no business here."""
POLL_INTERVAL_S = 0.25
"""Between two looks at the child's memory."""
MAX_EVENT_BYTES = 64 << 20
"""Bytes of lines from the child; a program that writes into our pipe is not listened to."""
MAX_OUTPUT_BYTES = 64 << 20
"""Bytes that the program may print before the file is restarted: only the end is read."""
TAIL_BYTES = 16_384
MEMORY_SHARE = 0.75
"""Of what is available, where nothing else is said."""
MIN_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """How the child ended."""

    code: int
    """Of the process; negative: the signal that killed it."""
    stopped: str | None
    """Why we ended it: out of time or memory."""
    tail: tuple[str, ...]
    """The last lines that it, its program or XLA printed."""


def default_memory_limit() -> int:
    """Bytes a child may take: three quarters of what is available on this machine."""
    try:
        with Path("/proc/meminfo").open() as lines:
            free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        free = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(round(free * MEMORY_SHARE), MIN_MEMORY)


def run_child(
    request: Path, scratch: Path, hear: Callable[[dict[str, Any]], None], *, until: float, memory_bytes: int
) -> ChildExit:
    """Run a child with the request in that file; ``hear`` gets what it says. ``until``: of the monotonic clock.

    The child has no stdin; what it prints goes to a file in ``scratch``. It and all that it started end with us.
    ``NotStartedError`` if it cannot be started.
    """
    reading, writing = os.pipe()
    printed = scratch / "printed.txt"
    try:
        with printed.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), str(request), str(writing)],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, pass_fds=(writing,), start_new_session=True,
                env=_environment(scratch),
            )  # fmt: skip
    except OSError as error:
        os.close(reading)
        raise NotStartedError(f"{sys.executable}: cannot be started: {error.strerror or error}") from error
    finally:
        os.close(writing)
    try:
        stopped = _read_events(process, reading, printed, hear, until=until, memory_bytes=memory_bytes)
        if stopped is None:
            process.wait()
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ChildExit(code=process.returncode, stopped=stopped, tail=_output_tail(printed))


def _environment(scratch: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment["JAX_PLATFORMS"] = "cpu"
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    environment.setdefault("TPU_SKIP_MDS_QUERY", "1")
    environment["TPU_LOG_DIR"] = str(scratch)
    return environment


def _read_events(
    process: subprocess.Popen[bytes], reading: int, printed: Path, hear: Callable[[dict[str, Any]], None], *,
    until: float, memory_bytes: int,
) -> str | None:  # fmt: skip
    """Hear the child until it ends; why we ended it, if we did."""
    rest, heard, asked = b"", 0, max(until - time.monotonic(), 0.0)
    while True:
        ready, _, _ = select.select([reading], [], [], POLL_INTERVAL_S)
        if ready:
            piece = os.read(reading, 65_536)
            if not piece:
                return None
            heard += len(piece)
            if heard > MAX_EVENT_BYTES:
                return "it says more than a compilation can"
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict) and "event" in said:
                        hear(said)
        elif process.poll() is not None:
            return None  # somebody it started still holds the pipe
        if time.monotonic() > until:
            return f"out of time: {asked:.0f} s are over (--limit)"
        taken = _group_memory(process.pid)
        if taken > memory_bytes:
            return f"out of memory: more than {memory_bytes / (1 << 30):.1f} GiB are taken (--host-memory)"
        if printed.stat().st_size > MAX_OUTPUT_BYTES:
            os.truncate(printed, 0)


def _group_memory(group: int) -> int:
    """Resident bytes of all processes of a group; 0 where the system does not tell."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_bytes().rpartition(b")")[2].split()
            if int(fields[2]) == group:
                total += int(fields[21]) * page
        except (OSError, IndexError, ValueError):
            continue
    return total


def _output_tail(printed: Path) -> tuple[str, ...]:
    with printed.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - TAIL_BYTES, 0))
        text = stream.read().decode("utf-8", "replace")
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())
