"""Port: one model in two frameworks, for two targets or on two vendors, layer by layer: what one side does extra."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.port"

PLUGIN = Plugin(
    name="port",
    commands={"compare port": f"{_HERE}.command:port"},
    comparers={"port": f"{_HERE}.compare"},
    documents={"port": f"{_HERE}.document"},
    pages={"port": f"{_HERE}.page"},
)
