"""Runs: neighbours on the host lane or on a stream, each of which waited for the previous node.

Most nodes are in a run. A chain of dependencies is followed from run to run instead of from node to node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.critical_path.graph import Graph
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING


class Runs:
    """Chains of dependencies, followed backwards."""

    def __init__(self, graph: Graph, earlier: Int64) -> None:
        """``earlier``: per node, the node that it waited for; ``MISSING`` if unknown."""
        self._sequence = sequence = graph.sequence
        begins = np.ones(len(sequence), bool)
        begins[1:] = earlier[sequence[1:]] != sequence[:-1]
        first = np.flatnonzero(begins)
        self._first = first.data
        self._leads_to = earlier[sequence[first]].data
        self._run = (np.cumsum(begins) - 1).data
        self._position = graph.position.data

    def back(self, node: int) -> tuple[int, int, int, int]:
        """Return (index in ``Graph.sequence`` of the run's first node, index of ``node``, first node, dependency)."""
        position = self._position[node]
        run = self._run[position]
        first = self._first[run]
        return first, position, int(self._sequence[first]), self._leads_to[run]

    def chain(self, node: int) -> Int64:
        """Return ``node`` and everything that its begin depended on, the latest first."""
        pieces = []
        while node != MISSING:
            position = self._position[node]
            run = self._run[position]
            pieces.append((self._first[run], position))
            node = self._leads_to[run]
        return self.nodes(pieces)[0]

    def nodes(self, pieces: Sequence[tuple[int, int]]) -> tuple[Int64, Int64]:
        """Return (nodes from the second index of each piece back to its first, number of the piece)."""
        firsts, lasts = np.array(pieces, np.int64).reshape(-1, 2).T
        counts = lasts - firsts + 1
        piece = np.repeat(np.arange(len(pieces)), counts)
        positions = (lasts + np.cumsum(counts) - counts)[piece] - np.arange(len(piece))
        return self._sequence[positions], piece
