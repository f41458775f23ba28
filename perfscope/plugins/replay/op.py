"""The benchmark script of an op."""

from __future__ import annotations

import re
from statistics import median

import numpy as np

from perfscope.analyzers.spans import work_time
from perfscope.model.errors import UsageError
from perfscope.model.intervals import Int64
from perfscope.model.trace import SliceKind, Trace
from perfscope.plugins.replay.arguments import parse_recorded
from perfscope.plugins.replay.template import OP_TEMPLATE, assignments

OP_NAME = re.compile(r"[a-z_]\w{0,60}::[a-zA-Z_]\w{0,120}", re.ASCII)
"""Namespace and name of a torch op that a script may contain."""
MOST_CALLS = 200
"""Most calls over which the recorded time is a median."""

_OF_CLASSES = ("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss_backward", "cross_entropy_loss")
_ALONG_DIMENSION = (
    "gather", "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill_",
    "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
)  # fmt: skip

INDICES: dict[str, tuple[str, str, int | str | None]] = {
    "embedding": ("indices", "weight", 0),
    "embedding_backward": ("indices", "num_weights", None),
    "embedding_dense_backward": ("indices", "num_weights", None),
    **dict.fromkeys(_OF_CLASSES, ("target", "self", 1)),
    **dict.fromkeys(_ALONG_DIMENSION, ("index", "self", "dim")),
    "one_hot": ("self", "num_classes", None),
}
"""By op of ``aten`` the parameter that holds indices, and their upper limit: the size of another parameter in a
dimension (a number, or the parameter that has it), or its value (``None``)."""

_INPUTS = ("shapes", "dtypes", "strides", "values")


def op_script(trace: Trace, op: int | str) -> str:
    """Build the script for a row of ``slices``, or for the costliest shapes of a name; ``UsageError`` without any."""
    passes = ""
    if isinstance(op, str) and "shapes" not in trace.recorded and trace.detail is not None:
        trace, passes = trace.detail, " in the detail pass"
    rows = _calls(trace, op)
    slices, row = trace.rows["slices"], int(rows[0])
    name = trace.text(int(slices["name"][row]))
    inputs = parse_recorded(*(trace.text(int(slices[column][row])) for column in _INPUTS))
    time_ns, source = _recorded_time(trace, rows)
    return assignments(
        OP_TEMPLATE,
        OP=name,
        INPUTS=inputs,
        INDICES=INDICES.get(name.removeprefix("aten::")),
        RECORDED_US=time_ns / 1000,
        RECORDED=f"{source}{passes}, median of {len(rows)} calls",
    )


def _calls(trace: Trace, op: int | str) -> Int64:
    """Rows of the same op with the same inputs, the requested one first."""
    slices = trace.rows["slices"]
    is_op = slices["kind"] == SliceKind.OP
    if isinstance(op, int):
        if op >= len(slices) or not is_op[op]:
            raise UsageError(f"replay: row {op} of slices is not an op")
        name = trace.text(int(slices["name"][op]))
        if not OP_NAME.fullmatch(name):
            raise UsageError(f"replay: row {op} of slices must be a torch op (namespace::name)")
        rows = np.flatnonzero(is_op & (slices["name"] == slices["name"][op]))
    else:
        code = trace.strings.index(op) if op in trace.strings else -1
        rows = np.flatnonzero(is_op & (slices["name"] == code)) if code >= 0 else np.empty(0, np.int64)
        if not len(rows):
            raise UsageError(f"replay: no call of {op} was recorded")
    keys = np.stack([slices[column][rows] for column in _INPUTS], axis=1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    if isinstance(op, int):
        chosen = int(group[np.flatnonzero(rows == op)[0]])
        return np.concatenate(([op], rows[(group == chosen) & (rows != op)]))[:MOST_CALLS]
    totals = [
        (work_time(trace, members).sum_ns, int((slices["end_ns"] - slices["start_ns"])[members].sum()))
        for members in (rows[group == number] for number in range(len(distinct)))
    ]
    return np.asarray(rows[group == max(range(len(totals)), key=totals.__getitem__)][:MOST_CALLS], np.int64)


def _recorded_time(trace: Trace, rows: Int64) -> tuple[float, str]:
    """(median ns of a call, what was timed): its device work, or its host time if it launched none."""
    device = [work_time(trace, [row]).sum_ns for row in rows.tolist()]
    if any(device):
        return median(device), "device work"
    slices = trace.rows["slices"]
    return float(np.median((slices["end_ns"] - slices["start_ns"])[rows])), "time on the host"
