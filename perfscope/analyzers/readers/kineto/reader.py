"""Kineto: the Chrome-JSON traces of torch.profiler, plain or gzipped, of every schema age.

```
{"schemaVersion": 1, "deviceProperties": [...], "distributedInfo": {...}, "baseTimeNanoseconds": N,
 "traceEvents": [
   {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": P, "tid": T, "ts": us, "dur": us,
    "args": {"External id": E, "Sequence number": S, "Input Dims": [...]}},
   {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", ..., "args": {"correlation": C}},
   {"ph": "X", "cat": "kernel", ..., "args": {"device": D, "stream": Q, "correlation": C, "External id": E}},
   {"ph": "i", "name": "[memory]", ...}, {"ph": "s"|"f", flows}, {"ph": "M", names} ], "traceName": ...}
```

Read and not kept, because the tables hold the same already: flow arrows (correlation and sequence ids
say it), names of processes and threads (they may hold host names), and what is drawn a second time for
viewers (``gpu_user_annotation``, the profiler's own frame). They count as read; what is not known counts
as unplaced, by reason.

Times are us: relative to ``baseTimeNanoseconds`` since 2024, epoch before. Older files call the
categories ``Operator``, ``Kernel``, ``Runtime``, ``Memcpy`` and the stream ``"stream 7"``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from perfscope.analyzers.readers import cache
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.kineto.document import Head, locate
from perfscope.analyzers.readers.kineto.process_groups import complete_groups
from perfscope.analyzers.readers.kineto.tables import Tables
from perfscope.analyzers.readers.kineto.workers import decode_all
from perfscope.model.errors import DataError
from perfscope.model.trace import Rows, SliceKind, Source, Trace

FORMAT = "kineto"

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_ .]?(\d{1,6})(?:\D|$)", re.IGNORECASE)


def sniff(path: Path, head: bytes) -> bool:
    """True for JSON that holds, or may hold, a ``traceEvents`` array (``head``: first bytes, decompressed)."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"["):
        return b'"ph"' in text
    return text.startswith(b"{") and any(
        key in text for key in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
    )


def read(path: Path, progress: Callable[[float], None] | None = None) -> Trace:
    """The trace in ``path``. ``progress`` is told the share that is decoded, 0 to 1.

    ``DataError``, one line, for a file that is empty, cut off, corrupt or holds no profiler events.
    """
    shown = str(path)
    kept = cache.load(path)
    if kept is not None:
        return kept
    with open_bytes(path) as data:
        if not data[:1]:
            raise DataError(f"{shown}: empty file")
        document = locate(data, shown)
        shards = decode_all(data, document.start, document.end, shown, progress)
        size = len(data)
    events = sum(shard.events for shard in shards)
    unplaced, repairs = _total(shard.unplaced for shard in shards), _total(shard.repairs for shard in shards)
    tables = Tables(shards, document.head)
    tables.rows["collectives"] = complete_groups(tables.rows["collectives"], document.head, tables.strings)
    if not any(len(tables.rows[name]) for name in ("slices", "calls", "kernels", "copies", "memory")):
        seen = ", ".join(f"{count:,} of {what}" for what, count in unplaced.most_common(3))
        raise DataError(f"{shown}: {events:,} events, but none of torch.profiler" + (f" ({seen})" if seen else ""))
    head = document.head
    source = Source(
        path=shown,
        format=FORMAT,
        rank=_rank(head, path),
        events_read=events,
        events_unplaced=sum(unplaced.values()),
        unplaced=dict(unplaced),
        repairs=dict(repairs),
        notes=_notes(tables.rows, repairs),
        world_size=head.distributed.world_size if head.distributed else None,
        backend=head.distributed.backend if head.distributed else None,
    )
    trace = Trace(source=source, strings=tables.strings, rows=tables.rows, recorded=_recorded(tables.rows))
    if size >= cache.SMALLEST:
        cache.save(path, trace)
    return trace


def _total(tallies: object) -> Counter[str]:
    total: Counter[str] = Counter()
    for tally in tallies:  # type: ignore[attr-defined]
        total.update(tally)
    return total


def _rank(head: Head, path: Path) -> int | None:
    if head.distributed is not None and head.distributed.rank is not None:
        return head.distributed.rank
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def _recorded(rows: dict[str, Rows]) -> frozenset[str]:
    slices, kernels, copies = rows["slices"], rows["kernels"], rows["copies"]
    has_work = bool(len(kernels) or len(copies))
    checks = {
        "device_work": has_work,
        "host_ops": bool((slices["kind"] == SliceKind.OP).any()),
        "launch_links": bool((kernels["call"] >= 0).any() or (copies["call"] >= 0).any()),
        "op_links": bool((kernels["op"] >= 0).any() or (copies["op"] >= 0).any()),
        "runtime_calls": len(rows["calls"]) > 0,
        "waiting_calls": len(rows["calls"]) > 0,  # it records all calls: where none waits, none waited
        "python_stack": bool((slices["kind"] == SliceKind.PYTHON).any()),
        "shapes": bool((slices["shapes"] >= 0).any()),
        "autograd": bool((slices["sequence"] >= 0).any()),
        "memory": len(rows["memory"]) > 0,
        "collectives": bool((rows["collectives"]["elements_in"] >= 0).any()),
        "sync_records": len(rows["sync_records"]) > 0,
        "steps": len(rows["steps"]) > 0,
    }
    return frozenset(key for key, present in checks.items() if present)


def _notes(rows: dict[str, Rows], repairs: Counter[str]) -> tuple[str, ...]:
    notes = []
    for table in ("kernels", "copies"):
        work, calls = rows[table], rows["calls"]
        orphans = int((work["call"] < 0).sum())
        if orphans and len(calls):
            notes.append(
                f"{orphans:,} of {len(work):,} {table} have no launch call in the trace (launched before the capture "
                "began, or not recorded); they are kept and counted as device time"
            )
    if repairs:
        mended = ", ".join(f"{count:,} x {what}" for what, count in repairs.items())
        notes.append(f"the file is not valid JSON and was mended while reading: {mended}")
    launches = rows["kernels"]["call"]
    if len(launches) and (rows["kernels"]["call"] >= 0).any():
        graph = np.isin(launches, np.flatnonzero(rows["calls"]["kind"] == 1))
        if graph.any():
            notes.append(f"{int(graph.sum()):,} kernels ran inside graphs and are attributed to their graph launch")
    return tuple(notes)
