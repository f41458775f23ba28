"""Figures for notebooks: pure functions from a table to a plotly ``Figure``.

Figures need plotly, which is loaded when one is drawn: ``pip install 'perfscope[ui]'``.
"""

from __future__ import annotations

from perfscope.dashboards.figures.device import device_time, kernel_time, timeline
from perfscope.dashboards.figures.heat_map import heat_map
from perfscope.dashboards.figures.memory import memory_curve, memory_timeline
from perfscope.dashboards.figures.roofline import roofline
from perfscope.dashboards.figures.steps import account_change, step_account, step_times
from perfscope.dashboards.figures.sweep import pareto

__all__ = [
    "account_change", "device_time", "heat_map", "kernel_time", "memory_curve", "memory_timeline", "pareto", "roofline",
    "step_account", "step_times", "timeline",
]  # fmt: skip
