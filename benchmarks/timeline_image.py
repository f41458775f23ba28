"""A peer of the timeline that draws all events into an image for each view, as datashader does."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, HEIGHT = 1600, 900


class Image:
    """Events as a picture of one bin a pixel, made anew for each view."""

    def __init__(self, trace: Trace, lanes: int) -> None:
        rows = trace.rows["kernels"]
        self.lanes = [np.flatnonzero(rows["stream"] == lane) for lane in range(lanes)]
        self.start, self.end = np.asarray(rows["start_ns"]), np.asarray(rows["end_ns"])
        self.view = (0.0, float(self.end.max()))
        self.bytes = 0

    def picture(self) -> bytes:
        """A PNG of ``view``: how many events touch a pixel."""
        low, high = self.view
        each = HEIGHT // len(self.lanes)
        canvas = np.zeros((HEIGHT, WIDTH), np.uint8)
        for at, lane in enumerate(self.lanes):
            first, last = np.searchsorted(self.end[lane], low), np.searchsorted(self.start[lane], high)
            some = lane[first:last]
            edges = np.zeros(WIDTH + 1)
            scale = WIDTH / (high - low)
            np.add.at(edges, np.clip((self.start[some] - low) * scale, 0, WIDTH - 1).astype(int), 1)
            np.add.at(edges, np.clip((self.end[some] - low) * scale, 0, WIDTH - 1).astype(int) + 1, -1)
            count = np.cumsum(edges)[:WIDTH]
            canvas[at * each : (at + 1) * each - 2] = np.minimum(np.log1p(count) * 60, 255)
        return png(canvas)

    def show(self, page: Page) -> None:
        """Draw ``view`` and put it into the page."""
        held = self.picture()
        self.bytes = len(held)
        page.evaluate("(url) => { document.body.innerHTML = `<img src='${url}'>`; }",
                      f"data:image/png;base64,{base64.b64encode(held).decode()}")  # fmt: skip

    def open(self, page: Page, folder: Path) -> None:
        """An empty page with the whole."""
        page.goto("about:blank")
        self.show(page)

    def zoom(self, page: Page, factor: float) -> None:
        """One step in or out."""
        low, high = self.view
        at = low + (high - low) * 0.4
        self.view = (at - (at - low) * factor, at + (high - at) * factor)
        self.show(page)


def png(gray: np.ndarray) -> bytes:
    """A gray picture, shape (height, width), as a PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = gray.shape
    rows = b"".join(b"\0" + row.tobytes() for row in gray)
    out = io.BytesIO()
    out.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)))
    out.write(chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))
    return out.getvalue()
