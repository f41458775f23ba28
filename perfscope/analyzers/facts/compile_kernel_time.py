"""Measured time of the kernels that inductor made: on the device, or their host span where they ran on a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.facts.compiled_kernels import compiled_rows
from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.model.trace import MISSING, Trace


def compiled_kernel_times(trace: Trace) -> Mapping[int, int]:
    """Index in ``CompileLog.kernels`` -> ns in the whole recording; those that did not run in it are not in it.

    Kernels of a device are summed, side by side or not. On a CPU the span of a kernel or library call is its time.
    """
    rows = trace.fact(compiled_rows)
    if not rows:
        return {}
    slices, kernels = trace.rows["slices"], trace.rows["kernels"]
    spent: dict[int, int] = defaultdict(int)
    if len(kernels):
        joined = np.zeros(len(slices), np.bool_)
        joined[list(rows)] = True
        launching = nearest_ancestor(trace, kernels["op"], joined)
        for row, time in zip(launching.tolist(), (kernels["end_ns"] - kernels["start_ns"]).tolist(), strict=True):
            if row != MISSING:
                spent[rows[row]] += time
        return spent
    for row, index in rows.items():
        spent[index] += int(slices["end_ns"][row] - slices["start_ns"][row])
    return spent
