"""Matching of the launches of two programs: groups of launches with the same work, mostly one launch per side.

Matching goes from strict to loose. First come launches with the same computation at the same place, told apart by their
inputs and consumers, then by order; then launches that share most of their ops, in any fusion; then launches whose
result is the same op. A launch that is left joins the group with most of its ops: it left a fusion or joined one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from perfscope.analyzers.compare.programs.keys import CHEAP, CHEAP_WEIGHT, OpKey, aligned

MOST_HOLDERS = 64
"""Maximum number of launches per side that hold one op; an op in more launches does not distinguish them."""

MOST_PAIRS = 2_000_000
"""Maximum number of weighed pairs of launches, the rarest ops first. Unusual programs have thousands."""

LEAST_SHARE = 0.25
"""Smallest share of a launch's ops in a group for the launch to join it."""


UnitT = TypeVar("UnitT")

_Strip = Callable[[OpKey], OpKey] | None


class Launch(Struct, Generic[UnitT], frozen=True, eq=False):
    """A launch of a program or a plan, with the features that are matched."""

    unit: UnitT
    digest: str
    """Digest of the whole computation, without names and places."""
    ops: Counter[OpKey]
    result: OpKey
    """Op whose value the launch writes."""
    reads: Sequence[int] = ()
    """Launches of its side whose values it reads."""
    is_collective: bool = False


class Group(Struct, Generic[UnitT], frozen=True, eq=False):
    """Launches of both sides with the same work; one side may be empty."""

    base: tuple[UnitT, ...]
    head: tuple[UnitT, ...]
    same: bool = False
    """Whether there is one launch per side and all known facts agree."""


def matched(base: Sequence[Launch[UnitT]], head: Sequence[Launch[UnitT]]) -> list[Group[UnitT]]:
    """Return groups with every launch of both sides exactly once, in the head's order. About n log n of n ops.

    Keys count lines as the head does.
    """
    left, right = _Side(base), _Side(head)
    pairs: list[tuple[int, int]] = []
    for keys in (left.contexts, right.contexts), (left.exact, right.exact):
        pairs += _alike(left, right, *keys)
    pairs += _in_sequence(left, right)
    same = set(pairs)
    for strip in (None, OpKey.without_shape, OpKey.without_line):
        pairs += _by_ops(left, right, strip)
    pairs += _by_result(left, right)
    return [
        Group(
            tuple(base[row].unit for row in sorted(mine)),
            tuple(head[row].unit for row in sorted(theirs)),
            same=len(mine) == len(theirs) == 1 and (mine[0], theirs[0]) in same,
        )
        for mine, theirs in _joined(left, right, pairs)
    ]


class _Side:
    """A program's launches with their keys; ``left``: launches without a partner so far."""

    def __init__(self, launches: Sequence[Launch[UnitT]]) -> None:
        self.left = dict.fromkeys(range(len(launches)))
        self.ops = [launch.ops for launch in launches]
        self.results = [launch.result for launch in launches]
        self.collective = [launch.is_collective for launch in launches]
        self.exact: list[Hashable] = [(launch.digest, launch.result) for launch in launches]
        plain = [hash(key) for key in self.exact]
        read_by: list[list[int]] = [[] for _ in launches]
        for number, launch in enumerate(launches):
            for source in launch.reads:
                read_by[source].append(plain[number])
        self.contexts: list[Hashable] = [
            (key, tuple(plain[source] for source in launch.reads), tuple(sorted(read_by[number])))
            for number, (key, launch) in enumerate(zip(self.exact, launches, strict=True))
        ]


