"""Replay: an op or collective of a trace as a benchmark script (`perfscope replay`)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="replay",
    commands={"replay": "perfscope.plugins.replay.command:replay"},
    tasks={"replay": "Analyze"},
)
