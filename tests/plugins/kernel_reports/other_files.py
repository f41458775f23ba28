"""Files of rocprofv3 and tritonparse with the columns and fields of their documentation; the values are made."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
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


ID = "_0001f3a2_7b"
"""Number at the end of the names of all tables of a recording."""


def rocpd(path: Path, *, kind: str = "TABLE", workgroup: object = 256) -> None:
    """The launches of `counters` as rocprofv3's database has them, with the tables that are read and two others."""
    tables = {
        "info_node": (("hostname",), [("secret-host",)]),
        "info_process": (("command", "environment"), [("train --key secret", '{"TOKEN": "secret"}')]),
        "info_kernel_symbol": (
            ("kernel_name", "display_name", "arch_vgpr_count", "accum_vgpr_count"),
            [("_Z4gemmPf.kd", "gemm(float*)", 64, 4), ("copy.kd", "copy", 64, 4)],
        ),
        "info_pmc": (("name",), [("VALUBusy",), ("MfmaUtil",), ("MemUnitBusy",), ("OccupancyPercent",), ("SQ_WAVES",)]),
        "pmc_event": (
            ("event_id", "pmc_id", "value"),
            [(1, 1, 20.0), (1, 2, 71.5), (1, 3, 40.25), (1, 4, 30.0), (2, 2, 70.5), (3, 3, 0.15), (3, 5, 16384.0)],
        ),
        "kernel_dispatch": (
            ("kernel_id", "event_id", "group_segment_size", "private_segment_size",
             *(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")),
            [(kernel, event, 1024, 0, workgroup, 1, 1, 16384, 4, 1) for kernel, event in ((1, 1), (1, 2), (2, 3))],
        ),
    }  # fmt: skip
    with sqlite3.connect(path) as database:
        for name, (columns, rows) in tables.items():
            held = f"rocpd_{name}{ID}"
            made = held if kind == "TABLE" else f"other_{name}"
            database.execute(f'CREATE TABLE "{made}" (id INTEGER PRIMARY KEY, {", ".join(columns)})')
            marks = ", ".join("?" * len(columns))
            database.executemany(f'INSERT INTO "{made}" ({", ".join(columns)}) VALUES ({marks})', rows)
            if kind != "TABLE":
                database.execute(f'CREATE VIEW "{held}" AS SELECT * FROM "{made}"')


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
