"""Entry points of installed packages: readers and rules that others add."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of a group. Metadata of all packages are read once for each ``sys.path``: a folder asks per file."""
    return _on_path(group, tuple(sys.path))


@cache
def _on_path(group: str, _: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
