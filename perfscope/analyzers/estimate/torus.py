"""Collectives on the torus of a TPU slice: rings along its axes, both directions where an axis closes.

Devices of a group that differ along some axes of the slice exchange along all of them at once at best, along one line
with an open end at worst. Per link and direction ``b`` bytes/s (How to Scale Your Model, Austin et al. 2025):

========================  ===================================  =======================
all-gather                ``S (n-1)/n / (2 b a)``, ``a`` axes   open line: ``/ b``
all-reduce                twice that
all-to-all                ``S n / 8 / b`` in a ring             open line: ``S n / 4 / b``
collective-permute        ``S / b`` to a neighbour              ``S hops / b``
========================  ===================================  =======================
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from perfscope.analyzers.hardware.target import Target

_WRAPS = {"TPU v5e": 16, "TPU v6e": 16}
"""Length from which an axis closes: a whole pod's. Others close in cubes of 4."""
_CUBE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusTime:
    """Seconds without latency, and steps between neighbours."""

    low: float
    high: float
    steps: tuple[int, int]
    said: str
    known: bool


def torus_seconds(kind: str, moved: int, group: tuple[int, ...], target: Target) -> TorusTime:
    """A collective of ``moved`` bytes (``S``) among ``group``, ids in the order of the slice."""
    node, bandwidth = target.device.node, target.device.link_bandwidth
    lengths = _lengths(group, target)
    axes = [axis for axis, length in enumerate(lengths) if length > 1]
    count = max(1, len(group))
    ports = node.ports if node is not None and node.ports else 2 * max(1, len(target.topology))
    said = f"{'x'.join(str(length) for length in lengths if length > 1) or '1'} of a {target.layout} torus"
    if not bandwidth:
        return TorusTime(low=0.0, high=0.0, steps=(1, 1), said=said, known=False)
    link = bandwidth / ports
    if count < 2:
        return TorusTime(low=0.0, high=0.0, steps=(0, 0), said=said, known=True)
    closed = [axis for axis in axes if _closes(target, axis, lengths[axis])]
    far = max((length - 1 for length in lengths), default=1)
    # low: all axes at once, both directions where a ring closes (an open line's ends have one neighbour)
    reach = link * sum(2 if axis in closed else 1 for axis in axes) if axes else link
    share = (count - 1) / count
    if kind in ("all-to-all", "ragged-all-to-all"):
        longest = max((lengths[axis] for axis in axes), default=count)
        shut = all(lengths[axis] < longest or axis in closed for axis in axes)
        low = moved * longest / (8 if shut else 4) / link / max(1, count // longest)
        high = moved * longest / 4 / link
    elif kind in ("collective-permute", "collective-broadcast"):
        low, high = moved / link, moved * max(1, far) / link
    else:
        twice = 2 if kind == "all-reduce" else 1
        low, high = twice * moved * share / reach, twice * moved * share / link
    steps = sum(length // 2 if axis in closed else length - 1 for axis, length in enumerate(lengths))
    if kind == "all-reduce":
        steps *= 2
    return TorusTime(low=min(low, high), high=high, steps=(1, max(1, steps)), said=said, known=True)


def _lengths(group: tuple[int, ...], target: Target) -> tuple[int, ...]:
    """Different places of the group along each axis; ids count up row by row, the last axis fastest.

    Chips of two devices (TPU7x) hold two neighbouring ids.
    """
    shape = target.topology or (target.count,)
    each = max(1, target.count // max(1, prod(shape)))
    seen: list[set[int]] = [set() for _ in shape]
    for device in group:
        rest = device // each
        for axis in range(len(shape) - 1, -1, -1):
            rest, place = divmod(rest, shape[axis])
            seen[axis].add(place)
    return tuple(len(places) for places in seen)


def _closes(target: Target, axis: int, length: int) -> bool:
    whole = target.topology[axis] if axis < len(target.topology) else length
    if length < whole:
        return False
    wraps = _WRAPS.get(target.device.name)
    return length >= wraps if wraps is not None else length % _CUBE == 0
