"""What ``estimate`` answers: one run of a program on a target, modelled, as a range."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from perfscope.analyzers.devices.roofline import Bound
from perfscope.analyzers.devices.target import Target
from perfscope.analyzers.predict.assumptions import Assumption
from perfscope.analyzers.predict.levels import Class
from perfscope.analyzers.predict.spans import Kind, Parts, Range
from perfscope.model.finding import Where


class Row(Struct, frozen=True, kw_only=True):
    """One launched instruction."""

    computation: str
    name: str
    opcode: str
    what: Class
    where: Where
    """The user's line, with primitive and scope; of what XLA added the line it serves."""
    once: Range
    """Each time it runs, ns."""
    runs: int
    """In one run of the program."""
    runs_exact: bool
    """False: around it is a loop of unknown length, counted once."""
    bound: Bound
    known: bool
    """False: its time is not known; what is shown is the least that follows from its bytes, and the launch."""
    stream: str
    """``compute``, ``copies``, ``collectives``, ``pairs``, or as the thunk sequence names it."""
    exposed: Range
    """Of all its runs, the time in which nothing else of the program's own work ran; of kernels, their time."""
    on_path: bool
    """Its end decides the end of the program, at the high end of the range."""
    flops: int
    bytes: int
    """Through device memory, each time."""
    wire_bytes: int
    added: bool = False
    """No line of the program names it: XLA added it."""
    detail: str = ""
    """Of a collective, by which algorithm; empty for kernels."""
    contended: bool = False
    """A scatter whose indices may be equal: its time depends on them, and may be a thousand times that of its bytes."""
    blocks: bool = False
    """A collective that the device waits for by construction."""

    @property
    def total(self) -> Range:
        """All its runs."""
        return self.once.times(self.runs)


class LineTime(Struct, frozen=True, kw_only=True):
    """All instructions of one line of the user's program."""

    where: Where
    opcode: str
    """Of its instruction with most time."""
    total: Range
    exposed: Range
    """Part of it that the step consists of: what runs beside something else counts where it is exposed."""
    instructions: int
    bounds: tuple[Bound, ...]
    """The most time first."""


class StreamSpan(Struct, frozen=True, kw_only=True):
    """A stretch of a stream in the schedule at the high end, for a picture. Times in ns from the beginning."""

    stream: str
    kind: Kind
    start: int
    end: int
    label: str
    repeats: int = 1
    """Turns of a loop that are drawn as one stretch."""


class StreamPicture(Struct, frozen=True, kw_only=True):
    """The streams over one run of the program, or over one turn of a loop."""

    of: str
    """``''``: the program; else the loop."""
    turns: int
    """Of the loop, in one run of what it stands in; 1 for the program."""
    length_ns: int
    spans: tuple[StreamSpan, ...]
    left: int
    """Short stretches that are not in ``spans``."""


class Estimate(Struct, frozen=True, kw_only=True):
    """One run of a program on a target. Everything is modelled; nothing was measured but where ``calibration`` says."""

    program: str
    target: Target
    step_ns: Range
    """From the first launch to the last end."""
    parts: tuple[Parts, Parts]
    """What the low end and the high end are made of; each adds up to it exactly."""
    rows: tuple[Row, ...]
    """The most time first."""
    launches: int
    host_ns: Range
    """The host's time to launch all of it one by one; 0 where the device runs whole programs."""
    command_buffers: bool | None
    """Whether the thunk sequence has command buffers; None: not known."""
    assumptions: tuple[Assumption, ...]
    blind_spots: tuple[str, ...]
    lower_bounds: tuple[str, ...]
    """Why the true time is longer than the range says: loops of unknown length, unknown library calls."""
    not_known: tuple[str, ...]
    """Instructions whose time is not known; their bytes and launches are in the range, their arithmetic is not."""
    mfu: tuple[float, float] | None
    """Model FLOPs utilization at the high and at the low end of the time; None without products."""
    hfu: tuple[float, float] | None
    peak_bytes: int | None
    """Device memory of the program at its peak; None where no buffer assignment is known."""
    pictures: tuple[StreamPicture, ...] = ()
    """The program first, then its longest loops in which anything runs beside kernels."""
    fingerprint: Mapping[str, str] = field(default_factory=dict)

    @property
    def host_bound(self) -> bool:
        """Launching takes longer than the device does, if nothing is launched as a command buffer."""
        return self.command_buffers is not True and self.host_ns.high > self.parts[0].total and bool(self.host_ns.high)

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device of the target."""
        return self.target.memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak fits the target's memory; None where one of them is not known."""
        if self.peak_bytes is None or self.target.memory_bytes is None:
            return None
        return self.peak_bytes <= self.target.memory_bytes

    def lines(self) -> tuple[LineTime, ...]:
        """Rows by the user's line, the most time first; those without a line by their scope and primitive."""
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
