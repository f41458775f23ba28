"""Memory advice: predicted memory and time of other checkpointing policies for a program (`perfscope advise`)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin, RuleHome

_HERE = "perfscope.plugins.memory_advice"

PLUGIN = Plugin(
    name="memory_advice",
    commands={"advise": f"{_HERE}.command:advise"},
    tasks={"advise": "Compile for a machine that is not here"},
    rules={
        rule: RuleHome(
            module=f"{_HERE}.rules.{rule}",
            judges=("programs",),
            device_times="work",
            fix_calls=calls,
            compares_digests=True,
        )
        for rule, calls in {"excess_remat": ("checkpoint", "remat"), "missing_remat": ()}.items()
    },
)
