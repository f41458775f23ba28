"""Copies between the device and pageable host memory.

Example:
    Before::

        x = torch.from_numpy(array).to("cuda")

    After::

        x = torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True)

Why it costs: the copy engine reads and writes pinned memory only. Pageable memory is copied in pieces through a buffer
of the driver: several times slower, and the call blocks the host even with `non_blocking=True`.

How it is found: copies recorded as pageable, without reads of a single number (`.item()`), which `host_sync` judges.
The cost of a line has two disjoint parts: the time of its copies while no kernel ran (exposed), and the idle time of
the device charged to the copy's call or to the wait in the same op. Copies that overlap kernels and do not make the
device idle cost nothing. The second part is idle time that `host_sync` reports at the same line as well: fixing the
copy saves it once. The rule abstains if copies cost time and their kind of host memory was not recorded (ROCm).

Fix: `DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`; reuse one pinned buffer
(`torch.empty(..., pin_memory=True)`) for what goes to and fro in every step; copy results to the host into
a pinned buffer and read them a step later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.spans import worst_spans
from perfscope.analyzers.time.account import idle_pieces
from perfscope.analyzers.time.calls import NO_OP, Framework, framework, ops_of_calls
from perfscope.analyzers.time.exposure import copies_in_steps
from perfscope.analyzers.time.fixes import situation
from perfscope.analyzers.time.sites import CallSite, call_site, op_of
from perfscope.analyzers.time.steps import timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Removed, Scope, Where
from perfscope.model.intervals import Int64
from perfscope.model.severity import MEDIUM_SHARE
from perfscope.model.trace import MISSING, CopyKind, HostMemory, Trace
from perfscope.model.units import format_bytes, format_ns

COST_SHARE = MEDIUM_SHARE
"""Smallest share of the step for all lines: less is within the variation between launches."""

LINE_SHARE = 0.001
"""Smallest share of the step for a finding about one line."""


ONE_VALUE_READS = ("aten::_local_scalar_dense", "aten::is_nonzero")
"""Reads of one number, which cannot be pinned: `host_sync` covers them."""

_DIRECTIONS = {CopyKind.HOST_TO_DEVICE: "host to device", CopyKind.DEVICE_TO_HOST: "device to host"}

_TO_DEVICE: dict[Framework, str] = {
    "torch": "Pin the source: `DataLoader(..., pin_memory=True)` or `x.pin_memory()` once, then "
    "`x.to(device, non_blocking=True)`.",
    "jax": "Call `jax.device_put` on the next batch while this step runs.",
    "none": "Pin the source ({pin}), then copy with {copy_async} on a separate stream.",
}

_TO_HOST: dict[Framework, str] = {
    "torch": "Copy into one pinned buffer with `buffer.copy_(x, non_blocking=True)` and read it a step later.",
    "jax": "Begin the copy early (`x.copy_to_host_async()`), and read the array a step later.",
    "none": "Copy into one pinned buffer with {copy_async}, and read it when its event is done.",
}


class _Line(Struct, kw_only=True):
    """Pageable copies of one direction, op and place."""

    direction: str
    op: str
    site: CallSite
    copies: list[int] = field(default_factory=list)
    waits: set[int] = field(default_factory=set)
    """Rows of ``calls`` that blocked the host for them."""
    exposed_ns: int = 0
    idle_ns: int = 0

    @property
    def cost_ns(self) -> int:
        return self.exposed_ns + self.idle_ns


def examined(trace: Trace) -> Scope:
    """Count copies between host and device."""
    return Scope(int(np.isin(trace.rows["copies"]["kind"], list(_DIRECTIONS)).sum()), "copies between host and device")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per direction and line whose pageable copies cost time."""
    copies, whole = trace.rows["copies"], whole_ns(trace)
    if not len(copies) and not {"runtime_calls", "launch_links"} & trace.recorded and len(trace.rows["hlo_ops"]):
        raise AbstainError("instructions of compiled programs were recorded, but not which of them copy to the host")
    exposed = trace.fact(copies_in_steps)
    crossing = np.isin(copies["kind"], list(_DIRECTIONS))
    pageable = np.flatnonzero(crossing & (copies["host_memory"] == HostMemory.PAGEABLE))
    unknown = np.flatnonzero(crossing & (copies["host_memory"] == HostMemory.UNKNOWN))
    lines = _of_worst_device(trace, pageable, exposed)
    if sum(line.cost_ns for line in lines) < COST_SHARE * whole or not lines:
        hidden = sum(line.cost_ns for line in _of_worst_device(trace, unknown, exposed))
        if hidden and hidden >= COST_SHARE * whole:
            raise AbstainError(
                f"{len(unknown)} copies between host and device cost up to {format_ns(hidden)}, and the recording "
                "does not say whether their host memory is pinned"
            )
        return []
    costly = sorted((line for line in lines if line.cost_ns), key=lambda line: -line.cost_ns)
    shown = [line for line in costly if line.cost_ns >= LINE_SHARE * whole][:MOST_ROWS] or costly[:1]
    return [_finding(trace, line, exposed, whole) for line in shown]


