"""Interventions as they are tried: the changes of each arm, and the results of its launches."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.model.documents.ab import Launch, Pair, Pairs


class Candidate(Struct, frozen=True, kw_only=True):
    """An intervention as it is shown (`perfscope.plugins.trials.interventions`)."""

    name: str
    title: str
    family: str
    """Only one intervention of a family can be in effect."""
    answers: tuple[str, ...]
    may_change: str
    code: str
    signs: tuple[str, ...] = ()
    """Signs in the baseline's launches that, like the findings of rules, are a reason for this intervention."""
    by_mean: bool = False
    """Whether it moves time between steps, so that only the mean of all steps shows the gain."""
    unfit: str | None = None
    """Why it cannot help this program."""


Stop = Literal["not applicable", "not applied", "rejected", "failed", "not reached"]


class Attempt(Struct, frozen=True, kw_only=True):
    """The launches of one arm against another. ``base``, ``head``: interventions in effect."""

    candidate: Candidate
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
    second: Launch
    calibration: tuple[Pair, ...] = ()
