"""What runs beside what at the high end of the range, for a picture: the program, and turns of its longest loops."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.predict.levels import Level
from perfscope.analyzers.predict.model import StreamPicture, StreamSpan

MOST_SPANS = 200
"""Stretches of a picture, the longest; what is beyond is counted."""

MOST_LOOPS = 2
"""Loops whose turn is drawn: the forward and the backward of the layers."""


def pictures(top: Level, names: Mapping[int, str]) -> tuple[StreamPicture, ...]:
    """The program, then the loops that take longest, of those in which more than one stream is at work."""
    found: dict[str, tuple[int, StreamPicture]] = {}
    waiting = [(top, 1)]
    seen = {top.computation.name}
    while waiting:
        level, runs = waiting.pop()
        for piece in level.pieces:
            for inner, turns in piece.inside:
                name = inner.computation.name
                if name in seen:
                    continue
                seen.add(name)
                waiting.append((inner, runs * turns))
                if len({one.stream for one in inner.pieces}) > 1:
                    drawn = _picture(inner, names, piece.instruction.name, turns)
                    found[name] = (inner.time.high * runs * turns, drawn)
    longest = sorted(found.values(), key=lambda pair: -pair[0])[:MOST_LOOPS]
    return (_picture(top, names, "", 1), *(drawn for _, drawn in longest))


def _picture(level: Level, names: Mapping[int, str], of: str, turns: int) -> StreamPicture:
    found = []
    for index, piece in enumerate(level.pieces):
        start, end = level.high.starts[index], level.high.ends[index]
        if end > start:
            found.append(
                StreamSpan(
                    stream=names.get(piece.stream, "other"),
                    kind=piece.kind,
                    start=start,
                    end=end,
                    label=piece.instruction.name,
                    repeats=max((count for _, count in piece.inside), default=1),
                )
            )
    kept = sorted(sorted(found, key=lambda one: one.start - one.end)[:MOST_SPANS], key=lambda one: one.start)
    return StreamPicture(
        of=of, turns=turns, length_ns=level.high.makespan, spans=tuple(kept), left=len(found) - len(kept)
    )
