"""Files of rocprofv3 and tritonparse with the columns and fields of their documentation; the values are made."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

_COUNTERS = "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,Kernel_Name,"
_COUNTERS += "Workgroup_Size,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Counter_Name,"
_COUNTERS += "Counter_Value,Start_Timestamp,End_Timestamp"


def counters() -> str:
    """Two dispatches of a kernel with three counters each, and one of another."""
    rows: list[list[Any]] = [_COUNTERS.split(",")]
    for dispatch, name, values in (
        (1, "gemm(float*)", {"VALUBusy": 20.0, "MfmaUtil": 71.5, "MemUnitBusy": 40.25, "OccupancyPercent": 30.0}),
        (2, "gemm(float*)", {"VALUBusy": 20.0, "MfmaUtil": 70.5, "MemUnitBusy": 39.75, "OccupancyPercent": 32.0}),
        (3, "copy.kd", {"MemUnitBusy": 1.5e-1, "SQ_WAVES": 16384}),
    ):
        rows += [[dispatch, dispatch, "Agent 1", 1, 7, 7, 65536, 9, name, 256, 1024, 0, 64, 4, 80, counter, value,
                  1000, 2000] for counter, value in values.items()]  # fmt: skip
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(rows)
    return stream.getvalue()


SOURCE = "@triton.jit\ndef add(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):\n    pass\n"
SASS = '.sectioninfo @"SHI_REGISTERS=255"\n        /*0010*/ STL [R1], R2 ;\n        /*0020*/ LDL.64 R4, [R1] ;\n'


def compilation(name: str = "add", number: int = 0, **metadata: Any) -> dict[str, Any]:
    return {
        "event_type": "compilation", "pid": 7, "stack": [{"filename": "/home/secret/train.py", "line": 3}],
        "payload": {
            "metadata": {"hash": f"{name}{number}", "name": name, "num_warps": 4, "num_stages": 3, "num_ctas": 1,
                         "shared": 98_304, "maxnreg": None, "env": {"TOKEN": "secret"},
                         "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
                         "src_constants": {"(1,)": 1, "(2,)": 1024, "(3,)": True}, **metadata},
            "file_content": {"add.ttir": "module {}", "add.sass": SASS},
            "python_source": {"file_path": "/project/kernels.py", "start_line": 20, "code": SOURCE},
        },
    }  # fmt: skip


def launch(grid: list[int], name: str = "add", number: int = 0) -> dict[str, Any]:
    metadata = {"hash": f"{name}{number}", "name": name, "num_warps": 4, "target": {"arch": 90, "warp_size": 32}}
    return {"event_type": "launch", "name": name, "grid": grid, "compilation_metadata": metadata}


def autotune() -> dict[str, Any]:
    timings = {f"BLOCK: {size}": [time, time, time] for size, time in ((64, 0.3), (128, 0.2), (1024, 0.1))}
    return {"event_type": "autotune", "kernel_name": "add", "best_config": "BLOCK: 1024", "configs_timings": timings}


def log() -> str:
    events = [compilation(), launch([64]), launch([64]), launch([8, 2]), autotune(), compilation("other")]
    return "".join(json.dumps(event) + "\n" for event in events)
