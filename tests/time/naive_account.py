"""The account of the step written a second time, one cell of time after the other. Shares no code with the fact.

All times of the trace must be multiples of ``CELL`` ns; host spans of a thread may nest and must not cross.
"""

from __future__ import annotations

from collections import Counter

from perfscope.model.trace import CallKind, SliceKind, Trace

CELL = 100_000
STALL = 1_000_000
LAUNCHING = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)


class Naive:
    """A trace as plain lists, and queries for one moment."""

    def __init__(self, trace: Trace, device: int, low: int, high: int) -> None:
        self.low, self.high = low, high
        kernels, copies, slices, calls = (trace.rows[name] for name in ("kernels", "copies", "slices", "calls"))
        self.work = [
            (int(kernels["start_ns"][i]), int(kernels["end_ns"][i]), int(kernels["call"][i]),
             "exposed_communication" if kernels["communication"][i] else "compute", int(kernels["stream"][i]))
            for i in range(len(kernels)) if kernels["device"][i] == device
        ] + [
            (int(copies["start_ns"][i]), int(copies["end_ns"][i]), int(copies["call"][i]), "exposed_copy",
             int(copies["stream"][i]))
            for i in range(len(copies)) if copies["device"][i] == device
        ]  # fmt: skip
        self.work = [item for item in self.work if item[1] > item[0]]
        self.slices = [
            (int(slices["start_ns"][i]), int(slices["end_ns"][i]), int(slices["thread"][i]),
             trace.text(int(slices["name"][i])), int(slices["kind"][i]))
            for i in range(len(slices))
        ]  # fmt: skip
        self.calls = [
            (int(calls["start_ns"][i]), int(calls["end_ns"][i]), int(calls["thread"][i]),
             trace.text(int(calls["name"][i])), int(calls["kind"][i]))
            for i in range(len(calls))
        ]  # fmt: skip
        launches = Counter(call[2] for call in self.calls if call[4] in LAUNCHING)
        self.main = min(launches, key=lambda thread: (-launches[thread], thread)) if launches else None

    def cause(self, time: int) -> str:
        """Cause of the cell that begins at ``time``."""
        running = {kind for start, end, _, kind, _ in self.work if start <= time < end}
        for kind in ("compute", "exposed_communication", "exposed_copy"):
            if kind in running:
                return kind
        begin = max([end for _, end, *_ in self.work if end <= time] + [self.low])
        end = min([start for start, *_ in self.work if start > time] + [self.high])
        begin, end = max(begin, self.low), min(end, self.high)
        starting = [item for item in self.work if item[0] == end]
        if not starting:
            return "unexplained" if self.main is None else self.host(time, self.main, begin, end, begin)
        known = [self.calls[call] for _, _, call, _, _ in starting if call >= 0]
        if not known:
            streams = {stream for *_, stream in starting}
            later = [self.calls[c][0] for s, _, c, _, q in self.work if q in streams and s > end and c >= 0]
            return "dependency" if later and min(later) <= begin else "unexplained"
        launch = min(known)
        if launch[0] <= begin:
            return "dependency"
        if time >= launch[0]:
            return "dependency" if time >= launch[1] and end - launch[1] >= STALL else "launch"
        return self.host(time, launch[2], begin, end, self.synced(begin, launch))

    def synced(self, begin: int, launch: tuple[int, int, int, str, int]) -> int:
        """Up to when idle time that begins at ``begin`` is owed to a wait."""
        launchers = {call[2] for call in self.calls if call[4] in LAUNCHING}
        chosen = None
        for thread in [launch[2], *sorted({call[2] for call in self.calls} - {launch[2]})]:
            waits = sorted(call for call in self.calls if call[2] == thread and "Synchronize" in call[3])
            fitting = [wait for wait in waits if wait[0] <= begin <= wait[1] + 2_000 and wait[1] <= launch[0]]
            if not fitting or chosen is not None:
                continue
            if thread != launch[2]:
                returned = fitting[-1][1]
                idle = not any(s <= returned < e and t == launch[2] for s, e, t, *_ in self.slices)
                if thread not in launchers or not idle:
                    continue
            chosen = fitting[-1]
        return begin if chosen is None else begin + (begin - chosen[0])

    def host(self, time: int, thread: int, begin: int, end: int, synced: int) -> str:
        """Activity of a late host at ``time`` in the idle time from ``begin`` to ``end``."""
        plain = "other_host" if end - begin >= STALL else "launch"
        for number, until in ((thread, synced), (self.main, begin)):
            cause = self.doing(time, number, until)
            if cause is not None:
                return plain if cause == "op" else cause
        return plain

    def doing(self, time: int, thread: int | None, synced: int) -> str | None:
        around = [item for item in self.slices if item[2] == thread and item[0] <= time < item[1]]
        calls = [item for item in self.calls if item[2] == thread and item[0] <= time < item[1]]
        names = [name for *_, name, _ in around]
        if any(name.startswith("enumerate(DataLoader)#") for name in names):
            return "input"
        if any(name.endswith("(dynamo_timed)") for name in names):
            return "compilation"
        if any(name == "<built-in function sleep>" for name in names):
            return "sleeping"
        if any(kind == CallKind.MEMORY for *_, kind in calls):
            return "memory"
        if time < synced or any("Synchronize" in name for *_, name, _ in calls):
            return "sync"
        if any(kind in LAUNCHING for *_, kind in calls):
            return "launch"
        ops = [item for item in around if item[4] == SliceKind.OP]
        if ops:
            outer = min(ops, key=lambda item: (item[0], -item[1]))
            inside = [c for c in self.calls if c[2] == thread and outer[0] <= c[0] and c[1] <= outer[1]]
            launches = any(call[4] in LAUNCHING for call in inside)
            return "launch" if launches and outer[1] - outer[0] < STALL else "op"
        return None


def naive_account(trace: Trace, device: int, windows: list[tuple[int, int]]) -> list[Counter[str]]:
    """Per window: ns by cause of one device (row of ``devices``)."""
    low, high = min(start for start, _ in windows), max(end for _, end in windows)
    naive = Naive(trace, device, low, high)
    return [
        sum((Counter({naive.cause(time): CELL}) for time in range(start, end, CELL)), Counter())
        for start, end in windows
    ]
