"""Lines of one statement, or of statements next to each other, as one place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

NEAR_LINES = 2
"""Largest distance between two lines of one place: arguments of a call and metrics of a record have a line each, some
with a comment or a plain value between them.
"""

_T = TypeVar("_T")


class Place(NamedTuple):
    """An executed line, and what only lines of one group share (the kind of an op, the function)."""

    group: Hashable
    file: str | None
    line: int | None


def by_place(held: Mapping[Place, _T]) -> list[dict[Place, _T]]:
    """Divide values into those of near lines of one group and file; in the order of their first values.

    A place without a file or line is single.
    """
    numbered = [place for place in held if place.file is not None and place.line is not None]
    first: dict[Place, Place] = {}
    before: dict[tuple[Hashable, str | None], Place] = {}
    for place in sorted(numbered, key=lambda place: place.line or 0):
        key = place.group, place.file
        last = before.get(key)
        near = last is not None and (place.line or 0) - (last.line or 0) <= NEAR_LINES
        first[place] = first[last] if near and last is not None else place
        before[key] = place
    result: dict[Place, dict[Place, _T]] = {}
    for place, value in held.items():
        result.setdefault(first.get(place, place), {})[place] = value
    return list(result.values())


def lines_in_words(places: Iterable[Place]) -> str:
    """Return the lines of a place for the end of a title; empty for one line."""
    lines = sorted({place.line for place in places if place.line is not None})
    return f", lines {lines[0]} to {lines[-1]}" if len(lines) > 1 else ""
