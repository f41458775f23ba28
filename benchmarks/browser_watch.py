"""The time at which a page's picture is complete, and the browser's memory until then."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIMIT_S = 60.0
STILL_S = 0.5
"""Unchanged for so long: the picture is done."""
FEW_PIXELS = 200
"""Pixels out of more than a million: the compositor keeps smoothing the corners of boxes for seconds."""


class TooSlowError(Exception):
    """A minute is over."""


def settled(page: Page, began: float, least: int = 0) -> tuple[float, float]:
    """Seconds from ``began`` to the last change of the picture, and between two looks; ``least``: bytes of a PNG."""
    last, changed, looks = b"", began, 0
    first = time.perf_counter()
    while True:
        now = time.perf_counter()
        if now - began > LIMIT_S:
            raise TooSlowError
        shot = page.screenshot(timeout=LIMIT_S * 1000)
        looks += 1
        if len(shot) < least or (shot != last and _differ(shot, last)):
            last, changed = shot, time.perf_counter()
        elif now - changed > STILL_S:
            return changed - began, (time.perf_counter() - first) / looks


def _differ(one: bytes, other: bytes) -> bool:
    """Whether more pixels of two PNGs differ than are visible."""
    if not other:
        return True
    pixels = [np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) for png in (one, other)]
    return pixels[0].shape != pixels[1].shape or int((pixels[0] != pixels[1]).any(axis=2).sum()) > FEW_PIXELS


def memory_bytes(whose: int | None = None) -> int:
    """Proportional set size of every Chromium process below this one; of ``whose``: of all processes below that."""
    top = os.getpid() if whose is None else whose
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            held = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(held.rpartition(")")[2].split()[1])
    found = 0
    for process in parents:
        above = process
        while above not in (top, 0, 1):
            above = parents.get(above, 0)
        if above == top and (process != above or whose is not None):
            try:
                line = Path(f"/proc/{process}/cmdline").read_bytes()
                pss = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.M)
            except OSError:
                continue
            mine = whose is not None or b"chrom" in line.split(b"\0")[0]
            found += int(pss[1]) * 1024 if pss and mine else 0
    return found
