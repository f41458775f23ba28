"""Lower: each line of a program at each stage of its compiler, and the compile time."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.lower"

PLUGIN = Plugin(
    name="lower",
    commands={"lower": f"{_HERE}.command:lower"},
    tasks={"lower": "Analyze"},
)
