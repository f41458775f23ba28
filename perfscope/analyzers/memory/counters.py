"""Counters of an allocator that a run of ours read before its first pass and behind its last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_IN_USE = ("allocated_bytes.all.current", "bytes_in_use")
"""PyTorch's name (``torch.cuda.memory_stats()``) and XLA's (``device.memory_stats()``), as in all of these."""
_PEAK = ("allocated_bytes.all.peak", "peak_bytes_in_use")
_LIMIT = ("bytes_limit",)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCounters:
    """Of the process' device. Bytes, and numbers of events since the process began."""

    before: Mapping[str, int]
    after: Mapping[str, int]
    steps: int | None
    """Steps between the two readings."""

    @property
    def grown_bytes(self) -> int | None:
        """In use at the end beyond what was in use at the beginning; None where that was not counted."""
        first, last = _first(self.before, _IN_USE), _first(self.after, _IN_USE)
        return None if first is None or last is None else last - first

    @property
    def peak_bytes(self) -> int | None:
        """Most that was ever in use in this process."""
        return _first(self.after or self.before, _PEAK)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Most that the allocator ever held from the driver."""
        return _first(self.after or self.before, ("reserved_bytes.all.peak",))

    @property
    def limit_bytes(self) -> int | None:
        """What the allocator may take, where it says so (XLA)."""
        return _first(self.after or self.before, _LIMIT)

    @property
    def retries(self) -> int:
        """Times the driver had no memory left and the allocator gave its cache back (``num_alloc_retries``)."""
        return (self.after or self.before).get("num_alloc_retries", 0)

    @property
    def retries_in_window(self) -> int | None:
        """Of these, those between the two readings; None where there is one reading."""
        name = "num_alloc_retries"
        return self.after[name] - self.before[name] if name in self.after and name in self.before else None

    @property
    def failures(self) -> int:
        """Allocations that failed for good (``num_ooms``)."""
        return (self.after or self.before).get("num_ooms", 0)


def _first(counters: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    return next((counters[name] for name in names if name in counters), None)
