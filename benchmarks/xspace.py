"""A large XSpace out of a real one, and loops over `jax.profiler.ProfileData` as peers of our reader (`bench.py`)."""

from __future__ import annotations

import gzip
from pathlib import Path

PAUSE_PS = 1_000_000

NAMES = """
from jax.profiler import ProfileData
total = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            event.name, event.start_ns
            total += event.duration_ns
"""
STATS = (
    NAMES
    + """            for name, value in event.stats:
                total += value is None
"""
)


def replicate(source: Path, target: Path, copies: int) -> int:
    """Write ``source`` with the events of each line ``copies`` times; the number of events."""
    from perfscope.analyzers.hlo.protos import decode

    space = decode("xspace.XSpace", gzip.decompress(source.read_bytes()), str(source))
    lines = [line for plane in space.planes for line in plane.lines]
    period = PAUSE_PS + max(event.offset_ps + event.duration_ps for line in lines for event in line.events)
    for line in lines:
        one = type(line)()
        one.events.extend(line.events)
        for _ in range(1, copies):
            for event in one.events:
                event.offset_ps += period
            line.MergeFrom(one)
    target.write_bytes(space.SerializeToString())
    return sum(len(line.events) for line in lines)
