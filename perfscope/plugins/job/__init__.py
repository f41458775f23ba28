"""The ledger of a job: every second of its processes by cause, over restarts, as long as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.job.ask import ask_stacks as ask_stacks
    from perfscope.plugins.job.causes import place_of as place_of
    from perfscope.plugins.job.recordings import kept_recordings as kept_recordings

_HERE = "perfscope.plugins.job"

PLUGIN = Plugin(
    name="job",
    commands={"job": f"{_HERE}.command:job"},
    tasks={"job": "Analyze"},
    options={"run": (f"{_HERE}.options:LEDGER", f"{_HERE}.options:WATCH")},
    pages={"job": f"{_HERE}.dashboard.page"},
    works={"job": f"{_HERE}.dashboard.works"},
    names={"progress": f"{_HERE}.progress:progress"},
)

_FOR_OTHERS = {
    "ask_stacks": f"{_HERE}.ask:ask_stacks",
    "place_of": f"{_HERE}.causes:place_of",
    "kept_recordings": f"{_HERE}.recordings:kept_recordings",
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
