"""Which ops of a recorded step are run again by checkpointing, and which forward op each of them repeats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.advice.torch_regions import Call, inside
from perfscope.model.op_graph import GraphOp, OpGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What checkpointing runs again in the recorded step."""

    of_op: Mapping[int, int]
    """By repeated op (its index) the forward op that it repeats."""
    of_storage: Mapping[int, int]
    """By storage that was made again the one that the forward made."""
    by_call: Mapping[int, frozenset[int]]
    """By call (its place among the calls) the forward ops of it that run again, views aside."""
    unmatched: int
    """Ops that run again and repeat no op of a region: views and copies of the random state aside."""


def repeats(graph: OpGraph, calls: Sequence[Call]) -> Repeats:
    """Lay the repeated ops beside the forward ops of the calls they belong to.

    A repeated op is the op of the same name, module and shapes whose inputs, made again or not, are the same; where
    none has the same inputs, the next in order.
    """
    of_op: dict[int, int] = {}
    of_storage: dict[int, int] = {}
    by_call: dict[int, set[int]] = defaultdict(set)
    done: set[int] = set()
    unmatched = 0
    for stretch in _stretches(graph):
        place = _call_of(stretch, calls, done)
        if place is None:
            unmatched += sum(not op.view for op in stretch)
            continue
        done.add(place)
        waiting: dict[tuple[str, str], list[GraphOp]] = defaultdict(list)
        for op in graph.ops[calls[place].first : calls[place].last]:
            if not op.view:
                waiting[op.name, op.module].append(op)
        for op in stretch:
            if op.view:
                continue
            candidates = waiting[op.name, op.module]
            found = _repeated(graph, op, candidates, of_storage)
            if found is None:
                unmatched += 1
                continue
            candidates.remove(found)
            of_op[op.index] = found.index
            by_call[place].add(found.index)
            for made, first in zip(op.outputs, found.outputs, strict=True):
                if graph.tensors[made].storage != graph.tensors[first].storage:
                    of_storage[graph.tensors[made].storage] = graph.tensors[first].storage
    return Repeats(
        of_op=of_op,
        of_storage=of_storage,
        by_call={place: frozenset(ops) for place, ops in by_call.items()},
        unmatched=unmatched,
    )


def _stretches(graph: OpGraph) -> list[list[GraphOp]]:
    """Repeated ops with no other work between them: one run of one checkpoint each, or of several in a row."""
    found: list[list[GraphOp]] = []
    going = False
    for op in graph.ops:
        if op.recompute:
            if not going:
                found.append([])
            found[-1].append(op)
            going = True
        elif not op.view:
            going = False
    return found


def _call_of(stretch: Sequence[GraphOp], calls: Sequence[Call], done: set[int]) -> int | None:
    """The last call before the stretch of the module that most of its ops are of, and that was not repeated yet."""
    count: dict[int, int] = defaultdict(int)
    for place, call in enumerate(calls):
        if call.last <= stretch[0].index and place not in done:
            count[place] = sum(inside(op.module, call.module) for op in stretch)
    most = max(count.values(), default=0)
    return max((place for place, ops in count.items() if ops == most), default=None) if most else None


def _repeated(graph: OpGraph, op: GraphOp, waiting: Sequence[GraphOp], again: Mapping[int, int]) -> GraphOp | None:
    """The op of the same shapes and inputs among ``waiting``, else the first of the same shapes."""
    alike = [one for one in waiting if _shapes(graph, one) == _shapes(graph, op)]
    read = [again.get(graph.tensors[index].storage, graph.tensors[index].storage) for index in op.inputs]
    same = (one for one in alike if [graph.tensors[index].storage for index in one.inputs] == read)
    return next(same, alike[0] if alike else None)


def _shapes(graph: OpGraph, op: GraphOp) -> list[tuple[int, ...]]:
    return [graph.tensors[index].shape for index in op.outputs]
