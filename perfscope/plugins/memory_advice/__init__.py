"""Memory advice: predicted memory and time of other checkpointing policies for a program (`perfscope advise`)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin, RuleHome

_HERE = "perfscope.plugins.memory_advice"

PLUGIN = Plugin(
    name="memory_advice",
    commands={"advise": f"{_HERE}.command:advise"},
    tasks={"advise": "Compile for a machine that is not here"},
    rules={
        rule: RuleHome(module=f"{_HERE}.rules.{rule}", judges=("programs",), compares_digests=True)
        for rule in ("excess_remat", "missing_remat")
    },
)
