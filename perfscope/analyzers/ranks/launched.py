"""Operations requested by the host, for kernels whose names lack the operation."""

from __future__ import annotations

import re

import numpy as np

from perfscope.analyzers.spans import lineage, slice_name
from perfscope.model.collectives import operation_of
from perfscope.model.trace import MISSING, Trace

_OPERATION = re.compile(r"(?:nccl|rccl|hccl|xccl|c10d|_c10d_functional|_dtensor)::?_?([a-z_]+)")

OPERATIONS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather"})
"""Operations over several ranks that the host may request."""


def launched_operations(trace: Trace) -> dict[int, str]:
    """Map rows of ``kernels`` to the operation of the span around the launch, for communication kernels.

    A fact of the trace.
    """
    result = {}
    for kernel in np.flatnonzero(trace.rows["kernels"]["communication"]).tolist():
        operation = _launched_for(trace, kernel)
        if operation is not None:
            result[kernel] = operation
    return result


def _launched_for(trace: Trace, kernel: int) -> str | None:
    call = int(trace.rows["kernels"]["call"][kernel])
    row = int(trace.rows["kernels"]["op"][kernel]) if call == MISSING else int(trace.rows["calls"]["parent"][call])
    for around in lineage(trace, row):
        match = _OPERATION.match(slice_name(trace, around))
        operation = None if match is None else operation_of(match[1])
        if operation in OPERATIONS:
            return operation
    return None
