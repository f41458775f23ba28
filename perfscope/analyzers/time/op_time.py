"""Self time of host ops: on a machine without an accelerator it stands for kernel time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.time.spans import nearest_ancestor
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, SliceKind, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """One entry an op, as equally long arrays. Times in ns."""

    row: Int64
    """Row of ``slices``."""
    parent_op: Int64
    """Row of the innermost op that encloses it; ``MISSING``: none."""
    self_ns: Int64
    """Duration without the ops directly inside it."""

    def total_ns(self) -> int:
        """Time in ops, each moment of a thread once."""
        return int(self.self_ns.sum())


def op_times(trace: Trace) -> OpTime:
    """Self time of every op: its duration minus that of the ops directly inside it, on the same thread."""
    slices = trace.rows["slices"]
    is_op = slices["kind"] == SliceKind.OP
    rows = np.flatnonzero(is_op)
    parents = nearest_ancestor(trace, slices["parent"][rows], is_op)
    duration = slices["end_ns"] - slices["start_ns"]
    inside = np.zeros(len(slices), np.int64)
    nested = parents != MISSING
    np.add.at(inside, parents[nested], duration[rows[nested]])
    return OpTime(row=rows, parent_op=parents, self_ns=duration[rows] - inside[rows])


def self_time_by_name(trace: Trace) -> dict[str, tuple[int, int]]:
    """Op name -> (self time in ns, count), the longest first."""
    times = trace.fact(op_times)
    codes, index = np.unique(trace.rows["slices"]["name"][times.row], return_inverse=True)
    total = np.zeros(len(codes), np.int64)
    np.add.at(total, index, times.self_ns)
    count = np.bincount(index, minlength=len(codes))
    order = np.argsort(-total, kind="stable")
    return {trace.strings[codes[i]]: (int(total[i]), int(count[i])) for i in order}
