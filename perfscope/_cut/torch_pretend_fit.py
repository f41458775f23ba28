"""Where pretending the device was tried: what can be said without loading torch."""

from __future__ import annotations

import struct
import sys

KNOWN = ("2.13",)
"""Versions of torch with which it was tried."""


def unfit(version: str, *, for_gpu: bool) -> str | None:
    """Why it cannot be with this system and this torch, in a line; ``None`` where it may (a trial makes sure).

    ``version``: of torch, ``2.13.0+cpu``; ``for_gpu``: whether it is a build for CUDA or ROCm.
    """
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return f"it is made for Linux with 64 bits, not for {sys.platform}"
    if ".".join(version.split(".")[:2]) not in KNOWN:
        return f"it was tried with torch {', '.join(KNOWN)}, not with {version}"
    if for_gpu:
        return f"torch {version} is built for a GPU; it was tried with builds for the CPU"
    return None
