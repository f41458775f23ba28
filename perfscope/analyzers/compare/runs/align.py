"""Which work of the base is which of the head: exact key first, then level by level with less of it.

A level pairs only what the levels before left over, so work that is there on both sides is never taken for something
that is new. From ``OTHER_KERNEL`` on, a match may hold several keys on a side: three kernels against one is a fusion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import PurePath

from perfscope.analyzers.compare.runs.keys import Key, Level, Signature, signature

MOST_PAIRS = 100_000
"""Pairs of lines of one op in one function that are weighed; generated code with more is paired in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Keys that are the same work. ``level`` is ``None`` where one side has nothing: it is new, or gone."""

    base: tuple[Key, ...]
    head: tuple[Key, ...]
    level: Level | None


def align(base: Iterable[Key], head: Iterable[Key]) -> tuple[Match, ...]:
    """Every key of both sides in exactly one match; keys that differ in nothing are given once."""
    left, right = dict.fromkeys(base), dict.fromkeys(head)
    files = same_files({key.file for key in left}, {key.file for key in right})
    shifts = _line_shifts(left, right, files)
    matches: list[Match] = []
    for level in Level:
        by_line = level <= Level.RENAMED
        mine = _buckets(left, level, files, shifts if by_line else None)
        theirs = _buckets(right, level, {})
        for shared in (sign for sign in mine if sign in theirs):
            pairs: Iterable[tuple[Sequence[Key], Sequence[Key]]] = [(mine[shared], theirs[shared])]
            if level is Level.MOVED:
                pairs = [((key,), (other,)) for key, other in _by_line(mine[shared], theirs[shared], shifts)]
            for ours, others in pairs:
                matches.append(Match(base=tuple(ours), head=tuple(others), level=level))
                for key in ours:
                    del left[key]
                for key in others:
                    del right[key]
    matches += [Match(base=(key,), head=(), level=None) for key in left]
    matches += [Match(base=(), head=(key,), level=None) for key in right]
    return tuple(matches)


_Shifts = Mapping[str, Sequence[tuple[int, int]]]
"""By file: (line in base, lines it moved by), in order of the lines."""


def _buckets(
    keys: Iterable[Key], level: Level, files: Mapping[str, str], shifts: _Shifts | None = None
) -> dict[Signature, list[Key]]:
    """Keys by what they share at a level; with ``shifts`` at the lines to which the code around them moved."""
    result: dict[Signature, list[Key]] = defaultdict(list)
    for key in keys:
        moved = _shift_at(shifts.get(key.file, ()), key.line) if shifts and key.line >= 0 else 0
        file = files.get(key.file, key.file)
        same = key if not moved and file == key.file else replace(key, line=key.line + moved, file=file)
        sign = signature(same, level)
        if sign is not None:
            result[sign].append(key)
    return result


def same_files(base: set[str], head: set[str]) -> dict[str, str]:
    """Files of the base that lie elsewhere in the head (another checkout): the one whose path ends most alike.

    Files that are on both sides are themselves; of those with no single best partner nothing is said.
    """
    result: dict[str, str] = {}
    lost = base - head
    by_name: dict[str, list[str]] = defaultdict(list)
    for file in head - base:
        by_name[PurePath(file).name].append(file)
    for file in sorted(lost):
        alike = sorted((_shared_tail(file, other), other) for other in by_name.get(PurePath(file).name, ()))
        if alike and (len(alike) == 1 or alike[-1][0] > alike[-2][0]) and alike[-1][1] not in result.values():
            result[file] = alike[-1][1]
    return result


def _shared_tail(file: str, other: str) -> int:
    """Parts of two paths that are the same, counted from their ends."""
    pairs = zip(reversed(PurePath(file).parts), reversed(PurePath(other).parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _line_shifts(base: Iterable[Key], head: Iterable[Key], files: Mapping[str, str]) -> _Shifts:
    """How the lines of each file moved, as far as keys say it that can only be one another."""
    mine, theirs = _buckets(base, Level.MOVED, files), _buckets(head, Level.MOVED, {})
    result: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for shared in mine.keys() & theirs.keys():
        lines, others = {key.line for key in mine[shared]}, {key.line for key in theirs[shared]}
        if len(lines) == len(others) == 1:
            line = lines.pop()
            result[mine[shared][0].file].add((line, others.pop() - line))
    return {file: sorted(shifts) for file, shifts in result.items()}


def _by_line(base: Sequence[Key], head: Sequence[Key], shifts: _Shifts) -> list[tuple[Key, Key]]:
    """Pairs of keys that differ in their line, the nearest to where the lines around it moved to first."""
    if len(base) * len(head) > MOST_PAIRS:
        ordered = (sorted(keys, key=lambda key: key.line) for keys in (base, head))
        return list(zip(*ordered, strict=False))
    candidates = sorted(
        (
            (abs(key.line + _shift_at(shifts.get(key.file, ()), key.line) - other.line), index, number)
            for index, key in enumerate(base)
            for number, other in enumerate(head)
        ),
    )
    used_base: set[int] = set()
    used_head: set[int] = set()
    pairs = []
    for _, index, number in candidates:
        if index not in used_base and number not in used_head:
            used_base.add(index)
            used_head.add(number)
            pairs.append((base[index], head[number]))
    return pairs


def _shift_at(shifts: Sequence[tuple[int, int]], line: int) -> int:
    """How far the nearest line above moved; the nearest below where there is none above; 0 without any."""
    above = [moved for index, moved in shifts if index <= line]
    if above:
        return above[-1]
    return shifts[0][1] if shifts else 0
