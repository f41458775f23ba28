"""History: numbers and baselines of runs that outlive their folders, in a file or on a PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.history.options import cleaned as cleaned
    from perfscope.plugins.history.options import opened as opened
    from perfscope.plugins.history.run_record import UID_LENGTH as UID_LENGTH
    from perfscope.plugins.history.run_record import hardware_of as hardware_of
    from perfscope.plugins.history.series import change_points as change_points
    from perfscope.plugins.history.stored_run import StoredMetric as StoredMetric
    from perfscope.plugins.history.stored_run import StoredRun as StoredRun

_HERE = "perfscope.plugins.history"

PLUGIN = Plugin(
    name="history",
    commands={verb: f"{_HERE}.commands.{verb}:{verb}" for verb in ("baseline", "history", "store")},
    tasks=dict.fromkeys(("baseline", "history", "store"), "Compare"),
    options={"compare runs": (f"{_HERE}.options:BASELINE", f"{_HERE}.options:STORE")},
    pages={"history": f"{_HERE}.page"},
    works={"history": f"{_HERE}.works"},
)

_FOR_OTHERS = {
    "StoredMetric": f"{_HERE}.stored_run:StoredMetric",
    "StoredRun": f"{_HERE}.stored_run:StoredRun",
    "UID_LENGTH": f"{_HERE}.run_record:UID_LENGTH",
    "change_points": f"{_HERE}.series:change_points",
    "cleaned": f"{_HERE}.options:cleaned",
    "hardware_of": f"{_HERE}.run_record:hardware_of",
    "opened": f"{_HERE}.options:opened",
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
