"""Required of every reader for an unreadable file: ``DataError``, one line that begins with the path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.model.errors import DataError


def refused(read: Callable[[Path], object], path: Path, content: bytes | None = None) -> str:
    """The message after the path when ``read`` refuses the file, with ``content`` written into it first."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")
