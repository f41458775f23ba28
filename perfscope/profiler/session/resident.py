"""Physical memory of this process."""

from __future__ import annotations

import resource
import sys


def peak_resident_bytes() -> int:
    """Most physical memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
