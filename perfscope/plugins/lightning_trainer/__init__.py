"""Lightning: ``perfscope.LightningCallback`` captures ``fit``, an update of the optimizer per step."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="lightning_trainer",
    names={"LightningCallback": "perfscope.plugins.lightning_trainer.callback:LightningCallback"},
)
