"""Numbers of an analysis as scalars in a tracker of experiments: TensorBoard, Weights & Biases, MLflow (`--log-to`)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

_LOG_TO = ("perfscope.plugins.log_to.options:LOG_TO",)

PLUGIN = Plugin(name="log_to", options={"analyze": _LOG_TO, "run": _LOG_TO})
