"""Kineto: the Chrome-JSON traces of torch.profiler, plain or gzipped, of every schema age.

```
{"schemaVersion": 1, "deviceProperties": [...], "distributedInfo": {...}, "baseTimeNanoseconds": N,
 "traceEvents": [
   {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": P, "tid": T, "ts": us, "dur": us,
    "args": {"External id": E, "Sequence number": S, "Input Dims": [...]}},
   {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", ..., "args": {"correlation": C}},
   {"ph": "X", "cat": "kernel", ..., "args": {"device": D, "stream": Q, "correlation": C, "External id": E}},
   {"ph": "X", "cat": "cuda_profiler_range", "name": kernel, "pid": D, ..., "args": {metric: value, ...}},
   {"ph": "i", "name": "[memory]", ...}, {"ph": "s"|"f", flows}, {"ph": "M", names} ], "traceName": ...}
```

Read but not kept: flow arrows (correlation and sequence ids have the same links), names of processes and threads
(they may contain host names), and events drawn a second time for viewers (``gpu_user_annotation``, the frame of the
profiler). They count as read; unknown events count as unplaced, by reason.

Times are us: relative to ``baseTimeNanoseconds`` since 2024, epoch before. Older files call the
categories ``Operator``, ``Kernel``, ``Runtime``, ``Memcpy`` and the stream ``"stream 7"``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from perfscope.analyzers.readers import cache
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.kineto.decode import decode_all
from perfscope.analyzers.readers.kineto.document import locate
from perfscope.analyzers.readers.kineto.process_groups import complete_groups
from perfscope.analyzers.readers.kineto.tables import Tables
from perfscope.model.errors import DataError
from perfscope.model.trace import CallKind, Trace, TraceBuilder

FORMAT = "kineto"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether JSON holds, or may hold, a ``traceEvents`` array (``head``: first bytes, decompressed)."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if b'"highres-ticks"' in text[:512]:
        return False  # XLA's: `xspace/trace_json.py`.
    if text.startswith(b"["):
        return b'"ph"' in text
    return text.startswith(b"{") and any(
        key in text for key in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
    )


def read(path: Path, progress: Callable[[float], None] | None = None) -> Trace:
    """Return the trace in ``path``. ``progress`` is called with the decoded share, 0 to 1.

    ``DataError``, one line, for a file that is empty, truncated, corrupt or holds no profiler events.
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
    builder = TraceBuilder(shown, FORMAT)
    for shard in shards:
        builder.events += shard.events
        builder.unplaced.update(shard.unplaced)
        builder.repairs.update(shard.repairs)
    head = document.head
    rows = Tables(builder, shards, head).rows
    rows["collectives"] = complete_groups(rows["collectives"], head, builder)
    if not any(len(rows[name]) for name in ("slices", "calls", "kernels", "copies", "memory", "kernel_counters")):
        seen = ", ".join(f"{count:,} of {what}" for what, count in builder.unplaced.most_common(3))
        raise DataError(
            f"{shown}: {builder.events:,} events, but none of torch.profiler" + (f" ({seen})" if seen else "")
        )
    if head.distributed is not None:
        builder.rank, builder.rank_source = head.distributed.rank, "distributedInfo"
        builder.world_size, builder.backend = head.distributed.world_size, head.distributed.backend
    builder.record_tables()
    _add_notes(builder)
    trace = builder.build()
    if size >= cache.SMALLEST:
        cache.save(path, trace)
    return trace


def _add_notes(builder: TraceBuilder) -> None:
    rows = builder.rows
    builder.note(
        *builder.orphans(
            " (launched before the capture began, or not recorded); they are kept and counted as device time"
        )
    )
    if builder.repairs:
        mended = ", ".join(f"{count:,} x {what}" for what, count in builder.repairs.items())
        builder.note(f"the file is not valid JSON and was repaired while reading: {mended}")
    launches = rows["kernels"]["call"]
    if (launches >= 0).any():
        graph = np.isin(launches, np.flatnonzero(rows["calls"]["kind"] == CallKind.GRAPH))
        if graph.any():
            builder.note(f"{int(graph.sum()):,} kernels ran inside graphs and are attributed to their graph launch")
