"""The result of ``estimate``: one modelled run of a program on a target, as a range."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from perfscope.analyzers.devices import Bound, Target
from perfscope.analyzers.predict.assumptions import Assumption
from perfscope.analyzers.predict.levels import Class
from perfscope.analyzers.predict.spans import Kind, Parts, Range
from perfscope.model.finding import Where


class Row(Struct, frozen=True, kw_only=True):
    """A launched instruction."""

    computation: str
    name: str
    opcode: str
    what: Class
    where: Where
    """The user's line, with primitive and scope; for an instruction added by XLA the line that needs it."""
    once: Range
    """Time per run, ns."""
    runs: int
    """Runs per run of the program."""
    runs_exact: bool
    """False: it is in a loop of unknown length, counted as one iteration."""
    bound: Bound
    known: bool
    """False: its time is unknown; the value is a lower bound from its bytes and launch."""
    stream: str
    """``compute``, ``copies``, ``collectives``, ``pairs``, or a name from the thunk sequence."""
    exposed: Range
    """Time of all its runs in which no other work of the program ran; for kernels their time."""
    on_path: bool
    """Its end determines the end of the program, at the high end of the range."""
    flops: int
    bytes: int
    """Bytes through device memory per run."""
    wire_bytes: int
    added: bool = False
    """XLA added it: no line of the program names it."""
    detail: str = ""
    """Algorithm of a collective; empty for kernels."""
    contended: bool = False
    """A scatter whose indices may be equal: its time depends on them and may be a thousand times that of its bytes."""
    blocks: bool = False
    """A collective that the device waits for by construction."""

    @property
    def total(self) -> Range:
        """Time of all its runs."""
        return self.once.times(self.runs)


class LineTime(Struct, frozen=True, kw_only=True):
    """All instructions of one line of the user's program."""

    where: Where
    opcode: str
    """Opcode of its longest instruction."""
    total: Range
    exposed: Range
    """Its part of the step: concurrent work counts only where it is exposed."""
    instructions: int
    bounds: tuple[Bound, ...]
    """Limits, longest time first."""


class StreamSpan(Struct, frozen=True, kw_only=True):
    """A section of a stream in the schedule at the high end, for a picture. Times in ns from the start."""

    stream: str
    kind: Kind
    start: int
    end: int
    label: str
    repeats: int = 1
    """Iterations of a loop that are drawn as one section."""


class StreamPicture(Struct, frozen=True, kw_only=True):
    """The streams over one run of the program, or over one iteration of a loop."""

    of: str
    """``''``: the program; else the loop."""
    turns: int
    """Iterations of the loop in one run of its enclosing level; 1 for the program."""
    length_ns: int
    spans: tuple[StreamSpan, ...]
    left: int
    """Short sections that are not in ``spans``."""


class Estimate(Struct, frozen=True, kw_only=True):
    """One run of a program on a target. All values are modelled, except measured ones in a ``calibration``."""

    program: str
    target: Target
    step_ns: Range
    """From the first launch to the last end."""
    parts: tuple[Parts, Parts]
    """Parts of the low end and of the high end; each sums to its end exactly."""
    rows: tuple[Row, ...]
    """Longest time first."""
    launches: int
    host_ns: Range
    """Host time to launch everything one by one; 0 if the device runs whole programs."""
    command_buffers: bool | None
    """Whether the thunk sequence has command buffers; None: unknown."""
    assumptions: tuple[Assumption, ...]
    blind_spots: tuple[str, ...]
    lower_bounds: tuple[str, ...]
    """Why the true time exceeds the range: loops of unknown length, unknown library calls."""
    not_known: tuple[str, ...]
    """Instructions of unknown time: the range has their bytes and launches, but not their arithmetic."""
    mfu: tuple[float, float] | None
    """Model FLOPs utilization at the high and at the low end of the time; None without products."""
    hfu: tuple[float, float] | None
    peak_bytes: int | None
    """Device memory of the program at its peak; None without a buffer assignment."""
    pictures: tuple[StreamPicture, ...] = ()
    """The program, then its longest loops in which anything runs parallel to kernels."""
    fingerprint: Mapping[str, str] = field(default_factory=dict)

    @property
    def host_bound(self) -> bool:
        """Whether launching takes longer than the device's work, without command buffers."""
        return self.command_buffers is not True and self.host_ns.high > self.parts[0].total and bool(self.host_ns.high)

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device of the target."""
        return self.target.memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits the target's memory; None if either is unknown."""
        if self.peak_bytes is None or self.target.memory_bytes is None:
            return None
        return self.peak_bytes <= self.target.memory_bytes

    def lines(self) -> tuple[LineTime, ...]:
        """Rows by the user's line, longest time first; rows without a line by scope and primitive."""
        result: dict[tuple[str | None, int | None, str | None], list[Row]] = {}
        for row in self.rows:
            where = row.where
            key = (where.file, where.line, None if where.file else (where.op or row.opcode))
            result.setdefault(key, []).append(row)
        lines = [_line(rows) for rows in result.values()]
        return tuple(sorted(lines, key=lambda line: -line.exposed.middle))


def _line(rows: list[Row]) -> LineTime:
    total = exposed = Range(low=0, high=0)
    bounds: dict[Bound, int] = {}
    for row in rows:
        total, exposed = total + row.total, exposed + row.exposed
        bounds[row.bound] = bounds.get(row.bound, 0) + row.exposed.middle
    return LineTime(
        where=rows[0].where,
        opcode=rows[0].opcode,
        total=total,
        exposed=exposed,
        instructions=len(rows),
        bounds=tuple(sorted(bounds, key=lambda one: -bounds[one])),
    )
