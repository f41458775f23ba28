"""Lifetimes on the axis of a simulated step, as changes of live bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Effect:
    """What one region under one policy adds: changes of live bytes along the axis, and its price."""

    at: Int64
    change: Int64
    recompute_ns: int = 0
    recomputed: int = 0
    offloaded_bytes: int = 0
    stored_ns: int = 0


class Spans:
    """Collects lifetimes on the axis."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._at: list[int] = []
        self._change: list[int] = []
        self.recompute_ns = 0
        self.recomputed = 0
        self.offloaded = 0
        self.stored_ns = 0

    def add(self, start: int, stop: int, size: int) -> None:
        """``size`` bytes are held from ``start`` up to ``stop``; nothing where that is empty."""
        if stop > start and size:
            self._at += (start, stop)
            self._change += (size, -size)

    def effect(self) -> Effect:
        """All of them as changes along the axis."""
        return Effect(
            np.array(self._at, np.int64),
            np.array(self._change, np.int64),
            self.recompute_ns,
            self.recomputed,
            self.offloaded,
            self.stored_ns,
        )
