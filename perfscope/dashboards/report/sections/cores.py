"""Warnings at the top of a report: the host waited for a core, or the recorded steps are not typical of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.savings import Reservation
    from perfscope.analyzers.time import CoreSummary


def core_facts(cores: Sequence[CoreSummary]) -> Iterator[str]:
    """Sentence on who took the cores and its cost, for the process that waited most; nothing if none waited much."""
    busy = [summary for summary in cores if summary.busy]
    if not busy:
        return
    worst = max(busy, key=lambda summary: max(summary.share, summary.throttled_share))
    whose = f" of rank {worst.rank}" if worst.rank is not None and len(cores) > 1 else ""
    yield f"{_reason(worst)}: the host{whose} waited for a core {worst.share:.0%} of the run's steps"


def _reason(summary: CoreSummary) -> str:
    """Who used the cores: the cgroup's limit, the program's own threads, or other processes."""
    if summary.throttled_share >= summary.share and summary.core_limit is not None:
        return (
            f"the CPU limit of {summary.core_limit:g} cores stopped the program {summary.throttled_share:.0%} of the "
            "time"
        )
    if summary.oversubscribed:
        numbers = {"compute thread": summary.compute_threads, "loader worker": summary.loader_workers}
        parts = [f"{number} {what}{'s' if number > 1 else ''}" for what, number in numbers.items() if number]
        several = f" of {summary.local_processes} processes" if summary.local_processes > 1 else ""
        return f"{' and '.join(parts)}{several} share {summary.available:g} cores"
    if summary.other_cores is not None and summary.cores:
        used = min(summary.other_cores, float(summary.cores))  # the machine may have more cores than the process
        return f"other processes used {used:.1f} of the {summary.cores} cores"
    return f"the {summary.cores} cores were taken" if summary.cores else "the cores were taken"


def reservation_facts(found: Sequence[Reservation]) -> Iterator[str]:
    """A sentence for each reason why the recorded steps do not represent the run."""
    for item in found:
        if item.why == "unlike":
            yield (
                f"the run's steps take {format_ns(round(item.run_ns))} (median), the recorded ones "
                f"{format_ns(round(item.recorded_ns))}: the account below is of the recorded steps only"
            )
        else:
            of = "compile nothing" if item.warm else "compile too"
            yield (
                f"the run compiled for {format_ns(round(item.recorded_ns))}, longer than its steps took "
                f"({format_ns(round(item.run_ns))}): the account below is of steps that {of}"
            )
