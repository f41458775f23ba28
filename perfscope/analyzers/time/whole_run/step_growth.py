"""Growth of the step's duration over the run, and the line that causes it.

Steps without a profiler are divided into blocks of equal numbers. The median of each block, without the time in which a
step waited for a core, is compared with that of every other block (Mann-Kendall): with chance, a slow phase or
alternating lengths, as many pairs fall as rise. The size is the median slope of all pairs (Theil-Sen).
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.samples import free_samples, sampled_lines
from perfscope.analyzers.time.sites import CallSite
from perfscope.model.documents.counters import HeldName
from perfscope.model.finding import Where
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

LEAST_STEPS = 40
"""Minimum number of steps without a profiler: with fewer a block has less than four steps, whose median is too often a
single slow step.
"""

MOST_BLOCKS = 20

STEPS_OF_BLOCK = 4

LEAST_RATIO = 1.3
"""Smallest ratio of the last steps to the first: clocks and other programs cause less."""

SURE_Z = 3.3
"""Standard deviations of the Mann-Kendall statistic: one run in a thousand exceeds it by chance."""

STILL = 0.15
"""Share of the whole growth that each half of the run must have. A single jump is not growth: a phase began."""

QUARTER = 0.25
"""Share of the steps at each end of the run whose sampled lines are compared."""

LEAST_SAMPLES = 10
"""Minimum number of samples at each end: with fewer, a line's share is unknown."""

EXPLAINS = 0.4
"""Share of the growth that a line must have to explain it."""

LONG = 10
"""Minimum growth in elements per step: a list of numbers with less is a log that is read in no time."""

UNEVEN = 0.1
"""Change of a line's share. If all lines keep theirs, the machine became slower, not the program."""


# Variables of the program whose values grew over the run, as sampled by `perfscope run`.


class GrownName(HeldName):
    """A variable, and its measurements at each look. ``bytes`` has the bytes of arrays too."""

    @property
    def keeps_graphs(self) -> bool:
        """Whether the graph of each step is kept: by the tensor itself, or by those in the container."""
        return self.kind == "graph" or self.graphs

    @property
    def bytes_per_step(self) -> float:
        """Mean growth per step in bytes, from the first look to the last."""
        return (self.bytes[-1] - self.bytes[0]) / max(1, self.step[-1] - self.step[0])

    @property
    def size_per_step(self) -> float:
        """Mean growth of ``size`` per step, from the first look to the last."""
        return (self.size[-1] - self.size[0]) / max(1, self.step[-1] - self.step[0])

    def where(self) -> Where:
        """Return the line that makes it grow."""
        return Where(file=self.file, line=self.line)


def grown_names(trace: Trace) -> tuple[GrownName, ...]:
    """Return the variables that grew: those that keep autograd graphs first, followed by those with most bytes."""
    rows = trace.rows["held_names"]
    if not len(rows):
        return ()
    key = np.column_stack([rows[name] for name in ("name", "kind", "file", "line", "function")])
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.ravel()
    found = []
    for number in range(int(group.max()) + 1):
        of_name: Int64 = np.flatnonzero(group == number)
        of_name = of_name[np.argsort(rows["step"][of_name], kind="stable")]
        first = of_name[0]
        line = int(rows["line"][first])
        found.append(
            GrownName(
                name=trace.text(int(rows["name"][first])),
                kind=trace.text(int(rows["kind"][first])),
                file=trace.text(int(rows["file"][first])),
                line=None if line == MISSING else line,
                function=trace.text(int(rows["function"][first])),
                step=tuple(rows["step"][of_name].tolist()),
                size=tuple(rows["size"][of_name].tolist()),
                bytes=tuple(rows["bytes"][of_name].tolist()),
                graphs=bool(rows["graphs"][of_name[-1]]),
            )
        )
    return tuple(sorted(found, key=lambda item: (item.kind != "graph", -item.bytes_per_step, item.name)))


# The step.


class GrowingLine(Struct, frozen=True, kw_only=True):
    """A line of the program with its time per step, at both ends of the run."""

    site: CallSite
    first_ns: float
    last_ns: float


class StepGrowth(Struct, frozen=True, kw_only=True):
    """Steps that become longer."""

    steps: int
    """Number of steps that were compared."""
    first_ns: float
    """Duration of a step at the begin of the run, by the fitted line."""
    last_ns: float
    """The same at the end."""
    since: int
    """Number of the step from which the growth exceeds chance."""
    until: int
    """Number of the last step."""
    median_ns: float
    lines: tuple[GrowingLine, ...]
    """Lines that grew, most time first."""
    even: bool | None
    """Whether all lines kept their share; ``None`` if not sampled at both ends."""
    name: GrownName | None
    """A variable that grew too, if one is known."""

    @property
    def line(self) -> GrowingLine | None:
        """The line that explains the growth."""
        first = self.lines[0] if self.lines else None
        enough = first is not None and first.last_ns - first.first_ns >= EXPLAINS * (self.last_ns - self.first_ns)
        return first if enough else None


