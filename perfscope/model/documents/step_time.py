"""How long a step is: the one number that every report, list and comparison of a run shows.

A run may have been timed in several ways. In this order, the first that there is:

1. *window*: consecutive steps without a profiler, with a wait for the devices before the first and after the last;
   their mean. It counts if the host runs ahead of the devices, so that the host's own steps end before their work does.
2. *unprofiled*: the host's steps without a profiler; their median, because the system holds up single steps. The mean
   if slow steps are the program's own work (``slow_steps``, ``checkpoint_stall``, ``eval_stall``).
3. *profiled*: the recorded steps, without those that compiled; their mean, which the causes of the account sum to.

The number of a job is that of the median rank. All values are kept under separate names (``known_ns``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Literal

from msgspec import Struct

HOST_AHEAD = 1.1
"""Ratio to the host's median step above which a mean with waits for the devices is not noise, but another fact."""

Timed = Literal["window", "unprofiled", "profiled"]


class StepTime(Struct, frozen=True, kw_only=True):
    """The step time of a rank or of a job. Times in ns."""

    ns: float
    """The step time, ns; of several ranks that of the rank in the middle."""
    of: Timed
    """How the steps were timed."""
    statistic: Literal["mean", "median"]
    count: int
    """Number of steps it is the mean or the median of."""
    rank: int | None = None
    known_ns: Mapping[str, float] = {}
    """Every value that is known: ``window_mean``, ``unprofiled_median``, ``unprofiled_mean``, ``profiled_median``,
    ``profiled_mean``."""


def step_time_of(
    *,
    window: tuple[int, int] | None,
    unprofiled: Sequence[int],
    profiled: Sequence[int],
    uneven: bool = False,
    rank: int | None = None,
) -> StepTime | None:
    """The step time of one rank; ``None`` if no step was timed.

    ``window``: (ns, steps). ``unprofiled``, ``profiled``: durations, ns. ``uneven``: slow steps are the program's own.
    """
    known: dict[str, float] = {}
    if window is not None and window[1] > 0 and window[0] > 0:
        known["window_mean"] = window[0] / window[1]
    for name, times in (("unprofiled", unprofiled), ("profiled", profiled)):
        if times and median(times) > 0:
            known |= {f"{name}_median": float(median(times)), f"{name}_mean": fmean(times)}
    waited, own = known.get("window_mean"), known.get("unprofiled_median")
    if waited is not None and window is not None and (own is None or waited > HOST_AHEAD * own):
        return StepTime(ns=waited, of="window", statistic="mean", count=window[1], rank=rank, known_ns=known)
    if own is not None:
        ns = known["unprofiled_mean"] if uneven else own
        statistic: Literal["mean", "median"] = "mean" if uneven else "median"
        return StepTime(ns=ns, of="unprofiled", statistic=statistic, count=len(unprofiled), rank=rank, known_ns=known)
    if "profiled_mean" in known:
        return StepTime(
            ns=known["profiled_mean"], of="profiled", statistic="mean", count=len(profiled), rank=rank, known_ns=known
        )
    return None


def middle(times: Iterable[StepTime]) -> StepTime | None:
    """The step time of a job: that of the median rank, among ranks that were timed alike; ``None`` without any."""
    ordered = sorted(times, key=lambda time: time.ns)
    for of in ("window", "unprofiled", "profiled"):
        alike = [time for time in ordered if time.of == of]
        if alike:
            return alike[(len(alike) - 1) // 2]
    return None
