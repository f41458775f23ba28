"""What text reports share: their width, and printing parts into a string that looks the same everywhere."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType

WIDTH = 110
"""Columns where no terminal tells its own: a log or a file looks the same everywhere."""

NARROWEST = 80
"""Below it the columns of a table have no room for words, and wrapping by the terminal reads better."""


def printed(parts: Callable[[int], Iterable[RenderableType]], *, width: int, color: bool) -> str:
    """The parts that ``parts(columns)`` gives, one below the other, without spaces at the ends of lines."""
    into = io.StringIO()
    console = Console(
        file=into,
        width=max(width, NARROWEST),
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts(console.width):
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in into.getvalue().splitlines())
