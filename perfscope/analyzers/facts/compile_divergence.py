"""Where the ranks of a job part from each other in what they compile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from perfscope.analyzers.facts.compile_sides import Compiled, Side

HeldT = TypeVar("HeldT")

Kind = Literal["collectives", "graphs", "caches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Ranks that part from the others, and the first place where they do."""

    kind: Kind
    others: tuple[Side, ...]
    """The ranks that part."""
    most: tuple[Side, ...]
    """The largest set of ranks that agree (of equal ones that with the lowest rank)."""
    index: int
    """Of the first compilation, or collective, that differs."""
    here: Compiled | None
    """What ``others`` compiled there; ``None``: nothing more."""
    there: Compiled | None
    """What ``most`` compiled there."""
    names: tuple[str | None, str | None] = (None, None)
    """Collectives that differ, of ``others`` and of ``most``."""

    @property
    def wait_ns(self) -> int:
        """The longest that one of these ranks waits for another's compiling.

        Of other graphs the difference of what was spent on compilations that the other side has not; of caches the
        difference of all that was spent.
        """
        if self.kind == "caches":
            totals = [side.total_ns for side in (*self.others, *self.most)]
            return max(totals) - min(totals)
        return max(abs(_alone_ns(one, other) - _alone_ns(other, one)) for one in self.others for other in self.most[:1])


def _alone_ns(side: Side, other: Side) -> int:
    """Time of the compilations of ``side`` that ``other`` has not."""
    theirs = Counter(one.what for one in other.compiles)
    spent = 0
    for one in side.compiles:
        if theirs[one.what]:
            theirs[one.what] -= 1
        else:
            spent += one.total_ns
    return spent


def divergences(sides: Sequence[Side]) -> Iterator[Divergence]:
    """Each set of ranks that parts from the largest one, by the gravest kind that holds of it."""
    told: set[int] = set()
    for kind, key in _KEYS:
        for most, others in _apart([side for side in sides if side.rank not in told], key):
            told.update(side.rank for side in others)
            yield _divergence(kind, most, others)


def _of_collectives(side: Side) -> Hashable:
    return side.collectives


def _of_graphs(side: Side) -> Hashable:
    return tuple(one.what for one in side.compiles)


def _of_caches(side: Side) -> Hashable:
    return tuple(one.caches for one in side.compiles)


_KEYS: tuple[tuple[Kind, Callable[[Side], Hashable]], ...] = (
    ("collectives", _of_collectives),
    ("graphs", _of_graphs),
    ("caches", _of_caches),
)


def _apart(
    sides: Sequence[Side], key: Callable[[Side], Hashable]
) -> Iterator[tuple[tuple[Side, ...], tuple[Side, ...]]]:
    """(The largest set with one key, a smaller set), for each smaller one."""
    groups: dict[Hashable, list[Side]] = defaultdict(list)
    for side in sides:
        groups[key(side)].append(side)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), min(side.rank for side in group)))
    for group in ordered[1:]:
        yield tuple(ordered[0]), tuple(group)


def _divergence(kind: Kind, most: tuple[Side, ...], others: tuple[Side, ...]) -> Divergence:
    ours, theirs = others[0].compiles, most[0].compiles
    if kind == "collectives":
        mine, their = others[0].collectives, most[0].collectives
        at = _first(mine, their)
        return Divergence(
            kind=kind,
            others=others,
            most=most,
            index=at,
            here=_holder(ours, at),
            there=_holder(theirs, at),
            names=(_get(mine, at), _get(their, at)),
        )
    if kind == "graphs":
        at = _first([one.what for one in ours], [one.what for one in theirs])
    else:
        at = _first([one.caches for one in ours], [one.caches for one in theirs])
    return Divergence(kind=kind, others=others, most=most, index=at, here=_get(ours, at), there=_get(theirs, at))


def _first(mine: Sequence[Hashable], their: Sequence[Hashable]) -> int:
    """The first index at which two sequences differ, the end of the shorter one included."""
    return next(
        (index for index, pair in enumerate(zip(mine, their, strict=False)) if pair[0] != pair[1]),
        min(len(mine), len(their)),
    )


def _get(held: Sequence[HeldT], index: int) -> HeldT | None:
    return held[index] if index < len(held) else None


def _holder(compiles: Sequence[Compiled], index: int) -> Compiled | None:
    """The compilation whose graphs hold the collective of that number."""
    for one in compiles:
        if index < len(one.collectives):
            return one
        index -= len(one.collectives)
    return None
