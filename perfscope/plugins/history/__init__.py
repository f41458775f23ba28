"""History: numbers and baselines of runs that outlive their folders, in a file or on a PostgreSQL server."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.history"

PLUGIN = Plugin(
    name="history",
    commands={verb: f"{_HERE}.commands.{verb}:{verb}" for verb in ("baseline", "history", "store")},
    tasks=dict.fromkeys(("baseline", "history", "store"), "Compare"),
    options={"compare runs": (f"{_HERE}.options:BASELINE", f"{_HERE}.options:STORE")},
    pages={"history": f"{_HERE}.page"},
    works={"history": f"{_HERE}.works"},
)
