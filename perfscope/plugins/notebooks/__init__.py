"""Notebooks: ``%load_ext perfscope`` adds ``%%perfscope``, which profiles a cell and shows its report below it."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="notebooks",
    names={"load_ipython_extension": "perfscope.plugins.notebooks.magic:load_ipython_extension"},
)
