"""``perfscope attach``: stacks of a Python process that already runs, and a recording of its next steps."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="attach",
    commands={"attach": "perfscope.plugins.attach.command:attach"},
    tasks={"attach": "Capture"},
)
