"""The benchmark script of an op."""

from __future__ import annotations

from statistics import median

import numpy as np

from perfscope.analyzers.replay.arguments import bind, parse_recorded
from perfscope.analyzers.replay.signatures import SHORT_FORMS, SIGNATURES
from perfscope.analyzers.replay.template import OP_TEMPLATE, assignments
from perfscope.analyzers.time import work_time
from perfscope.model.errors import UsageError
from perfscope.model.intervals import Int64
from perfscope.model.trace import SliceKind, Trace

MOST_CALLS = 200
"""Calls whose median is the recorded time."""

_INPUTS = ("shapes", "dtypes", "strides", "values")


def op_script(trace: Trace, op: int | str) -> str:
    """Of a row of ``slices`` or of the shapes of a name that took most time; ``UsageError`` where there are none."""
    passes = ""
    if isinstance(op, str) and "shapes" not in trace.recorded and trace.detail is not None:
        trace, passes = trace.detail, " in the detail pass"
    rows = _calls(trace, op)
    slices, row = trace.rows["slices"], int(rows[0])
    name = trace.text(int(slices["name"][row])).removeprefix("aten::")
    texts = [trace.text(int(slices[column][row])) for column in _INPUTS]
    inputs = parse_recorded(*texts)
    call = bind(SHORT_FORMS.get((name, len(inputs)), SIGNATURES[name]), inputs)
    time_ns, source = _recorded_time(trace, rows)
    return assignments(
        OP_TEMPLATE,
        OP=name,
        ARGUMENTS=list(call.positional),
        NAMED=call.named,
        CHOSEN=list(call.chosen),
        RECORDED_US=time_ns / 1000,
        RECORDED=f"{source}{passes}, median of {len(rows)} calls",
    )


def _calls(trace: Trace, op: int | str) -> Int64:
    """Rows of the same op with the same inputs, the one asked for first."""
    slices = trace.rows["slices"]
    is_op = slices["kind"] == SliceKind.OP
    if isinstance(op, int):
        if op >= len(slices) or not is_op[op]:
            raise UsageError(f"replay: row {op} of slices is no op")
        name = trace.text(int(slices["name"][op]))
        if not name.startswith("aten::") or name.removeprefix("aten::") not in SIGNATURES:
            raise UsageError("replay: that op cannot be replayed")
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
    """(median ns of a call, what it is of): its device work, or its time on the host where it launched none."""
    device = [work_time(trace, [row]).sum_ns for row in rows.tolist()]
    if any(device):
        return median(device), "device work"
    slices = trace.rows["slices"]
    return float(np.median((slices["end_ns"] - slices["start_ns"])[rows])), "time on the host"
