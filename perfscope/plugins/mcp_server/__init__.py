"""A Model Context Protocol server over stdio (`perfscope mcp FOLDER...`): recordings for agents, as bounded texts."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="mcp_server",
    commands={"mcp": "perfscope.plugins.mcp_server.command:mcp"},
    tasks={"mcp": "Share"},
)
