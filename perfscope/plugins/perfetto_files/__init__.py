"""Perfetto files: a reader of ``TracePacket`` protobufs, those of `perfscope export` and of other programs."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="perfetto_files",
    readers={"perfetto": "perfscope.plugins.perfetto_files.reader"},
    format_words={"perfetto": "Perfetto traces"},
)
