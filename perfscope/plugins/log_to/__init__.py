"""Numbers of an analysis as scalars in a tracker of experiments: TensorBoard, Weights & Biases, MLflow (`--log-to`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.log_to.options import tracker_and_place as tracker_and_place
    from perfscope.plugins.log_to.trackers import Tracker as Tracker
    from perfscope.plugins.log_to.trackers import refusals as refusals
    from perfscope.plugins.log_to.trackers import tracker_at as tracker_at

_LOG_TO = ("perfscope.plugins.log_to.options:LOG_TO",)

PLUGIN = Plugin(name="log_to", options={"analyze": _LOG_TO, "run": _LOG_TO})

_FOR_OTHERS = {
    "Tracker": "perfscope.plugins.log_to.trackers:Tracker",
    "refusals": "perfscope.plugins.log_to.trackers:refusals",
    "tracker_and_place": "perfscope.plugins.log_to.options:tracker_and_place",
    "tracker_at": "perfscope.plugins.log_to.trackers:tracker_at",
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
