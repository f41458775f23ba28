"""Code hosts: a comparison as a comment of a pull or merge request on GitHub or GitLab (`perfscope comment`)."""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(
    name="code_hosts",
    commands={"comment": "perfscope.plugins.code_hosts.command:comment"},
    tasks={"comment": "Share"},
)
