"""What arrays hold more of behind the traced steps of a JAX program than before them, by the stack that made them.

Measured: two device memory profiles, with nothing queued at either. A step that gives back what it takes has the same
count of each stack at both; one that keeps something has as many more as there were steps between.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.hlo.source_frames import is_library
from perfscope.model.memory import SourceLine
from perfscope.model.trace import MISSING, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Buffers of one stack on one device (or several: a profile names each)."""

    on_device: bool
    ordinal: int | None
    stack: tuple[SourceLine, ...]
    """Innermost first, from the user's innermost frame outwards."""
    count_before: int
    count_after: int
    bytes_before: int
    bytes_after: int

    @property
    def grown(self) -> int:
        """Buffers more than before; negative: fewer."""
        return self.count_after - self.count_before

    @property
    def grown_bytes(self) -> int:
        """Bytes more than before."""
        return self.bytes_after - self.bytes_before

    @property
    def place(self) -> SourceLine | None:
        """The user's innermost frame; ``None`` where nothing but libraries is on the stack."""
        return next((one for one in self.stack if not is_library(one.file)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxGrowth:
    """All stacks whose buffers are more or fewer, those that grew by most bytes first."""

    steps: int
    """Steps between the two profiles."""
    bytes_before: int
    bytes_after: int
    stacks: tuple[Growth, ...]

    @property
    def grown_bytes(self) -> int:
        """Bytes more in all: the sum over the stacks."""
        return self.bytes_after - self.bytes_before


_Key = tuple[bool, int, tuple[tuple[str, int, str], ...]]


def jax_growth(trace: Trace) -> JaxGrowth | None:
    """What grew within the traced steps; ``None`` where the two profiles or the steps were not recorded."""
    steps = len(trace.rows["steps"])
    if trace.held_before is None or not steps or not len(trace.rows["held"]):
        return None
    before, after = _buffers(trace.held_before), _buffers(trace)
    none = (0, 0)
    found = [
        Growth(
            on_device=key[0],
            ordinal=None if key[1] == MISSING else key[1],
            stack=tuple(SourceLine(file=file, line=None if line == MISSING else line, function=name)
                        for file, line, name in key[2]),
            count_before=before.get(key, none)[0],
            count_after=after.get(key, none)[0],
            bytes_before=before.get(key, none)[1],
            bytes_after=after.get(key, none)[1],
        )
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]  # fmt: skip
    return JaxGrowth(
        steps=steps,
        bytes_before=sum(size for _, size in before.values()),
        bytes_after=sum(size for _, size in after.values()),
        stacks=tuple(sorted(found, key=lambda one: (-one.grown_bytes, -one.grown))),
    )


def _buffers(trace: Trace) -> dict[_Key, tuple[int, int]]:
    """Count and bytes of the buffers, not the programs, by device and stack."""
    held, frames = trace.rows["held"], trace.rows["frames"]
    stacks: dict[int, tuple[tuple[str, int, str], ...]] = {MISSING: ()}

    def stack(row: int) -> tuple[tuple[str, int, str], ...]:
        if row not in stacks:
            walked, at = [], row
            while at != MISSING:
                walked.append((trace.text(int(frames["file"][at])), int(frames["line"][at]),
                               trace.text(int(frames["name"][at]))))  # fmt: skip
                at = int(frames["parent"][at])
            stacks[row] = tuple(walked)
        return stacks[row]

    found: dict[_Key, tuple[int, int]] = {}
    columns = (held[name].tolist() for name in ("on_device", "ordinal", "kind", "frame", "count", "bytes"))
    for on_device, ordinal, kind, frame, count, size in zip(*columns, strict=True):
        if trace.text(kind) != "buffer":
            continue
        key = (on_device, ordinal, stack(frame))
        known = found.get(key, (0, 0))
        found[key] = (known[0] + count, known[1] + size)
    return found
