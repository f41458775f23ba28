"""Entry points of installed packages: readers and rules that others add."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of a group. All packages' metadata are read once per ``sys.path``: a folder calls this per file."""
    return tuple(_on_path(tuple(sys.path)).select(group=group))


@cache
def _on_path(_: tuple[str, ...]) -> Any:
    return entry_points()
