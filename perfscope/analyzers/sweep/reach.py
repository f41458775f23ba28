"""Up to which size each choice fits, as far as was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.sweep.point import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far one choice goes along one size, all else held."""

    rest: str
    """``policy=dots``: what is held; empty where the size is all that is swept."""
    axis: str
    memory_bytes: int | None
    fits_to: int | None
    """The largest value up to which every value that was tried fits; None if not even the least does."""
    first_that_does_not: int | None
    """None where all that were judged fit."""
    not_known: tuple[int, ...]
    """Values that failed or were not reached, in order: what lies beyond the first of them is not claimed."""
    fits_again: tuple[int, ...]
    """Values that fit though a smaller one does not."""
    most_tried: int


def reaches(sizes: Sequence[str], points: Sequence[Point]) -> tuple[Reach, ...]:
    """One for each size axis and everything that is held beside it, in the order of the points."""
    found = []
    for axis in sizes:
        lines: dict[str, list[Point]] = {}
        for point in points:
            rest = tuple(name for name, _ in point.settings if name != axis)
            lines.setdefault(point.words(rest), []).append(point)
        found += [_reach(axis, rest, line) for rest, line in lines.items() if len(line) > 1]
    return tuple(found)


def _reach(axis: str, rest: str, points: Sequence[Point]) -> Reach:
    line = sorted(((int(point.value(axis) or 0), point) for point in points), key=lambda one: one[0])
    fits_to: int | None = None
    refused: int | None = None
    unknown: list[int] = []
    again: list[int] = []
    for value, point in line:
        if point.state == "fits":
            if refused is not None:
                again.append(value)
            elif not unknown:
                fits_to = value
        elif point.state == "does not fit":
            refused = value if refused is None else refused
        else:
            unknown.append(value)
    memory = next((point.memory_bytes for _, point in line if point.memory_bytes is not None), None)
    return Reach(
        rest=rest,
        axis=axis,
        memory_bytes=memory,
        fits_to=fits_to,
        first_that_does_not=refused,
        not_known=tuple(unknown),
        fits_again=tuple(again),
        most_tried=line[-1][0],
    )
