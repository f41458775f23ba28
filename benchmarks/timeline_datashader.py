"""The same picture by datashader itself: intervals as line segments, counted for each pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from timeline_image import HEIGHT, WIDTH, Image, png

from perfscope.model.trace import Trace


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
