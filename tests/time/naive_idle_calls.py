"""Calls at the ends of idle time, found a second time, one interval at a time. Shares no code with the fact."""

from __future__ import annotations

from collections import Counter

from perfscope.analyzers.time.calls import blocking_calls
from perfscope.model.trace import CallKind, Trace

SLACK = 2_000


def naive_totals(trace: Trace, device: int, low: int, high: int) -> Counter[str]:
    """ns by reason of one device: unknown, dependency, host_sync, and launch (all the rest).

    Of idle time between work that begins after ``low`` and ends by ``high``.
    """
    calls, slices = trace.rows["calls"], trace.rows["slices"]
    work = sorted(
        (int(rows["start_ns"][i]), int(rows["end_ns"][i]), int(rows["stream"][i]), int(rows["call"][i]))
        for rows in (trace.rows["kernels"], trace.rows["copies"])
        for i in range(len(rows))
        if rows["device"][i] == device and rows["end_ns"][i] > rows["start_ns"][i]
    )
    waits = [
        (int(calls["start_ns"][i]), int(calls["end_ns"][i]), int(calls["thread"][i])) for i in blocking_calls(trace)
    ]
    launching = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY)
    launchers = {int(calls["thread"][i]) for i in range(len(calls)) if calls["kind"][i] in launching}
    spans = [
        (int(slices["start_ns"][i]), int(slices["end_ns"][i]), int(slices["thread"][i])) for i in range(len(slices))
    ]

    def why(begin: int, end: int) -> str:
        starting = [item for item in work if item[0] == end]
        known = [int(calls["start_ns"][call]) for *_, call in starting if call >= 0]
        if not known:
            streams = {stream for _, _, stream, _ in starting}
            behind = [int(calls["start_ns"][c]) for s, _, q, c in work if q in streams and s > end and c >= 0]
            return "dependency" if behind and min(behind) <= begin else "unknown"
        launch = min(known)
        if launch <= begin:
            return "dependency"
        threads = {int(calls["thread"][c]) for *_, c in starting if c >= 0 and calls["start_ns"][c] == launch}
        last: dict[int, int] = {}  # thread -> end of the last of its waits that drained the device
        for start, stop, thread in waits:
            if start <= begin and begin - SLACK <= stop <= launch:
                last[thread] = max(stop, last.get(thread, stop))
        for thread, stop in last.items():
            for mine in threads:
                idle = not any(s <= stop < e and t == mine for s, e, t in spans)
                if thread == mine or (thread in launchers and idle):
                    return "host_sync"
        return "launch"

    totals: Counter[str] = Counter()
    reach = work[0][1] if work else 0
    for start, end, _, _ in work[1:]:
        if start > reach > low and start <= high:
            totals[why(reach, start)] += start - reach
        reach = max(reach, end)
    return totals
