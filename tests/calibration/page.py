"""The table of docs/compile-model.md: how many measured kernels lie in their stated range, and how wide it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.predict.curve import Curve
from perfscope.analyzers.predict.efficiency import usual_range
from tests.calibration.fit import fitted
from tests.calibration.measured import Recording

BEGIN, END = "<!-- calibration -->", "<!-- end of calibration -->"
COVERED, WIDTH = 0.9, 1.6
"""The goal of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A measured time and its range."""

    inside: bool
    ratio: float
    """Middle of the range over measured time."""
    width: float
    """High end over low end."""


def compared(recordings: Sequence[Recording], curves: Sequence[Curve]) -> dict[tuple[str, str], list[Beside]]:
    """By category and device: calls that ran alone, and collectives."""
    rows: dict[tuple[str, str], list[Beside]] = defaultdict(list)
    for each in recordings:
        for call in each.calls:
            usual = usual_range(call.device, call.work, curves) if call.alone else None
            if usual is not None:
                slack = call.resolution_ns
                inside = usual.low - slack <= call.time_ns <= usual.high + slack
                rows[call.work.category, call.device.name].append(
                    Beside(inside=inside, ratio=usual.middle / call.time_ns, width=usual.high / max(1, usual.low))
                )
        for exchange in each.collectives:
            if exchange.time_ns > 0:
                low, high = exchange.time.low, exchange.time.high
                rows["collective", exchange.device.name].append(
                    Beside(
                        inside=low <= exchange.time_ns <= high,
                        ratio=exchange.time.middle / exchange.time_ns,
                        width=high / max(1, low),
                    )
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
            f"In neither: {beside:,} calls that ran beside others{_not_costed(recordings)}.",
        ]
    )


def _part(title: str, rows: Mapping[tuple[str, str], Sequence[Beside]]) -> str:
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
    lines += [
        "",
        f"{title}: {reached} of {len(rows)} rows reach both goals; {covered:.0%} of all {len(every):,} calls lie in "
        f"their range; its high end is {width:.2f} times the low one (median).",
    ]
    return "\n".join(lines)


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
