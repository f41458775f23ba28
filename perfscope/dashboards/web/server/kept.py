"""Reads what a child of the server wrote of an item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from perfscope.dashboards.web.server.shelf import KEY


def read_view(folder: Path, name: str) -> dict[str, Any] | None:
    """``{"view": ...}`` or ``{"problem": ...}`` as the child wrote it; ``None`` where it is not there yet."""
    if not KEY.fullmatch(name):
        return None
    try:
        content = (folder / f"{name}.json").read_bytes()
    except OSError:
        return None
    held: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    return held
