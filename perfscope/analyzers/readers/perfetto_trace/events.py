"""Whole events of a file as columns."""

from __future__ import annotations

from perfscope.analyzers.readers.kineto_json.grown import Columns
from perfscope.analyzers.trace.columns import Array


class Events:
    """Whole events as columns: begun and ended, instants, samples."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, rows: Array) -> Events:
        """The given rows."""
        return Events({name: values[rows] for name, values in self.columns.items()})

    def __len__(self) -> int:
        return len(self.columns["event"])
