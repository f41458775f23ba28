"""Sizes of memory as people type them: ``40GiB``, ``40 GB``, ``512MiB``."""

from __future__ import annotations

import re

from perfscope.model.errors import UsageError

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
MOST_BYTES = 1 << 50


def read_bytes_text(text: str, option: str) -> int:
    """Bytes of a size. ``option`` stands in front of the error: ``AskedWronglyError`` for whatever is no size."""
    found = re.fullmatch(r"\s*(\d{1,16}(?:\.\d{1,9})?)\s*([a-z]+)\s*", text.lower()) if len(text) < 64 else None
    unit = None if found is None else _UNITS.get(found[2])
    if found is None or unit is None:
        raise UsageError(f"{option} {text[:40]}: no size; write it with its unit, e.g. 40GiB")
    size = round(float(found[1]) * unit)
    if not 1 << 20 <= size <= MOST_BYTES:
        raise UsageError(f"{option} {text[:40]}: it may be 1 MiB to 1 PiB")
    return size
