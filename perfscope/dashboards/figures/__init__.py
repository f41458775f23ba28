"""Figures for notebooks: pure functions from a table to a plotly ``Figure``.

Figures need plotly, which is loaded when one is drawn: ``pip install 'perfscope[ui]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.dashboards.figures.device import device_time, kernel_time, timeline
from perfscope.dashboards.figures.heat_map import heat_map
from perfscope.dashboards.figures.memory import memory_curve, memory_timeline
from perfscope.dashboards.figures.roofline import roofline
from perfscope.dashboards.figures.steps import account_change, step_account, step_times
from perfscope.model.plugins import load, named

if TYPE_CHECKING:
    from perfscope.plugins.ahead.sweep.figure import pareto as pareto

__all__ = [
    "account_change", "device_time", "heat_map", "kernel_time", "memory_curve", "memory_timeline", "pareto", "roofline",
    "step_account", "step_times", "timeline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A figure of a plug-in."""
    home = named("names").get(f"figures.{name}")
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(home)
