"""Interventions as they are tried: the changes of each arm, and the results of its launches."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.model.documents.ab import Launch, Pair, Pairs
from perfscope.plugins.trials.interventions.base import Intervention

Stop = Literal["not applicable", "not applied", "rejected", "failed", "not reached"]


class Attempt(Struct, frozen=True, kw_only=True):
    """The launches of one arm against another. ``base``, ``head``: interventions in effect."""

    intervention: Intervention
    base: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    first: Launch | None = None
    """The launch whose values were recorded, with empty caches of compilers; none of its times count."""
    pairs: Pairs | None = None
    stop: Stop | None = None
    """Why there are no pairs."""
    reason: str = ""


class Unchanged(Struct, frozen=True, kw_only=True):
    """Launches of the unchanged program: two that recorded values, and pairs for the calibration."""

    first: Launch
    second: Launch | None = None
    """Repetition of the first; ``None`` before the first intervention was tried."""
    calibration: tuple[Pair, ...] = ()
