"""Reports on single kernels, joined with the kernels of a trace: Nsight Compute, counters of rocprofv3, tritonparse."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.kernel_reports"

PLUGIN = Plugin(
    name="kernel_reports",
    readers={
        "ncu": f"{_HERE}.ncu",
        "rocpd": f"{_HERE}.rocpd",
        "rocprofv3_counters": f"{_HERE}.rocprof_counters",
        "tritonparse": f"{_HERE}.tritonparse",
    },
    format_words={
        "ncu": "CSV of Nsight Compute (`ncu --csv`)",
        "rocpd": "SQLite output of rocprofv3 (rocpd)",
        "rocprofv3_counters": "counters of rocprofv3 (CSV)",
        "tritonparse": "logs of tritonparse",
    },
    results={"kernel_reports": f"{_HERE}.summary:kernel_summary"},
    tables={"kernel_reports": f"{_HERE}.table:KERNEL_REPORTS"},
    kernel_notes=f"{_HERE}.summary:kernel_notes",
    report=f"{_HERE}.sections",
)
