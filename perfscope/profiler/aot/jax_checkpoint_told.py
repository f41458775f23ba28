"""What became of each place of a program under ``--checkpoint``, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfscope.profiler.aot.jax_checkpoint_sites import Kind
from perfscope.profiler.aot.jax_seen_lines import Line

How = Literal["wrapped", "replaced", "removed", "left"]
VERBS: dict[How, str] = {"wrapped": "checkpointed", "replaced": "under this policy", "removed": "taken out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one place."""

    kind: Kind
    how: How
    at: Line | None
    written: Line | None
    count: int
    why: str = ""
    """Why it was left."""

    def words(self) -> str:
        """``the scan at train.py:35 (12 turns)``."""
        place = "" if self.at is None else f" at {self.at}"
        if self.kind == "scan":
            return f"the scan{place} ({self.count:,} turns)"
        if self.kind == "calls":
            written = "" if self.written is None else f" of {self.written}"
            return f"the function{written} that is called {self.count:,} times alike{place}"
        return f"the checkpoint{place}"

    def note(self, option: str) -> str:
        """A line of the report; ``option``: ``--checkpoint full``."""
        if self.how == "left":
            return f"{option}: left as it is: {self.words()}: {self.why}"
        return f"{option}: {self.words()}: {VERBS[self.how]}"
