"""What the terminal can show: its width, and whether colour is wanted."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

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
