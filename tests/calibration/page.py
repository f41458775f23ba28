"""The table of docs/compile-model.md: how many measured kernels lie in their stated range, and how wide it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.predict.efficiency import usual_range
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


def compared(recordings: Sequence[Recording]) -> dict[tuple[str, str], list[Beside]]:
    """By category and device: calls that ran alone, and collectives."""
    rows: dict[tuple[str, str], list[Beside]] = defaultdict(list)
    for each in recordings:
        for call in each.calls:
            usual = usual_range(call.device, call.work) if call.alone else None
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


def table(seen: Sequence[Recording], unseen: Sequence[Recording]) -> str:
    """Both parts as Markdown."""
    parts = [_part("Unseen files", unseen), _part("Fitted files", seen)]
    return "\n\n".join(parts)


def _part(title: str, recordings: Sequence[Recording]) -> str:
    lines = [
        f"| {title}: category | device | calls | in their range | modelled / measured, median | high / low, median | |",
        "|-|-|-:|-:|-:|-:|-|",
    ]
    reached = 0
    rows = compared(recordings)
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
    calls = [call for each in recordings for call in each.calls]
    covered = float(np.mean([one.inside for found in rows.values() for one in found]))
    lines += [
        "",
        f"{reached} of {len(rows)} rows reach both goals; {covered:.0%} of all {sum(map(len, rows.values())):,} calls "
        f"lie in their range. Left out: {sum(not call.alone for call in calls):,} calls that ran beside others"
        f"{_not_costed(recordings)}.",
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
