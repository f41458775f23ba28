"""Marks of steps on the devices: Kineto draws each host annotation again around the work launched in it.

``{"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": device, "tid": stream, ...}``

There is one mark per device and stream. On ROCm a mark may be far shorter than the work of its step.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.readers.columns import Columns, named_steps
from perfscope.analyzers.readers.kineto.categories import STEP_NAMES
from perfscope.model.trace.columns import MISSING


def marked_steps(marks: Columns, strings: list[str]) -> Columns:
    """Return columns of ``steps``, a row per step: from its first mark to the first mark of the next step.

    The last step ends with its last mark.
    """
    rows = named_steps(marks, np.arange(len(marks["name"])), strings, STEP_NAMES)
    if not rows:
        return {}
    numbers, first, step = np.unique(rows["number"], return_index=True, return_inverse=True)
    starts = rows["start_ns"][first]  # They are in order of time.
    ends = np.full(len(numbers), MISSING, np.int64)
    np.maximum.at(ends, step, rows["end_ns"])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    return {
        "start_ns": starts,
        "end_ns": np.append(starts[1:], ends[-1]),
        "name": rows["name"][first][order],
        "number": numbers[order],
        "device_start_ns": starts,
        "device_end_ns": ends,
    }


def with_marks(steps: Columns, marks: Columns) -> Columns:
    """Return the host's steps with start and end of their marks on the devices; repeated numbers have none."""
    rows = {int(number): row for row, number in enumerate(marks["number"])}
    numbers, counts = np.unique(steps["number"], return_counts=True)
    once = set(numbers[counts == 1].tolist())
    found = np.array([rows.get(number, MISSING) if number in once else MISSING for number in steps["number"].tolist()])
    return {
        **steps,
        **{
            name: np.where(found == MISSING, MISSING, marks[name][np.maximum(found, 0)]).astype(np.int64)
            for name in ("device_start_ns", "device_end_ns")
        },
    }
