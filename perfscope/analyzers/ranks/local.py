"""The collectives of one rank, in the order they began, as far as its trace tells of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from perfscope.analyzers.time.spans import lineage
from perfscope.model.collectives import algorithm_of, element_size, message_elements, operation_of
from perfscope.model.trace import MISSING, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """One collective as one rank saw it; times on that rank's clock."""

    start_ns: int
    end_ns: int
    operation: str
    group: str | None
    """Name of the process group, where recorded."""
    description: str | None
    """What the program calls its group, where recorded."""
    ranks: tuple[int, ...] | None
    """Members of the group, where recorded."""
    lane: int
    """Which of the rank's streams with collectives it ran on, by their first use; host collectives: -1."""
    size: int | None
    """Ranks in the group, where recorded."""
    sequence: int | None
    """Number in its group, where recorded."""
    elements: int | None
    """Elements of the input, where recorded."""
    received: int | None
    """Elements of the output, where recorded."""
    dtype: str | None
    dims: int | None
    """Dimensions of the input tensor, where shapes are recorded."""
    algorithm: str | None
    protocol: str | None
    launched: bool
    """The call that launched it is in the trace (false: it was launched before the capture began)."""
    kernel: int
    """Row of ``kernels``; ``MISSING`` for a collective on the host."""
    slice: int
    """Row of ``slices`` of the host's side of it; ``MISSING`` where it is not known."""
    peer: int | None = None
    """Rank on the other side of a send or receive, where recorded."""

    @property
    def duration_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns

    def message_bytes(self, size: int | None = None) -> int | None:
        """Bytes of the message as nccl-tests counts it; ``size``: ranks in the group, if it is known better."""
        width = element_size(self.dtype)
        elements = message_elements(self.operation, self.elements, self.received, size or self.size)
        return None if width is None or elements is None else width * elements


def locals_of(trace: Trace) -> tuple[Local, ...]:
    """The collectives of a trace by start."""
    return tuple(sorted(_read(trace), key=lambda one: (one.start_ns, one.end_ns)))


def _read(trace: Trace) -> Iterator[Local]:
    rows, kernels = trace.rows["collectives"], trace.rows["kernels"]
    lanes = _lanes(trace)
    has_links = bool((kernels["call"] >= 0).any()) if len(kernels) else False
    for row in range(len(rows)):
        kernel, place = int(rows["kernel"][row]), int(rows["slice"][row])
        if kernel != MISSING and place == MISSING:
            place = int(kernels["op"][kernel])
        name, shape, dtype = _host_side(trace, place)
        operation = operation_of(trace.text(int(rows["name"][row])))
        if operation in ("send_recv", "unknown") and name is not None:
            operation = operation_of(name)
        elements = _known(rows["elements_in"][row])
        recorded_dtype = trace.text(int(rows["dtype"][row])) or dtype
        if elements is None and shape is not None:
            elements = int(np.prod(shape, dtype=np.int64))
        algorithm, protocol = (
            (None, None) if kernel == MISSING else algorithm_of(trace.text(int(kernels["name"][kernel])))
        )
        yield Local(
            start_ns=int(rows["start_ns"][row]),
            end_ns=int(rows["end_ns"][row]),
            operation=operation,
            group=trace.text(int(rows["group"][row])) or None,
            description=trace.text(int(rows["description"][row])) or None,
            ranks=_ranks(trace.text(int(rows["ranks"][row]))),
            lane=-1 if kernel == MISSING else lanes[int(kernels["device"][kernel]), int(kernels["stream"][kernel])],
            size=_known(rows["group_size"][row]),
            sequence=_known(rows["sequence"][row]),
            elements=elements,
            received=_known(rows["elements_out"][row]),
            dtype=recorded_dtype,
            dims=None if shape is None else len(shape),
            algorithm=algorithm,
            protocol=protocol,
            launched=kernel == MISSING or not has_links or int(kernels["call"][kernel]) != MISSING,
            kernel=kernel,
            slice=place,
            peer=_known(rows["peer"][row]),
        )


def _lanes(trace: Trace) -> dict[tuple[int, int], int]:
    """(device row, stream) of communication kernels -> its place by first use."""
    kernels = trace.rows["kernels"]
    rows = np.flatnonzero(kernels["communication"])
    lanes: dict[tuple[int, int], int] = {}
    for row in rows[np.argsort(kernels["start_ns"][rows], kind="stable")].tolist():
        lanes.setdefault((int(kernels["device"][row]), int(kernels["stream"][row])), len(lanes))
    return lanes


def _host_side(trace: Trace, row: int) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    """(``all_to_all`` of ``nccl:all_to_all``, dims and type of its tensor), as far as the spans around a row say it."""
    slices = trace.rows["slices"]
    for around in lineage(trace, row):
        backend, mark, name = trace.text(int(slices["name"][around])).partition(":")
        if mark and backend in ("nccl", "gloo", "mpi", "ucc") and not name.startswith(":"):
            dtypes = _json(trace.text(int(slices["dtypes"][around])))
            dtype = dtypes[0] if isinstance(dtypes, list) and dtypes and isinstance(dtypes[0], str) else None
            return name, _shape(_json(trace.text(int(slices["shapes"][around])))), dtype
    return None, None, None


def _shape(dims: Any) -> tuple[int, ...] | None:
    """Dims of the first tensor; several tensors of one call count as one of all their elements."""
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return None
    shapes = [one for one in dims if isinstance(one, list) and one and all(isinstance(n, int) for n in one)]
    if not shapes:
        return None
    return tuple(shapes[0]) if len(shapes) == 1 else (sum(int(np.prod(one, dtype=np.int64)) for one in shapes),)


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...] | None:
    """``"[0, 1]"`` as recorded (a JSON string that holds a list, or a list); ``...`` (cut short) is not known."""
    found = _json(text)
    if isinstance(found, str):
        found = _json(found)
    if isinstance(found, list) and found and all(isinstance(rank, int) for rank in found):
        return tuple(sorted(found))
    return None


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:  # cut short by the profiler
        return None


def _known(value: Any) -> int | None:
    return None if int(value) < 0 else int(value)
