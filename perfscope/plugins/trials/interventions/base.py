"""The interface of an intervention: a change made to a program from outside while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Framework = Literal["torch", "jax", "any"]

MOST_NOTES = 20
"""Most different notes of one intervention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about the program from the launches of the baseline."""

    packages: Mapping[str, str]
    """Versions of the frameworks it imported."""
    cuda: bool
    """Whether it used a GPU."""
    ranks: int = 1
    cores: int = field(default_factory=lambda: available_cores())
    """Processors that this process may use."""
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Application:
    """One intervention in one process: its step callbacks, and the list of its changes."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.refused: list[str] = []
        self.on_step: list[Callable[[int], None]] = []
        """Called before each step from the third on, with its number."""

    def changed(self, what: str) -> None:
        """Record a change to the program; equal changes are listed once."""
        _note(self.applied, what)

    def left(self, why: str) -> None:
        """Record that something was left unchanged, with the reason."""
        _note(self.refused, why)


def _note(notes: list[str], text: str) -> None:
    if text not in notes and len(notes) < MOST_NOTES:
        notes.append(text)


def always(_: Facts) -> str | None:
    """Return None: this intervention always applies."""
    return None


def nothing(_: Facts) -> Mapping[str, str]:
    """Return no variables."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """A change to a program. ``name`` is its name for the user."""

    name: str
    title: str
    """Description in a few words, starting with a small letter."""
    family: str
    """Only one intervention of a family can be active."""
    framework: Framework
    answers: tuple[str, ...]
    """Ids of rules whose findings it may resolve."""
    may_change: str
    """Possible changes to the results of the program."""
    code: str
    """How a user writes it, in about three lines."""
    signs: tuple[str, ...] = ()
    """Signs in the baseline's launches, besides findings, that it addresses (``GARBAGE_COLLECTION``)."""
    evident: bool = False
    """Whether it only changes a setting known to be costly; then it is tried without a finding."""
    by_mean: bool = False
    """Whether it moves time from one step to others (prefetched batches, garbage collection), so that only the mean of
    all steps shows its gain."""
    effort: float = 1.0
    """How much longer it takes to try than other interventions: each launch compiles the model."""
    after: str = ""
    """Intervention that is tried before it if both have the same promise, because its change goes further."""
    applies: Callable[[Facts], str | None] = always
    """Reason why it cannot help this program, or ``None``."""
    environment: Callable[[Facts], Mapping[str, str]] = nothing
    """Variables set before the program starts."""
    apply: Callable[[Application], None] | None = None
    """Called in the program's process after its framework was imported, before any other code of the program."""


def needs_cuda(facts: Facts) -> str | None:
    """Reason for interventions that need a GPU."""
    return None if facts.cuda else "the program uses no GPU"


def needs_ranks(facts: Facts) -> str | None:
    """Reason for interventions that need several processes."""
    return None if facts.ranks > 1 else "the program has one rank"


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_by_variable(application: Application, name: str) -> None:
    """Record a change made by an environment variable before the process started."""
    application.changed(f"{name}={os.environ[name]}" if name in os.environ else f"{name} was not passed on")