def step_growth(trace: Trace) -> StepGrowth | None:
    """Return the growth; ``None`` with too few steps without a profiler, or without significant growth."""
    numbers, times = free_steps(trace)
    if len(numbers) < LEAST_STEPS:
        return None
    at, middle = _blocks(numbers, times)
    if middle.min() <= 0:  # the clock of core waits is too coarse for a ratio
        return None
    slope, sure = _trend(at, middle)
    first = float(np.median(middle - slope * at)) + slope * float(at[0])
    last = first + slope * float(at[-1] - at[0])
    first = max(first, float(middle.min()) / 2)
    if sure < SURE_Z or last < LEAST_RATIO * first or not _in_both_halves(at, middle, last - first):
        return None
    lines, even = _lines(trace, numbers, times)
    return StepGrowth(
        steps=len(numbers),
        first_ns=first,
        last_ns=last,
        since=_since(at, middle),
        until=int(numbers[-1]),
        median_ns=float(np.median(times)),
        lines=lines,
        even=even,
        name=_name(trace, lines),
    )


def free_steps(trace: Trace) -> tuple[Int64, Int64]:
    """Return the numbers of the steps without a profiler, and their durations without waiting for a core, ns."""
    rows = trace.rows["run_steps"]
    free = np.flatnonzero(rows["free"])
    waited = np.maximum(np.maximum(rows["wait_ns"], rows["others_wait_ns"])[free], 0)
    return rows["number"][free], (rows["until_ns"] - rows["from_ns"])[free] - waited


def _blocks(numbers: Int64, times: Int64) -> tuple[np.ndarray, np.ndarray]:
    """Return (middle number, middle duration) of each block of consecutive steps."""
    count = min(MOST_BLOCKS, len(numbers) // STEPS_OF_BLOCK)
    parts = np.array_split(np.arange(len(numbers)), count)
    return (
        np.array([float(np.median(numbers[part])) for part in parts]),
        np.array([float(np.median(times[part])) for part in parts]),
    )


def _trend(at: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return ``(median slope of all pairs, Mann-Kendall's z)``."""
    earlier, later = np.triu_indices(len(values), 1)
    rise = values[later] - values[earlier]
    score = float(np.sign(rise).sum())
    count = len(values)
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return float(np.median(rise / (at[later] - at[earlier]))), (score - np.sign(score)) / spread


def _in_both_halves(at: np.ndarray, values: np.ndarray, growth: float) -> bool:
    half = len(values) // 2
    for part in (slice(0, half + 1), slice(half, None)):
        slope, _ = _trend(at[part], values[part])
        if slope * float(at[part][-1] - at[part][0]) < STILL * growth:
            return False
    return True


def _since(at: np.ndarray, values: np.ndarray) -> int:
    """Return the number from which every block exceeds all of the first quarter of the blocks."""
    first = values[: max(2, len(values) // 4)]
    above = values > first.max()
    rest = np.flatnonzero(~above)
    row = int(rest[-1]) + 1 if len(rest) else 0
    return round(float(at[min(row, len(at) - 1)]))


def _lines(trace: Trace, numbers: Int64, times: Int64) -> tuple[tuple[GrowingLine, ...], bool | None]:
    """Return the lines by their time per step at both ends of the run, and whether all kept their share.

    Short first steps have few samples, so a line may have taken up to all of the step.
    """
    samples, rows = trace.rows["samples"], free_samples(trace, trace.fact(main_thread))
    count = max(1, round(QUARTER * len(numbers)))
    shares: list[dict[CallSite, float] | None] = []
    medians = []
    for part in (slice(0, count), slice(len(numbers) - count, None)):
        low, high = int(numbers[part][0]), int(numbers[part][-1])
        chosen = rows[(samples["step"][rows] >= low) & (samples["step"][rows] <= high)]
        lines = {line.site: line.share for line in sampled_lines(trace, chosen)}
        shares.append(lines if len(chosen) >= LEAST_SAMPLES else None)
        medians.append(float(np.median(times[part])))
    first, last = shares
    if last is None:
        return (), None
    grown = [
        GrowingLine(
            site=site,
            first_ns=medians[0] * (1.0 if first is None else first.get(site, 0.0)),
            last_ns=medians[1] * share,
        )
        for site, share in last.items()
        if site.file is not None
    ]
    grown = sorted(
        (line for line in grown if line.last_ns > line.first_ns), key=lambda line: line.first_ns - line.last_ns
    )
    if first is None:
        return tuple(grown), None
    return tuple(grown), all(abs(last.get(site, 0.0) - first.get(site, 0.0)) < UNEVEN for site in {*first, *last})


def _name(trace: Trace, lines: tuple[GrowingLine, ...]) -> GrownName | None:
    """Return a variable that grew: one at the fastest-growing line, else one with arrays or graphs, else a long one."""
    names = trace.fact(grown_names)
    place = (lines[0].site.file, lines[0].site.line) if lines else (None, MISSING)
    at_line = [name for name in names if (name.file, name.line) == place]
    heavy = [name for name in names if name.keeps_graphs or name.bytes_per_step > 0]
    long = sorted((name for name in names if name.size_per_step >= LONG), key=lambda name: -name.size_per_step)
    return next(iter((*at_line, *heavy, *long)), None)
