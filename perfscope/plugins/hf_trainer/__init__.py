"""Hugging Face Trainer: ``perfscope.TransformersCallback`` captures a training, an update per step."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="hf_trainer",
    names={"TransformersCallback": "perfscope.plugins.hf_trainer.callback:TransformersCallback"},
)
