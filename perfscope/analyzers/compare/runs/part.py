"""One part of the time of a trace's steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from perfscope.analyzers.compare.runs.keys import Key
from perfscope.model.trace import MISSING


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
    typical_ns: float = 0.0
    """What it takes where no call of it was disturbed: the median time of a call, times the calls."""
    example: int = MISSING
    """Row of ``slices`` that asked for one of them."""

    @property
    def countable(self) -> bool:
        """Whether ``calls`` follows from the program: of ops and device work, not of gaps and runtime internals."""
        return self.key.kind in ("compute", "communication", "copy") or (self.key.kind == "host" and bool(self.key.op))


def summed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of one key as one, those that take most time first."""
    found: dict[Key, list[Part]] = {}
    for part in parts:
        found.setdefault(part.key, []).append(part)
    rows = [
        Part(
            key=key,
            own_ns=sum(one.own_ns for one in held),
            calls=sum(one.calls for one in held),
            busy_ns=sum(one.busy_ns for one in held),
            typical_ns=_typical(held),
            example=held[0].example,
        )
        for key, held in found.items()
    ]
    return tuple(sorted(rows, key=lambda part: (-part.own_ns, -part.calls, part.key.name())))


def _typical(held: Sequence[Part]) -> float:
    """Of parts of one call each; what is not called (idle time, work that began before the window) counts as it is."""
    each = [one.own_ns for one in held if one.calls]
    if not each:
        return float(sum(one.own_ns for one in held))
    return float(median(each)) * len(each)
