"""Work of other ranks and devices that belongs to the same collective or message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.ranks.devices import device_set, process_sets
from perfscope.analyzers.ranks.job import Local, has_ranks
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.model.trace import Trace

Sides = tuple[tuple[Trace, Local], ...]


def peers(traces: Sequence[Trace]) -> Iterator[Sides]:
    """Yield the sides of every matched collective and message: ranks of torch, or devices of JAX processes."""
    if sum(map(has_ranks, traces)) > 1:
        for ranks in rank_sets(traces):
            of_rank = ranks.job.traces
            for matched in ranks.matching.matched:
                yield tuple((of_rank[rank], side) for rank, side in matched.sides.items())
            for pair in ranks.pairing.pairs:
                yield (of_rank[pair.source], pair.send), (of_rank[pair.destination], pair.receive)
    processes = process_sets(traces)
    joined = {id(member.trace) for process in processes for member in process.ranks.job.members}
    for process in processes:
        held = process.ranks.job.traces
        of_device = {place: held[rank] for place, rank in process.rank_at.items()}
        for collective in process.devices.collectives:
            yield tuple((of_device[device], side) for device, side in collective.sides.items())
    for trace in traces:
        alone = None if id(trace) in joined else trace.fact(device_set)
        for collective in alone.collectives if alone is not None else ():
            yield tuple((trace, side) for side in collective.sides.values())
