"""What every report of a history says, decided once: amounts, small pictures of characters, changes in words."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from perfscope.analyzers.compare.verdict import STEP_LEAST
from perfscope.model.units import format_bytes, format_count, format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfscope.analyzers.compare.series import Change, History, Point, Series

    CountBetween = Callable[[str, str], int | None]

BLOCKS = "▁▂▃▄▅▆▇█"
FLAT = "▄"
SPARK = 40
"""Columns of a series of characters."""
HASH = 12
"""Characters of a commit, as git shows them in a large repository."""
FEW = 4
"""Metrics of a program, up to which each has a row even if it never moved."""
MANIFOLD = 9.0
"""Relative change from which it is told as a multiple."""
LEAST_SHOWN = 0.01
"""Percent."""
CLEAR_GROWTH = 1.0
"""Percent below which a change has two digits behind the point."""

_FORMATS: dict[str, Callable[[float], str]] = {"ns": format_ns, "bytes": format_bytes, "FLOP": format_count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """All metrics whose level changed between the same two runs."""

    where: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The series of one program on one kind of machine."""

    title: str
    series: tuple[Series, ...]

    @property
    def runs(self) -> int:
        """Of the metric that most runs have."""
        return max(len(one.points) for one in self.series)

    def parted(self) -> tuple[tuple[Series, ...], str | None]:
        """The series that moved at all (all of them where they are few), and the others in one line."""
        still = [one for one in self.series if len({point.value for point in one.points}) == 1]
        if len(self.series) < FEW or not still:
            return self.series, None
        words = ", ".join(f"{sanitize(one.metric)} {amount(one.points[-1].value, one.unit)}" for one in still)
        of = "its only run" if self.runs == 1 else "the same in all runs"  # of one nothing can be the same or another
        return tuple(one for one in self.series if one not in still), f"{of}: {words}"

    @property
    def newest_utc(self) -> str:
        """When it ran last."""
        return max(point.created_utc for one in self.series for point in one.points)

    def moved(self, count: CountBetween | None) -> tuple[Moved, ...]:
        """Where levels changed, the newest first. ``count``: commits between two, as git says."""
        places: dict[tuple[str, str], list[tuple[Series, Change]]] = {}
        for one in self.series:
            for change in one.changes:
                places.setdefault((change.before.run, change.after.run), []).append((one, change))
        ordered = sorted(places.values(), key=lambda held: held[0][1].after.created_utc, reverse=True)
        return tuple(
            Moved(
                where=where_words(held[0][1], count),
                lines=tuple(f"{sanitize(one.metric)} {size_words(change, one)}" for one, change in held),
            )
            for held in ordered
        )


def programs(found: History) -> tuple[Program, ...]:
    """The series by program and machine, what ran last first; times first in each."""
    made = [
        Program(title=_title(members[0]), series=tuple(sorted(members, key=lambda one: one.known == "exact")))
        for members in (list(group) for _, group in groupby(sorted(found.series, key=_which), key=_which))
    ]
    return tuple(sorted(made, key=lambda one: one.newest_utc, reverse=True))


def _which(one: Series) -> tuple[str, tuple[str, ...], str]:
    return one.name, one.command, one.machine


def _title(one: Series) -> str:
    words = [sanitize(value) for key, value in one.hardware.items() if key in ("gpu", "cpu")] or [
        sanitize(value) for value in one.hardware.values()
    ]
    on = f" on {', '.join(words)}" if words else " (no machine recorded)"
    how = "by commit" if one.ordered == "commits" else "by time"
    command = f": {sanitize(shlex.join(one.command))}" if one.command else ""
    return f"{sanitize(one.name)}{command}{on}, {how}"


def amount(value: float, unit: str) -> str:
    """A value with its unit, as it is shown everywhere else."""
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def percent(change: float) -> str:
    """A relative change with its sign."""
    if change >= MANIFOLD:
        return f"x {1 + change:,.0f}"
    share = 100 * change
    if abs(share) < LEAST_SHOWN:
        return f"<{LEAST_SHOWN}%" if change else "0%"
    return f"{share:+.2f}%" if abs(share) < CLEAR_GROWTH else f"{share:+.1f}%"


def sparkline(values: Sequence[float], width: int = SPARK) -> str:
    """The values as blocks between the smallest and the largest; of many each block is the middle of a few."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    held = [sorted(values[start:end])[(end - start) // 2] for start, end in pairwise(edges)]
    if min(held) == max(held):
        return FLAT * count
    low, high = scale(held)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(top * (value - low) / (high - low))] for value in held)


def scale(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper edge of a picture: 2% apart at least, so that what does not matter looks flat."""
    low, high = min(values), max(values)
    middle, half = (low + high) / 2, max(high - low, STEP_LEAST * abs(high)) / 2
    return middle - half, middle + half


def commit_words(point: Point) -> str:
    """The commit of a point, and whether it had changes beside it."""
    if point.commit is None:
        return "no commit"
    return point.commit[:HASH] + ("+" if point.dirty else "")


def size_words(change: Change, series: Series) -> str:
    """How much a level changed, and how sure that is."""
    old, new = amount(change.old, series.unit), amount(change.new, series.unit)
    size = f" ({percent(change.change)})" if change.change is not None else ""
    return f"{old} -> {new}{size}" + ("" if change.p is None else f", p {change.p:.1g}")


def where_words(change: Change, count: CountBetween | None) -> str:
    """Between which commits it changed, and what else changed there. ``count``: commits between two."""
    before, after = change.before.commit, change.after.commit
    if change.same_commit:
        where = f"at {commit_words(change.after)}, the commit of both runs: not the code"
    elif before is None and after is None:
        where = f"after {sanitize(change.before.run)}, up to {sanitize(change.after.run)}"
    else:
        where = f"after {commit_words(change.before)}, up to {commit_words(change.after)}"
        between = count(before, after) if count is not None and before is not None and after is not None else None
        where += f" ({between} commits)" if between is not None and between > 1 else ""
    return where + (f"; {', '.join(map(sanitize, change.software))} there" if change.software else "")


def newest_words(series: Series) -> str | None:
    """The last run where it lies outside of what neighbours differ by; one run proves nothing, and that is said."""
    one = series.newest
    if one is None or not one.outside:
        return None
    return (
        f"the newest run is {percent(one.change)} from the one before; neighbours here differ by at most "
        f"{100 * one.bound:.1f}% as a rule (one run: `perfscope compare --ab` settles it)"
    )
