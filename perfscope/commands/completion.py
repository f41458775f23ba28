"""Completion in shells after TAB: runs and rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click

FILES = "file"
"""The kind of item for which the shell completes paths itself."""


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs of the folder, newest first, with their tags; paths if no run begins so."""
    from perfscope.model.documents.run_folders import LATEST, RUNS_FOLDER, kept_directories, tags_of

    folder = context.params.get("folder") or context.params.get("output") or RUNS_FOLDER
    kept = kept_directories(Path(folder))
    names = [LATEST, *(tag for run in kept for tag in tags_of(run)), *(run.name for run in kept)] if kept else []
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type=FILES)]


def complete_rules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of rules."""
    from perfscope.analyzers.registry import rule_ids

    return [CompletionItem(name) for name in rule_ids() if name.startswith(incomplete.replace("-", "_"))]
