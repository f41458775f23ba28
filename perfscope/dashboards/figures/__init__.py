"""Figures for notebooks: pure functions from a table to a plotly ``Figure``, a written list.

One figure a file; the files are named after their table, because a module named as its function
would hide it. Figures need plotly: ``pip install 'perfscope[ui]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.dashboards.figures.devices import device_time as device_time
    from perfscope.dashboards.figures.kernels import kernel_time as kernel_time
    from perfscope.dashboards.figures.memory import memory_timeline as memory_timeline
    from perfscope.dashboards.figures.spans import timeline as timeline
    from perfscope.dashboards.figures.steps import step_times as step_times
    from perfscope.dashboards.figures.sweeps import pareto as pareto

FIGURES: dict[str, str] = {
    "device_time": "perfscope.dashboards.figures.devices",
    "kernel_time": "perfscope.dashboards.figures.kernels",
    "memory_timeline": "perfscope.dashboards.figures.memory",
    "pareto": "perfscope.dashboards.figures.sweeps",
    "step_times": "perfscope.dashboards.figures.steps",
    "timeline": "perfscope.dashboards.figures.spans",
}

__all__ = ["FIGURES", "device_time", "kernel_time", "memory_timeline", "pareto", "step_times", "timeline"]


def __getattr__(name: str) -> Any:
    """Load a figure's function at first use and keep it."""
    if name not in FIGURES:
        raise AttributeError(f"module 'perfscope.dashboards.figures' has no attribute {name!r}")
    function = getattr(import_module(FIGURES[name]), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    """The figures, loaded or not."""
    return sorted({*globals(), *FIGURES})
