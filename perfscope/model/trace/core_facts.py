"""Facts on the cores that a process had."""

from __future__ import annotations

from msgspec import Struct

OVERSUBSCRIBED = 1.5
"""Compute threads per core above which threads disturb each other. One or two more than cores cost little."""


class CoreFacts(Struct, frozen=True, kw_only=True):
    """Cores of one process, as a run read them from the system."""

    unsupported: str | None = None
    """Why waiting for a core was not counted; ``None`` if it was."""
    cores: int = 0
    """Cores that the process may run on; 0: not known."""
    core_limit: float | None = None
    """Cores' worth of processor time that its cgroup may use; ``None``: no limit."""
    compute_threads: int = 0
    """Threads that the framework computes with in this process; 0: not known."""
    local_processes: int = 1
    """Processes that the launcher started on the machine."""
    other_cores: float | None = None
    """Cores that other processes of the machine used, mean of the run; ``None``: unknown."""
    throttled_share: float = 0.0
    """Share of the time that the cgroup was stopped because it had used its processor time."""
