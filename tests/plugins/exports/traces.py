"""A trace with something of everything that an export draws."""

from __future__ import annotations

import numpy as np

from perfscope.model.finding import Finding, Where
from perfscope.model.trace import CallKind, CopyKind, Trace
from tests.build import TraceBuilder

SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


def everything(*, rank: int | None = 0, path: str = "built.json", base: int = 0) -> Trace:
    """Times in us after ``base``: overlapping kernels, a graph of two kernels, touching and empty spans, a secret."""
    b = TraceBuilder(rank=rank, path=path)
    b.op(
        "aten::mm", base, base + 100, external_id=5, sequence=3, shapes="[[2, 3], [3, 4]]", dtypes='["float", "float"]'
    )
    b.op("inner", base + 10, base + 100, external_id=6)
    b.op("empty", base + 10, base + 10)
    b.op("touching", base + 100, base + 200)
    b.annotation(f"with {SECRET}", base, base + 300, tid=2)
    b.annotation("crossing", base + 250, base + 350, tid=2)
    b.python("train.py(3): loop", base + 340, base + 340, tid=2)
    b.launched("gemm", base + 20, base + 30, base + 60, correlation=11, external_id=5, blocks=264, threads=128)
    b.launched("overlapping", base + 40, base + 50, base + 90, correlation=12, external_id=6)
    b.call("cudaGraphLaunch", base + 120, base + 125, kind=CallKind.GRAPH, correlation=13)
    b.kernel("first", base + 130, base + 140, correlation=13)
    b.kernel("second", base + 140, base + 150, correlation=13)
    b.kernel("ncclDevKernel_AllReduce", base + 150, base + 180, stream=20, communication=True, correlation=99)
    b.call("cudaStreamSynchronize", base + 160, base + 190, kind=CallKind.SYNC, correlation=14)
    b.copy("Memcpy HtoD", base + 200, base + 210, size=4096, correlation=15)
    b.copy("Memset", base + 210, base + 211, kind=CopyKind.MEMSET, size=64)
    b.row("sync_records", start_ns=(base + 160) * 1000, end_ns=(base + 190) * 1000, name=b.code("Stream Sync"),
          device=0, stream=7, call=3, correlation=14)  # fmt: skip
    b.row("collectives", start_ns=(base + 150) * 1000, end_ns=(base + 180) * 1000, name=b.code("all_reduce"), kernel=4,
          group=b.code("0"), description=b.code("default_pg"), group_size=8,
          ranks=b.code("[0, 1]"), elements_in=1 << 40, elements_out=7,
          dtype=b.code("BFloat16"), sequence=3)  # fmt: skip
    b.row("memory", time_ns=(base + 15) * 1000, thread=0, op=1, on_device=True, ordinal=0, address=(1 << 64) - 512,
          bytes=512, allocated_bytes=1024, reserved_bytes=2 << 20, action=0)  # fmt: skip
    b.row("memory", time_ns=(base + 15) * 1000, thread=0, op=1, on_device=True, ordinal=0, address=(1 << 64) - 512,
          bytes=-512, allocated_bytes=512, reserved_bytes=2 << 20, action=1)  # fmt: skip
    b.row("counters", time_ns=base * 1000, name=b.code("GPU 0: power"), value=0.1)
    b.row("counters", time_ns=(base + 1) * 1000, name=b.code("GPU 0: power"), value=-3e300)
    b.row("counters", time_ns=base * 1000, name=b.code("nvlink"), value=12.0)
    b.step(4, base, base + 180)
    b.step(5, base + 180, base + 350)
    return b.build()


def finding(*, rows: int = 2) -> tuple[str, Finding]:
    """A finding with so many rows of evidence."""
    return "host_sync", Finding(
        subject="aten::item",
        title="The host waits 3 ms in aten::item",
        severity="high",
        basis="measured",
        advice="Log every 100 steps:\nif step % 100 == 0: ...",
        cost_ns=3_000_000,
        where=Where(file="train.py", line=88),
        evidence=tuple({"wait_ns": 1000 - row, "line": f"key={SECRET}"} for row in range(rows)),
        ranks=(0, 3),
    )


def crowded(count: int) -> Trace:
    """Kernels of one stream that all overlap without one holding another."""
    b = TraceBuilder()
    for one in range(count):
        b.kernel(f"k{one % 7}", one, one + count + 0.5)
    return b.build()


def random_spans(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends in nesting order: many equal times, empty spans and crossings."""
    random = np.random.default_rng(seed)
    start = random.integers(0, 12, count)
    end = start + random.integers(0, 8, count)
    order = np.lexsort((-end, start))
    return start[order].astype(np.int64), end[order].astype(np.int64)
