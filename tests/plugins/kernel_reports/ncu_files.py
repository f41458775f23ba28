"""CSV of Nsight Compute with the columns that its documentation lists. No device was there: the values are made."""

from __future__ import annotations

import csv
import io
from typing import Any

SPELLED = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::add<float>, char *>(int, T2, T3)"
)
"""As ncu writes the kernel that a trace has as `IN_TRACE`."""
IN_TRACE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::add<float>, char*>"
    "(int, at::native::add<float>, char*)"
)

_IDENTITY = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
             "Grid Size", "Device", "CC")  # fmt: skip

METRICS = {
    "compute": ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%",
                "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    "memory": ("GPU Speed Of Light Throughput", "Memory Throughput", "%",
               "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
    "rate": ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "dram__bytes.sum.per_second"),
    "dram": ("GPU Speed Of Light Throughput", "DRAM Throughput", "%",
             "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    "duration": ("GPU Speed Of Light Throughput", "Duration", "us", "gpu__time_duration.sum"),
    "registers": ("Launch Statistics", "Registers Per Thread", "register/thread", "launch__registers_per_thread"),
    "static": ("Launch Statistics", "Static Shared Memory Per Block", "Kbyte/block",
               "launch__shared_mem_per_block_static"),
    "dynamic": ("Launch Statistics", "Dynamic Shared Memory Per Block", "byte/block",
                "launch__shared_mem_per_block_dynamic"),
    "by registers": ("Occupancy", "Block Limit Registers", "block", "launch__occupancy_limit_registers"),
    "by warps": ("Occupancy", "Block Limit Warps", "block", "launch__occupancy_limit_warps"),
    "possible": ("Occupancy", "Theoretical Occupancy", "%", "sm__maximum_warps_per_active_cycle_pct"),
    "occupancy": ("Occupancy", "Achieved Occupancy", "%", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    "spills": ("Memory Workload Analysis", "Local Memory Spilling Requests", "", "derived__local_spilling_requests"),
}  # fmt: skip
"""Value -> section, label, unit, and name of the metric."""

Launch = dict[str, Any]


def launch(name: str = SPELLED, *, blocks: int = 80, threads: int = 128, **values: object) -> Launch:
    made = {
        "compute": "12.50", "memory": "41.00", "rate": "1,234.50", "dram": "91.25", "duration": "1,250.00",
        "registers": "168", "static": "1.02", "dynamic": "2048", "by registers": "1", "by warps": "16",
        "possible": "25.00", "occupancy": "21.50", "spills": "0",
    }  # fmt: skip
    return {"name": name, "blocks": blocks, "threads": threads, **made, **values}


def launches() -> list[Launch]:
    return [
        launch(),
        launch(blocks=8, dram="n/a", memory="9.5"),
        launch("plain_kernel", compute="88", dram="20.0", spills="12"),
    ]


def details(made: list[Launch]) -> str:
    """The page ``details``: a row per launch and metric, with lines of ncu and of the program before the table."""
    rows = [
        [*_identity(number, one), section, label, unit, one[key]]
        for number, one in enumerate(made)
        for key, (section, label, unit, _) in METRICS.items()
    ]
    rule = [*_identity(0, made[0]), "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", "a rule,\nof two lines"]
    header = [*_IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
              "Rule Description"]  # fmt: skip
    return "==PROF== Connected to process 7 (/usr/bin/python3)\nloss 0.5\n" + _csv([header, *rows[:3], rule, *rows[3:]])


def raw(made: list[Launch]) -> str:
    """The page ``raw``: a row per launch, units in the first row."""
    header = [*_IDENTITY, *(name for *_, name in METRICS.values())]
    units = [""] * len(_IDENTITY) + [unit for _, _, unit, _ in METRICS.values()]
    return _csv([header, units, *([*_identity(number, one), *(one[key] for key in METRICS)] for number, one in
                                  enumerate(made))])  # fmt: skip


def _identity(number: int, one: Launch) -> list[object]:
    return [number, 4711, "secret-process", "secret-host", one["name"], 1, 7, f"({one['threads']}, 1, 1)",
            f"({one['blocks']}, 1, 1)", 0, "9.0"]  # fmt: skip


def _csv(rows: list[list[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return stream.getvalue()
