"""What an intervention is: a change of a program that is made from outside, while the program runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Framework = Literal["torch", "jax", "any"]

MOST_NOTES = 20
"""Different things that one intervention lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the program from the launches of the baseline."""

    packages: Mapping[str, str]
    """Versions of the frameworks that it imported."""
    cuda: bool
    """Whether it used a GPU."""
    ranks: int = 1
    cores: int = field(default_factory=lambda: available_cores())
    """Processors that this process may use."""
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Application:
    """What one intervention does in one process: the steps it wants to hear of, and the list of its changes."""

    def __init__(self) -> None:
        """Nothing was changed yet."""
        self.applied: list[str] = []
        self.refused: list[str] = []
        self.on_step: list[Callable[[int], None]] = []
        """Called before each step from the third on, with its number."""

    def changed(self, what: str) -> None:
        """The intervention changed something in the program; equal changes are listed once."""
        _note(self.applied, what)

    def left(self, why: str) -> None:
        """It left something as it is, for this reason."""
        _note(self.refused, why)


def _note(notes: list[str], text: str) -> None:
    if text not in notes and len(notes) < MOST_NOTES:
        notes.append(text)


def always(_: Facts) -> str | None:
    """There is no reason against it."""
    return None


def nothing(_: Facts) -> Mapping[str, str]:
    """No variable."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """A change of a program. ``name`` is how a user asks for it."""

    name: str
    title: str
    """What it does, in a few words that begin with a small letter."""
    family: str
    """Of interventions with one family only one can be in effect."""
    framework: Framework
    answers: tuple[str, ...]
    """Ids of rules whose findings it may settle."""
    may_change: str
    """What may change in the results of the program."""
    code: str
    """How a user writes it, in about three lines."""
    signs: tuple[str, ...] = ()
    """What it answers besides findings, of what the baseline's launches show (``GARBAGE_COLLECTION``)."""
    evident: bool = False
    """Whether it changes something only where the program has a setting that is known to cost: there it is tried
    without a finding."""
    by_mean: bool = False
    """Whether it moves time from one step to others (batches in advance, collections of garbage), so that the mean of
    all steps alone tells what is gained."""
    applies: Callable[[Facts], str | None] = always
    """The reason why it cannot help this program, or ``None``."""
    environment: Callable[[Facts], Mapping[str, str]] = nothing
    """Variables that are set before the program starts."""
    apply: Callable[[Application], None] | None = None
    """Called in the program's process when its framework has been imported, and nothing of the program after that."""


def needs_cuda(facts: Facts) -> str | None:
    """For what acts on a GPU alone."""
    return None if facts.cuda else "the program uses no GPU"


def needs_ranks(facts: Facts) -> str | None:
    """For what acts on several processes alone."""
    return None if facts.ranks > 1 else "the program has one rank"


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_by_variable(application: Application, name: str) -> None:
    """The change was made by an environment variable, before the process started."""
    application.changed(f"{name}={os.environ[name]}" if name in os.environ else f"{name} was not passed on")
