"""The ledger of a job: every second of its processes by cause, over restarts, as long as it runs."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.job"

PLUGIN = Plugin(
    name="job",
    commands={"job": f"{_HERE}.command:job"},
    tasks={"job": "Analyze"},
    options={"run": (f"{_HERE}.options:LEDGER", f"{_HERE}.options:WATCH")},
    names={"progress": f"{_HERE}.progress:progress"},
)
