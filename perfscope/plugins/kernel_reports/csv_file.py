"""CSV that a tool writes about kernels, row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

from perfscope.analyzers.readers import open_bytes
from perfscope.model.errors import DataError
from perfscope.plugins.kernel_reports.record import KernelReport

LARGEST = 4 << 30
"""Maximum bytes of a file: a million launches with a few metrics."""


def reports_in_csv(
    path: Path, tool: str, reports: Callable[[Iterator[list[str]]], Iterator[KernelReport]]
) -> tuple[KernelReport, ...]:
    """Return the reports that ``reports`` makes of a file's rows. ``DataError``, one line, if it is not CSV."""
    with open_bytes(path, LARGEST) as data:
        lines = iter(io.BytesIO(data).readline if isinstance(data, bytes) else data.readline, b"")
        try:
            return tuple(reports(csv.reader(line.decode("utf-8", "replace").replace("\0", "") for line in lines)))
        except csv.Error as error:
            raise DataError(f"{path}: not CSV of {tool}: {error}") from error
