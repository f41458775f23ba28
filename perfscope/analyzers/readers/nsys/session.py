"""What all tables of one export share: its strings, its clock, its processes, and what was left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfscope.analyzers.readers.builder import Columns
from perfscope.analyzers.readers.nsys.database import NULL, Export
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

_LONGEST_NS = 2**53
"""104 days: a time further from the session's start is a corrupt number, not a time."""
_LATEST_EPOCH_NS = 4 * 10**18
"""The year 2096."""


class Session:
    """An open export while it is read."""

    def __init__(self, database: Export) -> None:
        self.database = database
        self.pool = TraceBuilder()
        start = database.integers("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")["utcEpochNs"]
        self.epoch_ns = int(start[0]) if len(start) and 0 < start[0] < _LATEST_EPOCH_NS else 0
        """The session's start in ns of the Unix epoch; 0 if it is not told."""
        took = database.integers("ANALYSIS_DETAILS", "duration")["duration"]
        self.ended_ns = self.epoch_ns + int(took[0]) if len(took) == 1 and 0 < took[0] < _LONGEST_NS else None
        """The recording's end on the trace's clock; ``None`` if it is not told, or several machines tell theirs."""

    def events(self, table: str, *names: str) -> Columns:
        """A table of events with ``start_ns`` and ``end_ns`` on the trace's clock, ``process``, and ``names``.

        Rows without a sound time are counted as unplaced.
        """
        columns = self.database.integers(table, "start", "end", "globalPid", "globalTid", *names)
        return self.timed(columns, table)

    def timed(self, columns: Columns, table: str) -> Columns:
        """``columns`` with ``start`` and ``end`` checked and put on the trace's clock."""
        start, end = columns.pop("start"), columns.pop("end")
        self.pool.events += len(start)
        sound = (np.abs(start) < _LONGEST_NS) & (np.abs(end) < _LONGEST_NS) & (start != NULL) & (end != NULL)
        open_ended = (np.abs(start) < _LONGEST_NS) & (start != NULL) & (end == NULL)
        backwards = sound & (end < start)
        self._unplaced(f"{table}: a row that never ended", open_ended)
        self._unplaced(f"{table}: a row without a sound time", ~sound & ~open_ended)
        self._unplaced(f"{table}: a row that ends before it starts", backwards)
        kept = sound & ~backwards
        taken = {name: values[kept] for name, values in columns.items()}
        taken["start_ns"], taken["end_ns"] = start[kept] + self.epoch_ns, end[kept] + self.epoch_ns
        taken["process"] = process_of(taken.pop("globalPid"), taken["globalTid"])
        return taken

    def _unplaced(self, reason: str, rows: Array) -> None:
        count = int(rows.sum())
        if count:
            self.pool.unplaced[reason] += count

    def codes(self, ids: Array, written: Callable[[str], str] = str) -> Array:
        """Codes of the strings with these ids, shape (n,), int32; ``MISSING`` where there is none.

        ``written``: how the text is kept.
        """
        distinct, inverse = np.unique(ids, return_inverse=True)
        texts = self.database.texts({one for one in distinct.tolist() if one != NULL})
        codes = [self.pool.code(written(texts[one])) if one in texts else MISSING for one in distinct.tolist()]
        return np.array(codes, np.int32)[inverse].reshape(len(ids)) if len(ids) else np.empty(0, np.int32)


def process_of(global_pid: Array, global_tid: Array) -> Array:
    """Machine and process of an event, without its thread: shape (n,), int64; ``NULL`` where neither id is known.

    A global id is 8 bits of hardware, 8 of virtual machine, 24 of process and 24 of thread.
    """
    known = np.where(global_pid != NULL, global_pid, global_tid)
    return np.where(known != NULL, known >> 24, NULL)


def pid_of(process: int) -> int:
    """Number of a process in its system."""
    return process & 0xFFFFFF


def distinct_rows(*columns: Array) -> tuple[Array, Array]:
    """Rows that are alike in all columns: a row of each kind, and the kind of every row. Shapes (k,) and (n,)."""
    _, first, kind = np.unique(columns[0], return_index=True, return_inverse=True)
    for column in columns[1:]:
        distinct, own = np.unique(column, return_inverse=True)
        _, first, kind = np.unique(
            kind.reshape(-1).astype(np.int64) * len(distinct) + own.reshape(-1), return_index=True, return_inverse=True
        )
    return first, kind.reshape(-1)


def nullable(values: Array) -> Array:
    """``values`` with ``MISSING`` for what is not known."""
    return np.where((values == NULL) | (values < 0), MISSING, values)
