"""Replay: an op or collective of a trace as a benchmark script (`perfscope replay`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.replay.script import replay_script as replay_script

_HERE = "perfscope.plugins.replay"

PLUGIN = Plugin(
    name="replay",
    commands={"replay": f"{_HERE}.command:replay"},
    tasks={"replay": "Analyze"},
)

_FOR_OTHERS = {"replay_script": f"{_HERE}.script:replay_script"}
"""Names that other plug-ins use."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
