"""Scale-out: traces at URLs (fsspec), and their analysis on a Dask cluster (``--scheduler``)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(name="scale_out", scale_out="perfscope.plugins.scale_out.remote")
