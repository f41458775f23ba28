"""Changes that the processes of a job found while they ran (``--watch``), and the recordings made for them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.plugins.job.document import ProcessLedger


class WatchedChange(Struct, frozen=True, kw_only=True):
    """A series of one rank changed its level."""

    rank: int | None
    series: str
    """``step_ns``, ``tokens_per_s``, ``memory`` (bytes) or ``loss``."""
    unix_ns: int
    """The change is after this row."""
    levels: tuple[float | None, float | None]
    """Medians before and after; ``None``: not a number."""
    step: int
    """Completed steps of the process when it was found."""
    recorded: bool
    """Whether steps were recorded for it; not if the budget refused it, or for another series or rank."""


def watched_changes(ledger: ProcessLedger, rank: int | None) -> Iterator[WatchedChange]:
    """The changes of one process."""
    offset = ledger.head.unix_ns - ledger.head.began_ns
    for series, before, after, since, step, request in ledger.changed:
        yield WatchedChange(
            rank=rank,
            series=series,
            unix_ns=since + offset,
            levels=(before, after),
            step=step,
            recorded=request >= 0,
        )
