"""The native library: what takes long in Python, written a second time in Rust.

Each of its functions has a twin in Python with numpy that gives the same result, and everything works without the
library, slower. It is built with perfscope where a Rust compiler is installed. ``PERFSCOPE_NATIVE=off`` turns it off.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

SWITCH = "PERFSCOPE_NATIVE"
"""Environment variable; the value ``off`` leaves the library unloaded."""

ADVICE = "install a Rust compiler, then perfscope again"
"""How to get the library."""

_VERSION = 10
"""Version of the border in ``src/lib.rs``."""


class FaultError(RuntimeError):
    """The library failed in a call, which is a defect of it."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the loaded library; ``None`` if it is turned off, not built, or of another version."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return None
    for path in sorted(Path(__file__).parent.glob("_core*")):
        try:
            loaded = ctypes.CDLL(str(path))
            loaded.perfscope_version.restype = ctypes.c_int64
            if loaded.perfscope_version() == _VERSION:
                return loaded
        except (OSError, AttributeError):  # Built for another machine, or not by this project.
            continue
    return None


def state() -> str:
    """Return in words whether the native library is in use, for ``perfscope doctor``."""
    if library() is not None:
        return "in use"
    if os.environ.get(SWITCH, "").lower() == "off":
        return f"turned off by {SWITCH}"
    if any(Path(__file__).parent.glob("_core*")):
        return "of another machine or version: install perfscope again; large files take longer to read"
    return "not built; large files take longer to read"
