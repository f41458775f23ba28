"""Host spans with a known purpose, per thread: data loading, lookup of compiled code, device memory calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from perfscope.model.intervals import Intervals, union
from perfscope.model.trace import CallKind, SliceKind, Trace

INPUT_REGION = "input"
"""Name of the user's own region (``perfscope.region("input")``) that counts as data loading."""

_LOADER_PREFIXES = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
_LOOKUP_NAMES = ("TorchDynamo Cache Lookup",)


def input_slices(trace: Trace) -> npt.NDArray[np.int64]:
    """Rows of ``slices`` in which the program fetches its next batch.

    PyTorch names them ``enumerate(DataLoader)#...``; a loader of the user's own counts if it stands
    in a region named ``input``.
    """
    return _named(trace, lambda name: name.startswith(_LOADER_PREFIXES) or name == INPUT_REGION)


def input_spans(trace: Trace) -> dict[int, Intervals]:
    """Time in data loaders, per row of ``threads``."""
    return _by_thread(trace, "slices", input_slices(trace))


def compile_lookup_spans(trace: Trace) -> dict[int, Intervals]:
    """Time in the lookup of compiled code, per row of ``threads``."""
    return _by_thread(trace, "slices", _named(trace, lambda name: name.startswith(_LOOKUP_NAMES)))


def allocator_spans(trace: Trace) -> dict[int, Intervals]:
    """Time in device memory calls (``cudaMalloc``, ``cudaFree`` ...), per row of ``threads``."""
    return _by_thread(trace, "calls", np.flatnonzero(trace.rows["calls"]["kind"] == CallKind.MEMORY))


def _named(trace: Trace, matches: Callable[[str], bool]) -> npt.NDArray[np.int64]:
    slices = trace.rows["slices"]
    kinds = np.isin(slices["kind"], [SliceKind.OP, SliceKind.ANNOTATION])
    codes = [code for code in np.unique(slices["name"][kinds]) if matches(trace.text(int(code)))]
    return np.flatnonzero(kinds & np.isin(slices["name"], codes))


def _by_thread(trace: Trace, table: str, rows: npt.NDArray[np.int64]) -> dict[int, Intervals]:
    data = trace.rows[table]
    threads = data["thread"][rows]
    return {
        int(thread): union(data["start_ns"][rows[threads == thread]], data["end_ns"][rows[threads == thread]])
        for thread in np.unique(threads)
    }
