"""Two sequences side by side: what is there once on both sides is an anchor, and between anchors it is repeated."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence

MOST_DEEP = 64
"""Times that the pieces between anchors are looked into again; programs need three or four."""


def aligned(base: Sequence[Hashable], head: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of positions with equal items, rising on both sides: about n log n of n items.

    Equal beginnings and ends are paired first, then items that are there once on both sides, in the longest order that
    both share (as in patience diff); what repeats between them is paired in order.
    """
    pairs: list[tuple[int, int]] = []
    waiting = [(0, len(base), 0, len(head), 0)]
    while waiting:
        left, right, low, high, depth = waiting.pop()
        while left < right and low < high and base[left] == head[low]:
            pairs.append((left, low))
            left, low = left + 1, low + 1
        while left < right and low < high and base[right - 1] == head[high - 1]:
            right, high = right - 1, high - 1
            pairs.append((right, high))
        if left == right or low == high:
            continue
        anchors = _anchors(base, head, left, right, low, high) if depth < MOST_DEEP else []
        if not anchors:
            pairs += _in_order(base, head, left, right, low, high)
            continue
        for one, other in [*anchors, (right, high)]:
            waiting.append((left, one, low, other, depth + 1))
            left, low = one + 1, other + 1
        pairs += anchors
    return sorted(pairs)


def _anchors(
    base: Sequence[Hashable], head: Sequence[Hashable], left: int, right: int, low: int, high: int
) -> list[tuple[int, int]]:
    """Items that are there once on both sides, in the longest order that both have."""
    mine, theirs = Counter(base[left:right]), Counter(head[low:high])
    place = {head[at]: at for at in range(low, high) if theirs[head[at]] == 1}
    shared = [(at, place[base[at]]) for at in range(left, right) if mine[base[at]] == 1 and base[at] in place]
    return longest_rising(shared)


def longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of pairs that rise on the left, the longest run that rises on the right too."""
    tails: list[int] = []
    at_tail: list[int] = []
    before: list[int] = []
    for number, (_, value) in enumerate(pairs):
        place = bisect_left(tails, value)
        before.append(at_tail[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            at_tail.append(number)
        else:
            tails[place], at_tail[place] = value, number
    found: list[tuple[int, int]] = []
    number = at_tail[-1] if at_tail else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _in_order(
    base: Sequence[Hashable], head: Sequence[Hashable], left: int, right: int, low: int, high: int
) -> list[tuple[int, int]]:
    """Repeated items, each with the next equal one."""
    places: dict[Hashable, list[int]] = {}
    for at in range(low, high):
        places.setdefault(head[at], []).append(at)
    pairs, last = [], low
    for at in range(left, right):
        rows = places.get(base[at], [])
        next_one = bisect_left(rows, last)
        if next_one < len(rows):
            pairs.append((at, rows[next_one]))
            last = rows[next_one] + 1
    return pairs
