"""Who sends and receives are with, from the detail pass of a run: the timing pass records no shapes, so no peers.

Both passes run the same loop: where every step of both has the same sends and receives in the same order, and every
step of the detail pass with the same ranks, the k-th of a step is with the rank that the k-th is with there. Anything
else (schedules that change from step to step, several threads that send) is left unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfscope.model.collectives import POINT_TO_POINT
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.columns import Array

CARRIED = (
    "with whom sends and receives are is from the detail pass, where the k-th of a step is the same operation; "
    "the timing pass does not record it"
)
DIFFERS = (
    "with whom sends and receives are is not known: the timing pass does not record it, and their order in a step is "
    "not the same in all steps of it and of the detail pass"
)


def carry_peers(timing: Trace, detail: Trace) -> tuple[Trace, str | None]:
    """``timing`` with the ``peer`` of its host collectives from ``detail``, and a note on it, if there is any.

    Nothing is done where ``timing`` lacks none in its steps, or the detail pass tells no peer either.
    """
    if not (_messages(timing)[1] == MISSING).any() or not (_messages(detail)[1] != MISSING).any():
        return timing, None
    patterns = {_pattern(detail, rows) for rows in _steps(detail)}
    steps = list(_steps(timing))
    if not any(map(len, steps)):
        return timing, None
    if len(patterns) != 1:
        return timing, DIFFERS
    pattern = patterns.pop()
    if pattern is None or any(_operations(timing, rows) != [name for name, _ in pattern] for rows in steps):
        return timing, DIFFERS
    collectives = timing.rows["collectives"]
    peer = collectives["peer"].copy()
    for rows in steps:
        peer[rows] = [with_whom for _, with_whom in pattern]
    tables = {**timing.rows, "collectives": collectives.with_columns({"peer": peer})}
    return replace(timing, rows=tables), CARRIED


def _messages(trace: Trace) -> tuple[Array, Array]:
    """Rows of ``collectives`` that are sends and receives on the host, by start, and their peers."""
    collectives = trace.rows["collectives"]
    codes = [code for code, text in enumerate(trace.strings) if text in POINT_TO_POINT]
    on_host = (collectives["kernel"] == MISSING) & (collectives["slice"] != MISSING)
    rows = np.flatnonzero(on_host & np.isin(collectives["name"], codes))
    rows = rows[np.argsort(collectives["start_ns"][rows], kind="stable")]
    return rows, collectives["peer"][rows]


def _steps(trace: Trace) -> Iterator[Array]:
    """The sends and receives of each recorded step."""
    rows, _ = _messages(trace)
    starts = trace.rows["collectives"]["start_ns"][rows]
    steps = trace.rows["steps"]
    for start, end in zip(steps["start_ns"].tolist(), steps["end_ns"].tolist(), strict=True):
        yield rows[(starts >= start) & (starts < end)]


def _operations(trace: Trace, rows: Array) -> list[str] | None:
    """Of rows in order; ``None`` where several threads began them: their order may be another each time."""
    collectives = trace.rows["collectives"]
    if len(np.unique(trace.rows["slices"]["thread"][collectives["slice"][rows]])) > 1:
        return None
    return [trace.text(code) for code in collectives["name"][rows].tolist()]


def _pattern(trace: Trace, rows: Array) -> tuple[tuple[str, int], ...] | None:
    """(Operation, peer) of rows in order; ``None`` where a peer or the order is not known."""
    operations, peers = _operations(trace, rows), trace.rows["collectives"]["peer"][rows]
    if operations is None or (peers == MISSING).any():
        return None
    return tuple(zip(operations, peers.tolist(), strict=True))
