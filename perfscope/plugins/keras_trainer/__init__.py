"""Keras 3 on PyTorch or JAX: ``perfscope.KerasCallback`` captures ``fit``, a batch per step."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="keras_trainer",
    names={"KerasCallback": "perfscope.plugins.keras_trainer.callback:KerasCallback"},
)
