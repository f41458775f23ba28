"""Copies run while no kernel does.

Example:
    Before::

        for batch in loader:
            x = batch.to("cuda")
            train_step(x)

    After::

        for batch in loader:                    # DataLoader(..., pin_memory=True)
            x = batch.to("cuda", non_blocking=True)
            train_step(x)

Why it costs: copy engines work independently of the compute units. A copy without a kernel at the same time makes the
step longer by its whole length: weights or activations streamed from the host, results fetched, tensors copied within
the device or to another one.

How it is found: from the account of the step, the time in which a device copied or cleared memory and no kernel ran,
by direction, kind of host memory, op and line. Copies between the device and pageable host memory belong to
`pageable_copy`. The cost is measured and exact; for a necessary copy, only the part that kernels can hide is saved.

Fix: copy earlier, on a separate stream, from pinned memory, while earlier kernels run
(`batch.to(device, non_blocking=True)` in a prefetcher, `torch.cuda.Stream`). Copy less: keep weights on the device,
send them once or in a smaller type, do not move activations to the host (offloading) if recomputing is cheaper.
Within the device write results to their final place (`out=`, views) instead of copying them there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from perfscope.analyzers.spans import rows_by_device, worst_spans
from perfscope.analyzers.time.calls import Framework, framework
from perfscope.analyzers.time.exposure import copies_in_steps
from perfscope.analyzers.time.sites import call_site, op_of
from perfscope.analyzers.time.steps import account_windows, timed_cost
from perfscope.model.finding import MOST_ROWS, Cell, Finding, Removed, Scope, Where
from perfscope.model.intervals import Int64
from perfscope.model.severity import HIGH_SHARE, MEDIUM_SHARE
from perfscope.model.trace import MISSING, CopyKind, HostMemory, Trace
from perfscope.model.units import format_bytes

LEAST_SHARE = HIGH_SHARE
"""Smallest share of the step, for all copies of a device: teams schedule a task for a twentieth."""

LINE_SHARE = MEDIUM_SHARE
"""Smallest share of the step for a finding about the copies of one line."""

MOST_LINES = 5
"""Maximum number of findings per trace."""


_DIRECTIONS = {
    CopyKind.HOST_TO_DEVICE: "host-to-device copies",
    CopyKind.DEVICE_TO_HOST: "device-to-host copies",
    CopyKind.DEVICE_TO_DEVICE: "copies within the device",
    CopyKind.PEER_TO_PEER: "copies to another device",
    CopyKind.HOST_TO_HOST: "host-to-host copies",
    CopyKind.MEMSET: "memory clears",
    CopyKind.UNKNOWN: "copies of unrecorded direction",
}
_EARLIER = "Start them earlier, on a separate stream, while the kernels before run. Copy less, and "
_ADVICE = {
    CopyKind.HOST_TO_DEVICE: "Copy earlier, from pinned memory on a separate stream, while the kernels before run. "
    "Keep on the device what every step uses, and send it once.",
    CopyKind.DEVICE_TO_HOST: "Fetch results later or less often, into pinned memory on a separate stream. Do not "
    "offload tensors that are cheaper to recompute.",
    CopyKind.DEVICE_TO_DEVICE: "Write results where they are needed (`out=`, views, in-place ops) instead of copying "
    "them; `.contiguous()`, `cat` and changes of layout copy.",
    CopyKind.PEER_TO_PEER: f"{_EARLIER}keep on each device what it uses every step.",
    CopyKind.HOST_TO_HOST: f"{_EARLIER}let the device read pinned memory directly.",
    CopyKind.MEMSET: "Clear less: `torch.empty` where everything is written anyway, and "
    "`optimizer.zero_grad(set_to_none=True)`.",
    CopyKind.UNKNOWN: f"{_EARLIER}keep on the device what is used every step.",
}
_JAX_ADVICE = {
    CopyKind.HOST_TO_DEVICE: "Call `jax.device_put` on the next batch while this step runs. Keep on the device what "
    "every step uses, and offload to host memory only arrays that are not cheaper to recompute.",
    CopyKind.DEVICE_TO_HOST: "Fetch results later or less often (`x.copy_to_host_async()`), and offload to host memory "
    "only arrays that are not cheaper to recompute.",
    CopyKind.DEVICE_TO_DEVICE: "Donate arrays that the step replaces (`donate_argnums`), so that XLA writes results in "
    "their place.",
    CopyKind.MEMSET: "XLA clears the targets of scatters and reductions: use fewer or larger ones.",
}
"""Differences for programs that XLA compiled."""

_ADVICE_ALONE = {
    CopyKind.DEVICE_TO_DEVICE: "Write results where they are needed instead of copying them.",
    CopyKind.MEMSET: "Clear only memory that is not overwritten.",
}
"""Differences for programs without a framework."""
_FIXES: dict[Framework, dict[CopyKind, str]] = {
    "torch": _ADVICE,
    "jax": {**_ADVICE, **_JAX_ADVICE},
    "none": {**_ADVICE, **_ADVICE_ALONE},
}

_MEMORIES = {HostMemory.PINNED: "pinned", HostMemory.PAGEABLE: "pageable", HostMemory.UNKNOWN: "not recorded"}


def examined(trace: Trace) -> Scope:
    """Count the copies."""
    return Scope(len(trace.rows["copies"]), "copies in the recording")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per direction and line, for the device with the longest exposed copies."""
    copies, windows = trace.rows["copies"], trace.fact(account_windows)
    exposed = trace.fact(copies_in_steps).copy()
    crossing = np.isin(copies["kind"], [CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST])
    exposed[crossing & (copies["host_memory"] == HostMemory.PAGEABLE)] = 0
    if not exposed.any():
        return
    device = int(np.argmax(np.bincount(copies["device"], weights=exposed)))
    here = trace.fact(rows_by_device)["copies"][device]
    rows = here[exposed[here] > 0]
    if exposed[rows].sum() < LEAST_SHARE * windows.whole_ns:
        return
    lines: dict[tuple[CopyKind, Where], list[int]] = defaultdict(list)
    places = {row: call_site(trace, row).where(op=op_of(trace, row)) for row in np.unique(copies["op"][rows]).tolist()}
    for row in rows.tolist():
        lines[CopyKind(int(copies["kind"][row])), places[int(copies["op"][row])]].append(row)
    ordered = sorted(lines.items(), key=lambda item: -int(exposed[item[1]].sum()))
    least = LINE_SHARE * windows.whole_ns
    for number, ((kind, where), members) in enumerate(ordered[:MOST_LINES]):
        if number == 0 or exposed[members].sum() >= least:
            yield _finding(trace, kind, where, np.array(members, np.int64), exposed, windows.whole_ns)


