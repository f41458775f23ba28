"""The times of a launch of several ranks: a step lasts as long as that of the slowest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.profiler.run import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Step times of a launch (`Process`), made of ``ranks`` processes. ``remark``: how, where it is not plain."""

    step_ns: tuple[int, ...] = ()
    windows_ns: tuple[int, ...] = ()
    window_steps: int = 0
    ranks: int = 1
    remark: str | None = None


def together(processes: Sequence[Process]) -> Times:
    """The times of the processes that had steps, as those of one program.

    Ranks of a job wait for each other in every step, so that the n-th step (or window) takes what it takes the slowest.
    Where they did not take the same steps the rank with the slowest typical step stands for all, and that is said.
    Of processes that are no ranks of one job (one started behind the other) the first counts.
    """
    stepped = [process for process in processes if process.steps_seen]
    found = [process for process in stepped if (process.world_size or 1) > 1]
    if not stepped:
        return Times()
    if len(found) < 2:
        said = f"{len(stepped)} processes had steps: the times are of the first" if len(stepped) > 1 else None
        first = (found or stepped)[0]
        return Times(
            step_ns=first.untraced_step_ns,
            windows_ns=first.windows_ns,
            window_steps=first.window_steps,
            remark=said,
        )
    counts = {(len(one.untraced_step_ns), len(one.windows_ns), one.window_steps, one.steps_seen) for one in found}
    if len(counts) > 1:
        slowest = max(found, key=_typical)
        taken = sorted({one.steps_seen for one in found})
        return Times(
            step_ns=slowest.untraced_step_ns,
            windows_ns=slowest.windows_ns,
            window_steps=slowest.window_steps,
            ranks=len(found),
            remark=f"its {len(found)} ranks took {taken[0]} to {taken[-1]} steps, or were timed apart: rank "
            f"{slowest.rank}, the slowest, stands for all",
        )
    return Times(
        step_ns=tuple(map(max, zip(*(one.untraced_step_ns for one in found), strict=True))),
        windows_ns=tuple(map(max, zip(*(one.windows_ns for one in found), strict=True))),
        window_steps=found[0].window_steps,
        ranks=len(found),
    )


def _typical(process: Process) -> float:
    if process.windows_ns and process.window_steps:
        return statistics.median(process.windows_ns) / process.window_steps
    return statistics.median(process.untraced_step_ns) if process.untraced_step_ns else 0.0
