"""What belongs together in the op graph of a PyTorch step: calls of modules, their backward, readers of storages."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfscope.analyzers.advice.torch_checkpointing import Repeats, repeats
from perfscope.analyzers.advice.torch_regions import Call, inside
from perfscope.model.op_graph import GraphOp, GraphStorage, OpGraph, taken_over


@dataclass(slots=True)
class Readers:
    """Who reads a storage: regions whose backward does, and the ops."""

    regions: set[int | None] = field(default_factory=set)
    last_forward: int = -1
    last_backward: int = -1
    last_again: int = -1
    """Last of the forward ops that were run again, by the op they repeat."""


class StepJoins:
    """Joins of one graph, worked out once."""

    def __init__(self, graph: OpGraph, storages: tuple[GraphStorage, ...], calls: Sequence[Call]) -> None:
        self.graph, self.storages, self.calls = graph, storages, calls
        self.again: Repeats = repeats(graph, calls)
        # Positions leave out what ran again.
        kept = np.array([not op.recompute for op in graph.ops], np.int64)
        self.at: list[int] = [0, *np.cumsum(kept).tolist()]
        self.call_of_op = self._calls_of_ops()
        self.node_end = self._node_ends()
        self.backward = self._backward_intervals()
        self.readers = self._all_readers()
        self.taken_over = taken_over(graph, storages)
        self.gradients = self._gradients()
        # Counts ops with work, to tell how long a storage outlives a moment.
        self.work = np.concatenate(([0], np.cumsum([not op.view and not op.recompute for op in graph.ops])))

    def reads_saved(self, op: GraphOp) -> bool:
        """True for a backward op that reads what the forward or the program made."""
        if op.phase != "backward" or op.recompute or op.view:
            return False
        return any(self._is_saved(self.graph.tensors[index].storage) for index in op.inputs)

    def is_read(self, index: int) -> bool:
        """True if the backward reads a storage."""
        return self.readers[index].last_backward >= 0

    def work_between(self, first: int, last: int) -> int:
        """Ops with work between two of them."""
        return int(self.work[max(first, last)] - self.work[first])

    def _is_saved(self, storage: int) -> bool:
        born = self.storages[storage].born
        if born is None:
            return True
        made = self.graph.ops[born]
        return made.phase in ("forward", "other") or made.recompute

    def _calls_of_ops(self) -> dict[int, int]:
        """By op (forward, repeated, backward) the call it belongs to."""
        found: dict[int, int] = {}
        by_sequence: dict[int, int] = {}
        for place, call in enumerate(self.calls):
            for op in self.graph.ops[call.first : call.last]:
                if op.phase == "forward":
                    found[op.index] = place
                    if op.sequence is not None:
                        by_sequence[op.sequence] = place
        for again, first in self.again.of_op.items():
            if first in found:
                found[again] = found[first]
        for op in self.graph.ops:
            if op.recompute and op.index in found and op.sequence is not None:
                by_sequence.setdefault(op.sequence, found[op.index])
        sequences = sorted(by_sequence)
        for op in self.graph.ops:
            if op.phase == "backward" and not op.recompute and op.sequence is not None:
                of_backward = self._call_of_backward(op, by_sequence, sequences)
                if of_backward is not None:
                    found[op.index] = of_backward
        return found

    def _call_of_backward(self, op: GraphOp, by_sequence: dict[int, int], sequences: list[int]) -> int | None:
        """By its sequence number; a number that no op of the graph has is told by the module and the next number."""
        number = op.sequence or 0
        if number in by_sequence:
            return by_sequence[number]
        near = bisect_left(sequences, number)
        for one in sequences[max(0, near - 1) : near + 1]:
            if inside(op.module, self.calls[by_sequence[one]].module):
                return by_sequence[one]
        return None

    def _node_ends(self) -> list[int]:
        """Of each op: behind the last op of the autograd node that runs it."""
        ends = list(range(1, len(self.graph.ops) + 1))
        for index in range(len(self.graph.ops) - 2, -1, -1):
            here, after = self.graph.ops[index], self.graph.ops[index + 1]
            if here.phase == after.phase == "backward" and here.sequence == after.sequence is not None:
                ends[index] = ends[index + 1]
        return ends

    def _backward_intervals(self) -> dict[int, tuple[int, int]]:
        """By call: from the first node of its backward that reads what was saved to its last op."""
        found: dict[int, tuple[int, int]] = {}
        for op in self.graph.ops:
            place = self.call_of_op.get(op.index)
            if place is None or op.phase != "backward" or op.recompute or op.view:
                continue
            if place not in found and not self.reads_saved(op):
                continue
            found[place] = (found.get(place, (op.index, 0))[0], op.index + 1)
        return {place: (self._node_start(first), last) for place, (first, last) in found.items()}

    def _node_start(self, index: int) -> int:
        """The first op of the node that runs op ``index``, as far as nothing else ran between."""
        sequence = self.graph.ops[index].sequence
        while index and sequence is not None:
            before = self.graph.ops[index - 1]
            if before.phase != "backward" or before.recompute or before.sequence != sequence:
                break
            index -= 1
        return index

    def _all_readers(self) -> dict[int, Readers]:
        found: dict[int, Readers] = defaultdict(Readers)
        for op in self.graph.ops:
            for index in op.inputs:
                one = found[self.graph.tensors[index].storage]
                if op.recompute:
                    if not op.view:
                        one.last_again = op.index
                elif op.phase == "backward":
                    if not op.view:
                        one.regions.add(self.call_of_op.get(op.index))
                        one.last_backward = op.index
                elif op.phase in ("forward", "other"):
                    one.last_forward = op.index
        return found

    def _gradients(self) -> frozenset[int]:
        """Storages made in the backward that the optimizer reads or that outlive the step."""
        read = {
            self.graph.tensors[index].storage for op in self.graph.ops if op.phase == "optimizer" for index in op.inputs
        }
        return frozenset(
            index
            for index, storage in enumerate(self.storages)
            if storage.born is not None
            and self.graph.ops[storage.born].phase == "backward"
            and not self.graph.ops[storage.born].recompute
            and (index in read or storage.died is None)
        )
