"""What the terminal can show: its width, and whether colour is wanted."""

from __future__ import annotations

import io
import os
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_WIDTH = 110
"""Columns of what is no terminal: a log looks the same on every machine."""


def color_wanted(stream: TextIO) -> bool:
    """``NO_COLOR`` forbids it and ``FORCE_COLOR`` asks for it (no-color.org, force-color.org).

    Without either a terminal has it unless it is dumb.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind ``stream`` (``COLUMNS`` overrides it); ``PLAIN_WIDTH`` if it is none."""
    if stream.isatty():
        return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    return PLAIN_WIDTH


def show(*parts: RenderableType) -> None:
    """Print what rich lays out on stdout, without the blanks that fill its lines to the width."""
    from rich.console import Console

    color = color_wanted(sys.stdout)
    into = io.StringIO()
    console = Console(
        file=into,
        width=width_of(sys.stdout),
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        console.print(part)
    click.echo("".join(f"{line.rstrip()}\n" for line in into.getvalue().splitlines()), nl=False, color=True)
