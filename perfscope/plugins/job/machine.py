"""Counters of the system and of the launcher about this process, for its ledger; standard library only."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


class CoreTime:
    """Processor time of a thread, and time in which it could have run and had no core (Linux)."""

    def __init__(self) -> None:
        """Read nothing until ``since``."""
        self._thread: int | None = None
        self._file: int | None = None
        self._read_ns = (0, 0)

    def since(self, thread: int | None) -> tuple[int, int]:
        """(Ran, waited for a core) since the last call for the same thread, ns; zeros where it is not known."""
        if thread is None or sys.platform != "linux":
            return 0, 0
        try:
            if thread != self._thread:
                self.close()
                self._thread = thread
                native = next((known.native_id for known in threading.enumerate() if known.ident == thread), None)
                path = f"/proc/self/task/{native}/schedstat"
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._read_ns = self._read()
            before, self._read_ns = self._read_ns, self._read() if self._file is not None else self._read_ns
            return max(0, self._read_ns[0] - before[0]), max(0, self._read_ns[1] - before[1])
        except (OSError, ValueError, IndexError):
            self.close()
            return 0, 0

    def _read(self) -> tuple[int, int]:
        assert self._file is not None
        ran, waited, *_ = os.pread(self._file, 96, 0).split()
        return int(ran), int(waited)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


class Gpu:
    """Utilisation, power and memory of the process's NVIDIA GPU, as far as its driver's library for Python is there."""

    def __init__(self) -> None:
        """Ask the driver at each reading, until it refuses."""
        self._refused = False

    def read(self) -> dict[str, Any]:
        """``gpu``: [share of time in which a kernel ran, W, bytes that torch's allocator gave out]; else nothing."""
        torch: Any = sys.modules.get("torch")
        if self._refused or torch is None:
            return {}
        try:
            if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
                return {}
            given_out = int(torch.cuda.memory_allocated())
            share, watts = torch.cuda.utilization() / 100, torch.cuda.power_draw() / 1000
        except Exception:
            self._refused = True
            return {}
        return {"gpu": [share, watts, given_out]}


def age_ns() -> int:
    """Time since this process was started, ns; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        booted_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return max(0, booted_ns - began * 1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


def restarts() -> int | None:
    """How often the launcher has restarted this rank."""
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None
