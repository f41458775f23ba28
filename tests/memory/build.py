"""Traces with allocator events for the tests of memory: times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryAction, MemoryCategory
from tests.build import TraceBuilder


@dataclass
class MemoryBuilder(TraceBuilder):
    """``make`` and ``free`` write events with the totals that a sound allocator would show."""

    totals: dict[int, int] = field(default_factory=dict)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def starts_with(self, total: int, *, device: int = 0) -> None:
        """The allocator's total before the first event."""
        self.totals[device] = total

    def make(self, address: int, size: int, at: float, *, device: int = 0, **more: Any) -> None:
        self.sizes[device, address] = size
        self._event(address, size, at, device, MemoryAction.ALLOCATE, more)

    def free(self, address: int, at: float, *, device: int = 0, size: int | None = None, **more: Any) -> None:
        held = self.sizes.pop((device, address), 0) if size is None else size
        self._event(address, -held, at, device, MemoryAction.FREE, more)

    def event(self, action: MemoryAction, address: int, size: int, at: float, **more: Any) -> None:
        self._event(address, size, at, 0, action, more, counted=False)

    def _event(
        self, address: int, size: int, at: float, device: int, action: MemoryAction, more: dict[str, Any],
        *, counted: bool = True,
    ) -> None:  # fmt: skip
        if counted:
            self.totals[device] = self.totals.get(device, 0) + size
        values = {
            "time_ns": round(at * 1000), "thread": self.thread(1), "op": MISSING, "on_device": device >= 0,
            "ordinal": device, "address": address, "bytes": size, "allocated_bytes": self.totals.get(device, 0),
            "reserved_bytes": MISSING, "action": int(action), "requested_bytes": MISSING, "category": 0,
            "stream": MISSING, "frame": MISSING,
        }  # fmt: skip
        self.row("memory", **{**values, **more})

    def build(self) -> Trace:
        """As the base does, with each event in the innermost span of its thread that covers it."""
        trace = super().build()
        slices, memory = trace.rows["slices"], trace.rows["memory"]
        op = memory["op"].copy()
        for row in range(len(memory)):
            if op[row] == MISSING:
                around = (slices["start_ns"] <= memory["time_ns"][row]) & (slices["end_ns"] > memory["time_ns"][row])
                around &= slices["thread"] == memory["thread"][row]
                op[row] = np.flatnonzero(around)[-1] if around.any() else MISSING
        return replace(trace, rows={**trace.rows, "memory": memory.with_columns({"op": op})})


def conserved(trace: Trace, timeline: MemoryTimeline) -> None:
    """The curve is the allocator's own total at every event of the memory."""
    memory = trace.rows["memory"]
    chosen = memory["on_device"] == (timeline.space == "device")
    if timeline.ordinal is not None:
        chosen &= memory["ordinal"] == timeline.ordinal
    curve = timeline.live()
    times, totals = memory["time_ns"][chosen], memory["allocated_bytes"][chosen]
    assert len(np.unique(times)) == len(times), "this check is for events at distinct times"
    ours = curve.bytes[np.searchsorted(curve.positions, times, side="right") - 1]
    np.testing.assert_array_equal(ours, totals)


def category_of(timeline: MemoryTimeline, address: int) -> MemoryCategory:
    """Category of the only block at that address."""
    rows = np.flatnonzero(timeline.blocks["address"] == address)
    assert len(rows) == 1
    return MemoryCategory(int(timeline.blocks["category"][rows[0]]))
