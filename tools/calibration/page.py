"""The table of docs/compile-model.md: how many measured kernels lie in their stated range, and how wide it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.predict.curve import Curve
from perfscope.analyzers.predict.efficiency import usual_range
from perfscope.analyzers.predict.spans import NO_TIME, Range
from tools.calibration.fit import fitted
from tools.calibration.measured import Recording

BEGIN, END = "<!-- calibration -->", "<!-- end of calibration -->"
COVERED, WIDTH = 0.9, 1.6
"""The goal of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A measured time and its range."""

    program: str
    device: str
    time_ns: int
    time: Range
    slack_ns: int = 0

    @property
    def inside(self) -> bool:
        """But for the resolution of its recording."""
        return self.time.low - self.slack_ns <= self.time_ns <= self.time.high + self.slack_ns

    @property
    def ratio(self) -> float:
        """Middle of the range over measured time."""
        return self.time.middle / self.time_ns

    @property
    def width(self) -> float:
        """High end over low end."""
        return self.time.high / max(1, self.time.low)


def compared(recordings: Sequence[Recording], curves: Sequence[Curve]) -> dict[tuple[str, str], list[Beside]]:
    """By category and device: calls that ran alone, and collectives."""
    rows: dict[tuple[str, str], list[Beside]] = defaultdict(list)
    for each in recordings:
        for call in each.calls:
            usual = usual_range(call.device, call.work, curves) if call.alone else None
            if usual is not None:
                device = call.device.name
                rows[call.work.category, device].append(
                    Beside(program=each.program, device=device, time_ns=call.time_ns, time=usual,
                           slack_ns=call.resolution_ns)
                )  # fmt: skip
        for exchange in each.collectives:
            if exchange.time_ns > 0:
                device = exchange.device.name
                rows["collective", device].append(
                    Beside(program=each.program, device=device, time_ns=exchange.time_ns, time=exchange.time)
                )
    return rows


def held_out(recordings: Sequence[Recording]) -> dict[tuple[str, str], list[Beside]]:
    """Each program by curves that were fitted without it."""
    rows: dict[tuple[str, str], list[Beside]] = defaultdict(list)
    for program in dict.fromkeys(each.program for each in recordings):
        curves = fitted([each for each in recordings if each.program != program])
        for row, found in compared([each for each in recordings if each.program == program], curves).items():
            rows[row] += found
    return rows


def table(recordings: Sequence[Recording], curves: Sequence[Curve]) -> str:
    """Both parts as Markdown, and what is in neither."""
    beside = sum(not call.alone for each in recordings for call in each.calls)
    return "\n\n".join(
        [
            _part("Held out", held_out(recordings)),
            _part("Fitted", compared(recordings, curves)),
            f"In neither: {beside:,} calls that ran at the same time as others{_not_costed(recordings)}.",
        ]
    )


def _part(title: str, rows: Mapping[tuple[str, str], Sequence[Beside]]) -> str:
    if not rows:
        return f"{title}: no other program to judge by."
    lines = [
        f"| {title}: category | device | calls | in their range | modelled / measured, median | high / low, median | |",
        "|-|-|-:|-:|-:|-:|-|",
    ]
    reached = 0
    for (category, device), found in sorted(rows.items()):
        share = float(np.mean([one.inside for one in found]))
        ratio, width = (float(np.median([getattr(one, name) for one in found])) for name in ("ratio", "width"))
        narrow = round(width, 2) <= WIDTH
        misses = [*(["coverage"] if share < COVERED else []), *([] if narrow else ["width"])]
        reached += not misses
        lines.append(
            f"| {category} | {device} | {len(found):,} | {share:.0%} | {ratio:.2f} | {width:.2f} | "
            f"{'**' + ' and '.join(misses) + ' missed**' if misses else 'reached'} |"
        )
    every = [one for found in rows.values() for one in found]
    covered, width = float(np.mean([one.inside for one in every])), float(np.median([one.width for one in every]))
    inside = sum(one.time_ns for one in every if one.inside) / sum(one.time_ns for one in every)
    lines += [
        "",
        f"{title}: {reached} of {len(rows)} rows reach both goals; {covered:.0%} of all {len(every):,} calls, and "
        f"{inside:.0%} of their time, lie in their range; its high end is {width:.2f} times the low one (median)."
        f"{_added_up([one for (category, _), found in rows.items() if category != 'collective' for one in found])}",
    ]
    return "\n".join(lines)


def _added_up(kernels: Sequence[Beside]) -> str:
    """The same of the sums of each program on each device."""
    if not kernels:
        return ""
    by_program: dict[tuple[str, str], list[Beside]] = defaultdict(list)
    for one in kernels:
        by_program[one.program, one.device].append(one)
    sums = [
        Beside(program=program, device=device, time_ns=sum(one.time_ns for one in found),
               time=sum((one.time for one in found), NO_TIME))
        for (program, device), found in by_program.items()
    ]  # fmt: skip
    off = [max(one.ratio, 1 / one.ratio) for one in sums]
    return (
        f" Added up by program and device without collectives, {sum(one.inside for one in sums)} of {len(sums)} "
        f"measured times lie between the sums of the ends; the middles differ from them by a factor of "
        f"{np.median(off):.2f} (median; nine in ten by {np.quantile(off, 0.9):.2f} at most)."
    )


def _not_costed(recordings: Sequence[Recording]) -> str:
    whole: Counter[str] = Counter()
    costed: Counter[str] = Counter()
    for each in recordings:
        whole.update(each.kernel_ns)
        costed.update(each.costed_ns)
    shares = [
        f"{1 - costed[device] / time:.0%} on {device}" for device, time in sorted(whole.items()) if device and time
    ]
    return f", and kernels whose cost is not known, of the kernel time {', '.join(shares)}"


def with_table(page: str, text: str) -> str:
    """The page with the table between its marks. ``ValueError`` without them."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"no {BEGIN} and {END} in the page")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
