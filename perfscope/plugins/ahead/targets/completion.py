"""Completion of targets in shells after TAB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click


def complete_targets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that ``--target`` takes."""
    from perfscope.analyzers.devices import known_names

    return [CompletionItem(name) for name in known_names() if name.startswith(incomplete.lower())]
