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
    before: float | None
    """Median before; ``None``: not a number."""
    after: float | None
    step: int
    """Completed steps of the process when it was found."""
    request: int
    """Number of the recording that was made for it; -1: none, within the budget."""


def watched_changes(ledger: ProcessLedger, rank: int | None) -> Iterator[WatchedChange]:
    """The changes of one process."""
    offset = ledger.head.unix_ns - ledger.head.began_ns
    for series, before, after, since, step, request in ledger.changed:
        yield WatchedChange(
            rank=rank,
            series=series,
            unix_ns=since + offset,
            before=before,
            after=after,
            step=step,
            request=request,
        )