def _finding(trace: Trace, kind: CopyKind, where: Where, rows: Int64, exposed: Int64, whole: int) -> Finding:
    copies = trace.rows["copies"]
    cost, lengths = int(exposed[rows].sum()), (copies["end_ns"] - copies["start_ns"])[rows]
    known = copies["bytes"][rows] != MISSING
    size = int(copies["bytes"][rows][known].sum())
    seconds = int(lengths[known].sum()) / 1e9
    amount = f"They moved {format_bytes(size)} at {size / 1e9 / seconds:,.1f} GB/s." if size and seconds else ""
    order = np.argsort(-exposed[rows], kind="stable")[:MOST_ROWS]
    return Finding(
        subject=_DIRECTIONS[kind],
        title=f"{len(rows):,} {_DIRECTIONS[kind]} hidden by no kernel",
        detail=amount,
        **timed_cost(trace, cost, whole),
        cost_bytes=size or None,
        covers_ns={"exposed_copy": cost},
        advice=_FIXES[framework(trace)][kind],
        where=where,
        evidence=tuple(_row(trace, int(rows[index]), int(exposed[rows[index]])) for index in order.tolist()),
        spans=worst_spans(copies["start_ns"][rows], copies["end_ns"][rows], exposed[rows]),
        removes=(Removed(table="copies", rows=rows),),
    )


def _row(trace: Trace, row: int, exposed_ns: int) -> dict[str, Cell]:
    copies = trace.rows["copies"]
    length, size = int(copies["end_ns"][row] - copies["start_ns"][row]), int(copies["bytes"][row])
    return {
        "copy": trace.text(int(copies["name"][row])),
        "host_memory": _MEMORIES.get(HostMemory(int(copies["host_memory"][row])), "-"),
        "exposed_ns": exposed_ns,
        "copy_ns": length,
        "bytes": None if size == MISSING else size,
        "gb_per_s": None if size == MISSING or not length else round(size / length, 3),
        "start_ns": int(copies["start_ns"][row]),
    }