def _of_worst_device(trace: Trace, rows: Int64, exposed: Int64) -> list[_Line]:
    """Return the lines of the device with the most expensive copies, because devices copy and idle in parallel."""
    of_device = trace.rows["copies"]["device"][rows]
    idle = _idle_by_wait(trace)
    of_devices = [
        _lines(trace, rows[of_device == device], exposed, idle[device]) for device in np.unique(of_device).tolist()
    ]
    return max(of_devices, key=lambda lines: sum(line.cost_ns for line in lines), default=[])


def _lines(trace: Trace, rows: Int64, exposed: Int64, idle_of: dict[int, int]) -> list[_Line]:
    """Return the copies of ``rows``, of one device, by direction, op and place.

    A wait's idle time counts for one copy only.

    ``idle_of``: that time by row of ``calls``, ns; it is consumed.
    """
    copies = trace.rows["copies"]
    calls = copies["call"][rows].astype(np.int64)
    call_ops = ops_of_calls(trace, calls)
    waits_in: dict[int, list[int]] = defaultdict(list)
    waits = np.array(sorted(idle_of), np.int64)
    for wait, op in zip(waits.tolist(), ops_of_calls(trace, waits).tolist(), strict=True):
        if op != MISSING:
            waits_in[op].append(wait)
    lines: dict[tuple[str, str, Where], _Line] = {}
    for row, call, call_op in zip(rows.tolist(), calls.tolist(), call_ops.tolist(), strict=True):
        op_row = int(copies["op"][row])
        op = op_of(trace, op_row) or NO_OP
        if op in ONE_VALUE_READS:
            continue
        site = call_site(trace, op_row)
        direction = _DIRECTIONS[CopyKind(int(copies["kind"][row]))]
        line = lines.setdefault((direction, op, site.where()), _Line(direction=direction, op=op, site=site))
        line.copies.append(row)
        line.exposed_ns += int(exposed[row])
        for wait in (call, *waits_in[call_op]):
            line.waits.add(wait)
            line.idle_ns += idle_of.pop(wait, 0)
    return list(lines.values())


def _idle_by_wait(trace: Trace) -> defaultdict[int, dict[int, int]]:
    """Return, by device and waiting row of ``calls``, the idle time charged to it, ns."""
    pieces = idle_pieces(trace, "sync")
    idle: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for device, wait, cost in zip(pieces.device.tolist(), pieces.wait.tolist(), pieces.cost_ns.tolist(), strict=True):
        idle[device][wait] = idle[device].get(wait, 0) + cost
    return idle


def _finding(trace: Trace, line: _Line, exposed: Int64, whole: int) -> Finding:
    copies = trace.rows["copies"]
    rows = np.array(line.copies, np.int64)
    known = copies["bytes"][rows] != MISSING
    size = int(copies["bytes"][rows][known].sum())
    worst = rows[np.argsort(-(exposed[rows]), kind="stable")][:MOST_ROWS]
    table: list[Mapping[str, Cell]] = [
        {
            "copy": trace.text(int(copies["name"][row])),
            "bytes": int(copies["bytes"][row]) if copies["bytes"][row] != MISSING else None,
            "duration_ns": int(copies["end_ns"][row] - copies["start_ns"][row]),
            "exposed_ns": int(exposed[row]),
            "line_is": line.site.line_is(),
        }
        for row in worst.tolist()
    ]
    to_device = line.direction == "host to device"
    fix = trace.fact(situation).for_device((_TO_DEVICE if to_device else _TO_HOST)[framework(trace)])
    also = f", {format_ns(line.idle_ns)} idle after waiting for them, which host_sync names too" if line.idle_ns else ""
    amount = f": {format_bytes(size)}" if known.any() else ""
    return Finding(
        subject=f"pageable {line.direction}",
        title=f"{len(rows):,} pageable copies {line.direction}{amount}",
        detail=f"{format_ns(line.exposed_ns)} alone on the device{also}.",
        **timed_cost(trace, line.cost_ns, whole),
        covers_ns={"exposed_copy": line.exposed_ns, "sync": line.idle_ns},
        cost_bytes=size if known.any() else None,
        advice=fix,
        where=line.site.where(op=line.op),
        evidence=tuple(table),
        spans=worst_spans(
            copies["start_ns"][rows], copies["end_ns"][rows], (copies["end_ns"] - copies["start_ns"])[rows]
        ),
        removes=(
            Removed(table="copies", rows=rows),
            Removed(table="waits", rows=np.array(sorted(line.waits), np.int64)),
        ),
    )
