"""``backend_config``: what a backend wrote about an instruction, as parsed JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def json_object(text: str | bytes) -> Mapping[str, Any]:
    """A backend's configuration as parsed JSON; empty where it is none, or no object (MLIR text, raw protos)."""
    if not text:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def trip_count(config: Mapping[str, Any]) -> int | None:
    """``known_trip_count`` of a while's configuration; ``None`` where it is not known."""
    known = config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    if isinstance(count, str) and count.isdecimal() and len(count) < 20:
        return int(count)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