def _take(left: _Side, right: _Side, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    for one, other in pairs:
        del left.left[one]
        del right.left[other]
    return pairs


def _alike(left: _Side, right: _Side, mine: Sequence[Hashable], theirs: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pair launches of one key in order, if both sides have the same number of them."""
    buckets = _buckets(left.left, mine.__getitem__), _buckets(right.left, theirs.__getitem__)
    pairs = []
    for key, rows in buckets[0].items():
        others = buckets[1].get(key, ())
        if len(others) == len(rows):
            pairs += list(zip(rows, others, strict=True))
    return _take(left, right, pairs)


def _buckets(rows: Iterable[int], key: Callable[[int], Hashable]) -> dict[Hashable, list[int]]:
    result: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        result[key(row)].append(row)
    return result


def _in_sequence(left: _Side, right: _Side) -> list[tuple[int, int]]:
    """Pair equal launches with unequal counts by their neighbours on both sides."""
    rows = list(left.left), list(right.left)
    aligned_pairs = aligned([left.exact[row] for row in rows[0]], [right.exact[row] for row in rows[1]])
    pairs = _take(left, right, [(rows[0][one], rows[1][other]) for one, other in aligned_pairs])
    buckets = _buckets(left.left, left.exact.__getitem__), _buckets(right.left, right.exact.__getitem__)
    rest = [pair for key, rows in buckets[0].items() for pair in zip(rows, buckets[1].get(key, ()), strict=False)]
    return pairs + _take(left, right, rest)


def _weight(key: OpKey) -> float:
    """Return how strongly an op identifies its launch."""
    return CHEAP_WEIGHT if key.opcode in CHEAP else 1.0


def _counts(side: _Side, row: int, strip: _Strip) -> Counter[OpKey]:
    if strip is None:
        return side.ops[row]
    result: Counter[OpKey] = Counter()
    for key, count in side.ops[row].items():
        result[strip(key)] += count
    return result


def _shared(
    mine: Sequence[tuple[int, Counter[OpKey]]], theirs: Sequence[tuple[int, Counter[OpKey]]]
) -> dict[tuple[int, int], float]:
    """Return the weight of the ops that two launches share, without ops that very many launches hold."""
    holders: tuple[dict[OpKey, list[int]], dict[OpKey, list[int]]] = (defaultdict(list), defaultdict(list))
    for side, counted in zip(holders, (mine, theirs), strict=True):
        for index, (_, counts) in enumerate(counted):
            for key in counts:
                side[key].append(index)
    result: dict[tuple[int, int], float] = defaultdict(float)
    shared = ((key, rows, holders[1].get(key, [])) for key, rows in holders[0].items())
    distinctive = (
        shared_op for shared_op in shared if shared_op[2] and max(len(shared_op[1]), len(shared_op[2])) <= MOST_HOLDERS
    )
    room = MOST_PAIRS
    for key, rows, others in sorted(distinctive, key=lambda shared_op: len(shared_op[1]) * len(shared_op[2])):
        room -= len(rows) * len(others)
        if room < 0:
            break
        for row in rows:
            for other in others:
                result[row, other] += _weight(key) * min(mine[row][1][key], theirs[other][1][key])
    return result


def _size(counts: Counter[OpKey]) -> float:
    return sum(_weight(key) * count for key, count in counts.items()) or 1.0


def _by_ops(left: _Side, right: _Side, strip: _Strip) -> list[tuple[int, int]]:
    """Pair launches one to one, those with the largest shared part first."""
    mine = [(row, _counts(left, row, strip)) for row in left.left]
    theirs = [(row, _counts(right, row, strip)) for row in right.left]
    sizes = [_size(counts) for _, counts in mine], [_size(counts) for _, counts in theirs]
    rated = []
    for (one, other), amount in _shared(mine, theirs).items():
        share = amount / (sizes[0][one] + sizes[1][other] - amount)
        least, most = sorted((sizes[0][one], sizes[1][other]))
        if amount >= LEAST_SHARE * least and (amount >= 1 or amount >= most / 2):
            rated.append((-share, -amount, abs(one - other), one, other))
    pairs, used = [], (set[int](), set[int]())
    for _, _, _, one, other in sorted(rated):
        if (
            one not in used[0]
            and other not in used[1]
            and left.collective[mine[one][0]] == right.collective[theirs[other][0]]
        ):
            used[0].add(one)
            used[1].add(other)
            pairs.append((mine[one][0], theirs[other][0]))
    return _take(left, right, pairs)


def _by_result(left: _Side, right: _Side) -> list[tuple[int, int]]:
    """Pair launches without a known op by their result: the same op at the same line, else the next of its kind."""
    pairs: list[tuple[int, int]] = []
    strips: tuple[Callable[[OpKey], Hashable], ...] = (
        lambda key: (key.path, key.phase, key.primitive, key.opcode, key.file, key.line),
        lambda key: (key.path, key.phase, key.primitive, key.opcode, key.shape),
    )
    for strip in strips:
        rows = [[row for row in side.left if side.results[row].primitive] for side in (left, right)]
        keys = [
            [strip(side.results[row]) for row in side_rows] for side, side_rows in zip((left, right), rows, strict=True)
        ]
        aligned_pairs = aligned(*keys)
        pairs += _take(left, right, [(rows[0][one], rows[1][other]) for one, other in aligned_pairs])
    return pairs


def _joined(left: _Side, right: _Side, pairs: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Return groups from the pairs and the rest of each side: in the group with most of its ops, else alone."""
    groups: list[tuple[list[int], list[int]]] = [([one], [other]) for one, other in pairs]
    changed = [(index, one, other) for index, (one, other) in enumerate(pairs) if left.exact[one] != right.exact[other]]
    alone: list[tuple[list[int], list[int]]] = []
    for side, other_side, which in ((right, left, 1), (left, right, 0)):
        rows = list(side.left)
        homes = [(pair[1 - which], pair[which]) for _, *pair in changed]
        for row, home in zip(rows, _homes(side, rows, other_side, homes), strict=True):
            if home is not None:
                groups[changed[home][0]][which].append(row)
            else:
                alone.append(([], [row]) if which else ([row], []))
    return sorted([*groups, *alone], key=lambda group: (min(group[1], default=1 << 60), min(group[0], default=0)))


def _homes(side: _Side, rows: Sequence[int], other: _Side, homes: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return, for each launch without a partner, the changed launch of the other side with most of its ops.

    ``homes``: (the changed launch, its partner on this side). With equal counts, take the launch whose partner is next
    to it in the program.
    """
    result: list[int | None] = [None] * len(rows)
    for strip in (None, OpKey.without_line):
        left = [index for index, home in enumerate(result) if home is None]
        mine = [(index, _counts(side, rows[index], strip)) for index in left]
        theirs = [(row, _counts(other, row, strip)) for row, _ in homes]
        best: dict[int, tuple[float, int, int]] = {}
        for (one, home), amount in _shared(mine, theirs).items():
            row = rows[mine[one][0]]
            if side.collective[row] == other.collective[homes[home][0]]:
                rated = (-amount, abs(homes[home][1] - row), home)
                best[one] = min(best.get(one, rated), rated)
        for one, (amount, _, home) in best.items():
            if -amount >= LEAST_SHARE * _size(mine[one][1]):
                result[mine[one][0]] = home
    return result
