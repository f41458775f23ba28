"""Small profiles for the tests of the XSpace reader, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.model.trace import Trace
from tests.readers.wire import SpaceWriter

US = 1_000_000
"""Picoseconds of a microsecond."""


def read(folder: Path, space: SpaceWriter, *, hosts: bool = True) -> Trace:
    path = folder / "host.xplane.pb"
    path.write_bytes(space.bytes(hosts=hosts))
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    trace.check()
    return trace


def texts(trace: Trace, table: str, column: str = "name") -> list[str]:
    return [trace.text(code) for code in trace.rows[table][column].tolist()]


def op(name: str, start: float, end: float, mark: int, **more: Any) -> tuple[Any, ...]:
    stats = {"hlo_op": name, "hlo_module": "jit_f", "program_id": 7, "run_id": -5, "device_ordinal": 0, "_p": mark}
    return name, int(start * US), int(end * US), {**stats, **more}


GPU = {
    "Stream #13(Kernel,MemcpyH2D)": [
        (
            "gemm", 10 * US, 20 * US,
            {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 3, "correlation_id": 1,
             "kernel_details": "regs:64 static_shared:0 dynamic_shared:0 grid:4,2,1 block:32,4,1 occ_pct:37.5"},
        ),
        (
            "MemcpyH2D", 20 * US, 25 * US,
            {"correlation_id": 2, "memcpy_details": "kind_src:Pageable kind_dst:Device size:4096 dest:0 async:1"},
        ),
        ("Memset", 25 * US, 26 * US, {"memset_details": "kind:Device num_bytes:64 async:1"}),
    ],
    "Stream #14(Kernel)": [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15 * US, 40 * US, {"cuda_graph_id": 9, "correlation_id": 3}),
    ],
    "XLA Ops": [("dot.1", 10 * US, 20 * US)],
    "_counters_": [("power_mw", 5 * US, 5 * US, {"power_mw": 300.5})],
}  # fmt: skip
CALLS = {
    "Host Threads/9": [
        ("cuLaunchKernel", 1 * US, 2 * US, {"correlation_id": 1}),
        ("cuMemcpyHtoDAsync_v2", 3 * US, 4 * US, {"correlation_id": 2}),
        ("cuGraphLaunch (CudaGraph:9)", 5 * US, 6 * US, {"correlation_id": 3}),
        ("cuStreamSynchronize", 7 * US, 50 * US, {"correlation_id": 4}),
    ],
    "python": [("work", 0, 60 * US)],
}


SHAPE = "f32[8]{0:T(8)"
TPU_OPS = [
    ("%while.1 = (s32[]) while(%tuple), body=%b", 0, 100 * US),
    ("%fusion.2 = f32[8]{0} fusion(%copy-done.1)", 10 * US, 30 * US),
    (f"%copy-done.1 = {SHAPE}}} copy-done(({SHAPE}}}, {SHAPE}S(5)}}, u32[]{{:S(2)}}) %copy-start.1)", 30 * US, 45 * US),
    ("%all-reduce.3 = f32[8]{0} all-reduce(%fusion.2)", 50 * US, 90 * US),
    ("%add.9 = f32[8]{0} add(%a, %b)", 100 * US, 100 * US + 78),
    ("%mul.9 = f32[8]{0} multiply(%a, %b)", 100 * US + 78, 110 * US),
]
