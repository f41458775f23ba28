"""Begins and ends of slices joined: on each track an end closes the slice that was begun last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.readers.perfetto_trace.walk import Int
from perfscope.analyzers.trace.columns import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Slices as rows of their begins, and the rows of their ends."""

    begin: Int
    end: Int
    never_ended: int
    never_begun: int


def pair(track: Int, time: Int, is_end: Array) -> Pairs:
    """Join begins and ends; rows in the order of the file, which decides at equal times. Shapes (n,)."""
    order = np.lexsort((time, track))
    ends, of = is_end[order], track[order]
    order, ends, of, alone = _without_lone_ends(order, ends, of)
    if not len(order):
        none = np.empty(0, np.int64)
        return Pairs(begin=none, end=none, never_ended=0, never_begun=alone)
    depth = _depth(ends, of) + ends  # of a begin after it, of an end before it: the same for the two of a slice
    by_level = np.lexsort((np.arange(len(order)), depth, of))  # on a level begins and ends take turns
    follows = by_level[1:]
    same = (depth[by_level[:-1]] == depth[follows]) & (of[by_level[:-1]] == of[follows])
    joined = same & ~ends[by_level[:-1]] & ends[follows]
    begin, end = order[by_level[:-1][joined]], order[follows[joined]]
    sort = np.argsort(begin, kind="stable")
    return Pairs(begin=begin[sort], end=end[sort], never_ended=int((~ends).sum()) - len(begin), never_begun=alone)


def _depth(ends: Array, track: Int) -> Int:
    """Open slices of the track after each entry; entries sorted by track."""
    total = np.cumsum(np.where(ends, -1, 1))
    first = np.concatenate(([True], np.diff(track) != 0))
    before = np.where(first, total - np.where(ends, -1, 1), 0)
    return total - before[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]


def _without_lone_ends(order: Int, ends: Array, track: Int) -> tuple[Int, Array, Int, int]:
    """Entries without the ends of slices that began before the recording: those that take the depth to a new low."""
    if not ends.any():
        return order, ends, track, 0
    depth = _depth(ends, track)
    # lowest depth so far of the track, 0 before it: shifted apart, so that one pass serves all tracks
    place = np.cumsum(np.concatenate(([0], np.diff(track) != 0)))
    apart = place * (2 * len(order) + 1)
    lowest = np.minimum(np.minimum.accumulate(depth - apart) + apart, 0)
    before = np.concatenate(([0], lowest[:-1]))
    before[np.concatenate(([True], np.diff(track) != 0))] = 0
    lone = ends & (depth < before)
    keep = ~lone
    return order[keep], ends[keep], track[keep], int(lone.sum())
