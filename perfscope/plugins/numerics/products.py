"""Products of matrices of a program over the steps: what each recipe of narrow formats would lose in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isfinite
from typing import Any

from perfscope.plugins.numerics.document import Product, ProductKind, RecipeLoss

MOST_PRODUCTS = 2_000


ProductKey = tuple[ProductKind, str, str, str, str, tuple[int, int, int, int]]
"""(kind, name, op, line, dtype, (batch, rows, columns, terms)) of a product, the same in all steps."""


@dataclass(slots=True)
class _Row:
    calls: int = 0
    steps: int = 0
    latest: Any = None
    amax: tuple[float, float] | None = None
    """Largest magnitudes of both factors in all steps before."""
    losses: dict[str, RecipeLoss] = field(default_factory=dict)


class Products:
    """Grows by ``add``. The largest loss of all measured steps is kept."""

    def __init__(self) -> None:
        self._rows: dict[ProductKey, _Row] = {}

    @staticmethod
    def due(watched: int) -> bool:
        """Whether products are measured after so many watched steps: after 0, 1, 2, 4, 8 ... Needs NumPy."""
        return watched & (watched - 1) == 0 and find_spec("numpy") is not None

    def add(self, moment: Any, key: ProductKey, left: Any, right: Any, amax: tuple[float, float]) -> None:
        """Add one product: rows of both factors (NumPy), and the largest magnitudes of the whole factors."""
        from perfscope.plugins.precision import losses

        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MOST_PRODUCTS:
                return
            row = self._rows[key] = _Row()
        row.calls += 1
        if row.steps and row.latest == moment:
            return  # a layer that runs several times is measured once per step
        row.steps, row.latest = row.steps + 1, moment
        for name, loss in losses(left, right, amax, row.amax).items():
            known = row.losses.get(name)
            if known is None or known.error < loss.error:
                row.losses[name] = loss
        known_amax = row.amax or (0.0, 0.0)
        finite = [value if isfinite(value) else 0.0 for value in amax]
        row.amax = max(known_amax[0], finite[0]), max(known_amax[1], finite[1])

    def document(self, number: Callable[[Any], int]) -> tuple[Product, ...]:
        """All products; ``number``: step of a moment."""
        return tuple(
            Product(
                kind=kind, name=name, op=op, line=line, dtype=dtype, batch=sizes[0], rows=sizes[1], columns=sizes[2],
                terms=sizes[3], calls=-(-row.calls // row.steps), steps=row.steps, last_step=number(row.latest),
                losses=tuple(row.losses.values()),
            )
            for (kind, name, op, line, dtype, sizes), row in self._rows.items()
        )  # fmt: skip
