"""A job over time: bins of equal width with time by cause, which sum to the account exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.plugins.job.causes import CAUSES, Cause

Ints = npt.NDArray[np.int64]

NARROWEST_NS = 2_000_000_000
"""Rows are not shorter."""
MOST_BINS = 256
"""Most bins of a job, as many as a picture shows. They are two, four, eight ... seconds wide."""


class Bin(Struct, frozen=True, kw_only=True):
    """An interval of a job."""

    unix_ns: int
    """Its begin."""
    causes: Mapping[Cause, int]
    """Time of all ranks in it, ns; causes without time are left out."""
    steps: int
    """Completed steps of all ranks."""


class Timeline:
    """Bins that grow in width so that there are at most ``MOST_BINS``. Columns: causes, then steps."""

    def __init__(self, width_ns: int = NARROWEST_NS, bins: Mapping[int, list[int]] | None = None) -> None:
        """``bins``: as in ``rows``."""
        self.width_ns = width_ns
        self._bins: dict[int, Any] = {at: np.array(row, dtype=np.int64) for at, row in (bins or {}).items()}

    @property
    def rows(self) -> dict[int, list[int]]:
        """Begin since 1970 in widths -> ns by cause, then steps."""
        return {at: [int(value) for value in self._bins[at]] for at in sorted(self._bins)}

    def bins(self) -> tuple[Bin, ...]:
        """The bins in order; intervals without any process are left out."""
        return tuple(
            Bin(
                unix_ns=at * self.width_ns,
                causes={cause: ns for cause, ns in zip(CAUSES, row, strict=False) if ns},
                steps=row[-1],
            )
            for at, row in self.rows.items()
        )

    def add(self, edges: Ints, values: Ints) -> None:
        """Add rows that follow each other. ``edges`` (rows + 1): since 1970; ``values``: (rows, causes and steps)."""
        if len(edges) < 2 or edges[-1] <= edges[0]:
            return
        self._make_room(int(edges[0]), int(edges[-1]))
        first = edges[:-1] // self.width_ns
        last = np.maximum(first, (edges[1:] - 1) // self.width_ns)
        whole = first == last
        places, of_row = np.unique(first[whole], return_inverse=True)
        sums = np.zeros((len(places), values.shape[1]), dtype=np.int64)
        np.add.at(sums, of_row, values[whole])
        for at, row in zip(places, sums, strict=True):
            self._put(int(at), row)
        for number in np.flatnonzero(~whole).tolist():
            self._divide(int(edges[number]), int(edges[number + 1]), values[number])

    def merge(self, other: Timeline) -> None:
        """Add the bins of another timeline."""
        if not other._bins:
            return
        self.widen(other.width_ns)
        other.widen(self.width_ns)
        for at, row in other._bins.items():
            self._put(at, row)
        places = [*self._bins]
        self._make_room(min(places) * self.width_ns, (max(places) + 1) * self.width_ns)

    def widen(self, width_ns: int) -> None:
        """Join bins until they have at least this width, a power of two of the narrowest."""
        factor = max(1, width_ns // self.width_ns)
        if factor == 1:
            return
        narrow, self._bins = self._bins, {}
        self.width_ns *= factor
        for at, row in narrow.items():
            self._put(at // factor, row)

    def _make_room(self, begin: int, end: int) -> None:
        low = min(begin, *(at * self.width_ns for at in self._bins)) if self._bins else begin
        high = max(end, *((at + 1) * self.width_ns for at in self._bins)) if self._bins else end
        width = self.width_ns
        while (high - 1) // width - low // width >= MOST_BINS:
            width *= 2
        self.widen(width)

    def _put(self, at: int, row: Any) -> None:
        held = self._bins.get(at)
        self._bins[at] = row.copy() if held is None else held + row

    def _divide(self, begin: int, end: int, values: Ints) -> None:
        """A row over several bins: each gets its share; the shares sum to the row exactly."""
        given = np.zeros_like(values)
        for at in range(begin // self.width_ns, (end - 1) // self.width_ns + 1):
            until = min(end, (at + 1) * self.width_ns)
            upto = values if until == end else np.floor(values * ((until - begin) / (end - begin))).astype(np.int64)
            self._put(at, upto - given)
            given = upto
