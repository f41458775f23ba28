"""Parity: a model against itself in another framework, dtype, backend or commit, layer by layer."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="parity",
    commands={"parity": "perfscope.plugins.parity.command:parity"},
    tasks={"parity": "Compare"},
)
