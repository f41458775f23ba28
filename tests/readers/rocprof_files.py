"""Output of rocprofv3 with the columns and fields of its documentation. No device was there: the values are made.

Three steps of a program on the second GPU of a machine with two: a copy to the device, two kernels, one of RCCL.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

STEPS = 3
STEP_NS = 1_000_000
GEMM, RCCL = "Cijk_Ailk_Bljk_SB_MT64x64x8(float*, float*)", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage)"
_FIRST = 5_000_000_000


def _csv(header: str, rows: list[list[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows([header.split(","), *rows])
    return stream.getvalue()


def tables() -> dict[str, str]:
    """Content of each table by its domain."""
    kernels: list[list[Any]] = []
    copies: list[list[Any]] = []
    calls: list[list[Any]] = []
    marks: list[list[Any]] = []
    for step in range(STEPS):
        at, number = _FIRST + step * STEP_NS, 10 * step
        marks.append(["MARKER_CORE_RANGE_API", f"step {step}", 238, 238, number, at, at + STEP_NS - 1000])
        marks.append(["MARKER_CORE_RANGE_API", "forward", 238, 238, number + 9, at + 100, at + 500_000])
        calls += [
            ["HIP_RUNTIME_API", "hipMemcpyAsync", 238, 238, number + 1, at + 1000, at + 5000],
            ["HIP_RUNTIME_API", "hipLaunchKernel", 238, 238, number + 2, at + 6000, at + 9000],
            ["HIP_RUNTIME_API", "hipLaunchKernel", 238, 238, number + 3, at + 10_000, at + 12_000],
            ["HIP_RUNTIME_API", "hipStreamSynchronize", 238, 238, number + 4, at + 20_000, at + 900_000],
        ]
        copies.append(["MEMORY_COPY", "MEMORY_COPY_HOST_TO_DEVICE", 1, "Agent 0", "Agent 2", number + 1, at + 4000,
                       at + 50_000])  # fmt: skip
        kernels += [
            ["KERNEL_DISPATCH", "Agent 2", 1, 1, 238, step * 2, 7, GEMM, number + 2, at + 60_000, at + 460_000,
             1024, 0, 64, 0, 32, 256, 1, 1, 16384, 2, 1],
            ["KERNEL_DISPATCH", "Agent 2", 1, 1, 238, step * 2 + 1, 8, RCCL, number + 3, at + 500_000, at + 890_000,
             0, 0, 32, 0, 32, 256, 1, 1, 256, 1, 1],
        ]  # fmt: skip
    marks.append(["MARKER_CORE_API", "epoch end", 238, 238, 99, _FIRST + 1, _FIRST + 1])
    marks.append(["MARKER_CONTROL_API", "roctxProfilerPause", 238, 238, 98, _FIRST + 2, _FIRST + 3])
    times = "Correlation_Id,Start_Timestamp,End_Timestamp"
    return {
        "kernel_trace": _csv(
            f"Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,{times},LDS_Block_Size,"
            "Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,"
            "Grid_Size_X,Grid_Size_Y,Grid_Size_Z", kernels),
        "memory_copy_trace": _csv(f"Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,{times}", copies),
        "hip_api_trace": _csv(f"Domain,Function,Process_Id,Thread_Id,{times}", calls),
        "marker_api_trace": _csv(f"Domain,Function,Process_Id,Thread_Id,{times}", marks),
        "agent_info": _csv("Node_Id,Logical_Node_Id,Agent_Type,Cu_Count,Name,Vendor_Name,Product_Name", [
            [0, 0, "CPU", 48, "EPYC", "CPU", "EPYC"],
            [1, 1, "GPU", 304, "gfx942", "AMD", "AMD Instinct MI300X"],
            [2, 2, "GPU", 304, "gfx942", "AMD", "AMD Instinct MI300X"],
        ]),
    }  # fmt: skip


def write(folder: Path, begin: str = "238", without: tuple[str, ...] = ()) -> Path:
    """Write the tables; the one of the kernels."""
    for domain, content in tables().items():
        if domain not in without:
            (folder / f"{begin}_{domain}.csv").write_text(content)
    return folder / f"{begin}_kernel_trace.csv"


_HIP = ["hipMemcpyAsync", "hipLaunchKernel", "hipStreamSynchronize"]
_COPY = ["NONE", "HOST_TO_HOST", "HOST_TO_DEVICE"]


def document() -> dict[str, Any]:
    """The same events as JSON, with the size of the copies."""
    rows = {domain: list(csv.DictReader(io.StringIO(text))) for domain, text in tables().items()}

    def record(row: dict[str, str], kind: int, operation: int, **more: Any) -> dict[str, Any]:
        return {
            "size": 80, "kind": kind, "operation": operation, "thread_id": 238,
            "correlation_id": {"internal": int(row["Correlation_Id"]), "external": 0},
            "start_timestamp": int(row["Start_Timestamp"]), "end_timestamp": int(row["End_Timestamp"]), **more,
        }  # fmt: skip

    def axes(row: dict[str, str], what: str) -> dict[str, int]:
        return {axis: int(row[f"{what}_Size_{axis.upper()}"]) for axis in "xyz"}

    ranges = [row for row in rows["marker_api_trace"] if "RANGE" in row["Domain"]]
    return {"rocprofiler-sdk-tool": [{
        "metadata": {"pid": 238, "init_time": _FIRST, "fini_time": _FIRST, "command": ["secret-command"],
                     "node": {"hostname": "secret-host"}},
        "agents": [{"size": 1, "id": {"handle": 900 + number}, "type": kind, "name": "gfx942", "cu_count": 304,
                    "product_name": "AMD Instinct MI300X"} for number, kind in enumerate((1, 2, 2))],
        "kernel_symbols": [{"kernel_id": 7, "kernel_name": "x.kd", "formatted_kernel_name": GEMM},
                           {"kernel_id": 8, "kernel_name": f"{RCCL}.kd"}],
        "strings": {
            "buffer_records": [{"kind": "NONE", "operations": []}, {"kind": "HIP_RUNTIME_API", "operations": _HIP},
                               {"kind": "MEMORY_COPY", "operations": _COPY}],
            "marker_api": [{"key": int(row["Correlation_Id"]), "value": row["Function"]} for row in ranges],
        },
        "buffer_records": {
            "kernel_dispatch": [record(row, 9, 0, stream_id={"handle": 1}, dispatch_info={
                "agent_id": {"handle": 902}, "queue_id": {"handle": 1}, "kernel_id": int(row["Kernel_Id"]),
                "workgroup_size": axes(row, "Workgroup"), "grid_size": axes(row, "Grid")})
                for row in rows["kernel_trace"]],
            "memory_copy": [record(row, 2, 2, stream_id={"handle": 1}, src_agent_id={"handle": 900},
                                   dst_agent_id={"handle": 902}, bytes=4096) for row in rows["memory_copy_trace"]],
            "hip_api": [record(row, 1, _HIP.index(row["Function"])) for row in rows["hip_api_trace"]],
            "marker_api": [record(row, 5, 0) for row in ranges],
        },
    }]}  # fmt: skip
