"""One part of the time of a trace's steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfscope.analyzers.compare.keys import Key
from perfscope.analyzers.trace import MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """All work of one key in the window, over all its steps."""

    key: Key
    own_ns: int
    """Time that is this part's alone: no moment is in two parts."""
    calls: int
    """How often it ran, counted by when it was asked for; 0 where counting makes no sense (idle time)."""
    busy_ns: int
    """Summed durations of the counted ones: more than ``own_ns`` where other work ran beside it or inside it."""
    example: int = MISSING
    """Row of ``slices`` that asked for one of them."""

    @property
    def countable(self) -> bool:
        """Whether ``calls`` follows from the program: of ops and device work, not of gaps and runtime internals."""
        return self.key.kind in ("compute", "communication", "copy") or (self.key.kind == "host" and bool(self.key.op))


def summed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of one key as one, those that take most time first."""
    found: dict[Key, list[int]] = {}
    for part in parts:
        held = found.setdefault(part.key, [0, 0, 0, part.example])
        held[0] += part.own_ns
        held[1] += part.calls
        held[2] += part.busy_ns
    rows = [
        Part(key=key, own_ns=own, calls=calls, busy_ns=busy, example=example)
        for key, (own, calls, busy, example) in found.items()
    ]
    return tuple(sorted(rows, key=lambda part: (-part.own_ns, -part.calls, part.key.name())))
