"""Reports on single kernels from other tools, joined with the kernels of a trace: Nsight Compute's CSV, tritonparse."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.kernel_reports"

PLUGIN = Plugin(
    name="kernel_reports",
    readers={"ncu": f"{_HERE}.ncu"},
    format_words={"ncu": "CSV of Nsight Compute (`ncu --csv`)"},
    results={"kernel_reports": f"{_HERE}.summary:kernel_summary"},
    tables={"kernel_reports": f"{_HERE}.table:KERNEL_REPORTS"},
    kernel_notes=f"{_HERE}.summary:kernel_notes",
    report=f"{_HERE}.sections",
)
