"""Exports: traces in the formats of other tools (`perfscope export`). A format is a module and a line below."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.exports"

PLUGIN = Plugin(
    name="exports",
    commands={"export": f"{_HERE}.command:export"},
    tasks={"export": "Share"},
    exports={form: f"{_HERE}.{form}" for form in ("perfetto", "chrome", "speedscope", "parquet", "tensorboard")},
)
