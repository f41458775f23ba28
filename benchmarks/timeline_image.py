"""Peers of the timeline that draw all events into an image for each view: in numpy, and with datashader."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


class Shaded(Image):
    """As `Image`, with datashader's aggregation in the place of ours."""

    def __init__(self, trace: Trace, lanes: int) -> None:
        """`ImportError` where datashader is not installed."""
        import datashader
        import pandas as pd

        super().__init__(trace, lanes)
        rows = trace.rows["kernels"]
        lane = np.asarray(rows["stream"], np.float32)
        self._shader: Any = datashader
        self._frame = pd.DataFrame(
            {"x0": self.start.astype(np.float64), "x1": self.end.astype(np.float64), "y0": lane, "y1": lane}
        )
        self._lanes = lanes

    def picture(self) -> bytes:
        """A PNG of ``view``."""
        canvas = self._shader.Canvas(WIDTH, self._lanes, x_range=self.view, y_range=(-0.5, self._lanes - 0.5))
        counted = canvas.line(self._frame, ["x0", "x1"], ["y0", "y1"], axis=1, agg=self._shader.count())
        each = HEIGHT // self._lanes
        shades = np.minimum(np.log1p(np.nan_to_num(np.asarray(counted.values, np.float64))) * 60, 255).astype(np.uint8)
        picture = np.zeros((HEIGHT, WIDTH), np.uint8)
        picture[: each * self._lanes] = np.repeat(shades, each, axis=0)
        return png(picture)
