"""Plan: which mesh, which checkpoint policy, which micro-batch, before a machine is rented (`perfscope plan`)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_HERE = "perfscope.plugins.plan"

PLUGIN = Plugin(
    name="plan",
    commands={"plan": f"{_HERE}.command:plan"},
    tasks={"plan": "Compile for a machine that is not here"},
    names={"mesh": f"{_HERE}.mesh:mesh"},
    documents={"plan": f"{_HERE}.document"},
    pages={"plan": f"{_HERE}.page"},
)
