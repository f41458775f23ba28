"""Measured kernels of recordings beside what the model of kernel times says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.target import Target
from perfscope.analyzers.ops.achieved import device_peaks
from perfscope.analyzers.ops.op_work import op_works
from perfscope.analyzers.plans.collectives import XLA_KINDS
from perfscope.analyzers.predict.assumptions import vendor_factors
from perfscope.analyzers.predict.collective_time import Exchange, exchange_range
from perfscope.analyzers.predict.curve import Category
from perfscope.analyzers.predict.efficiency import Work
from perfscope.analyzers.predict.spans import Range
from perfscope.analyzers.readers.load import load_all
from perfscope.model.collectives import element_size, message_elements, operation_of
from perfscope.model.trace import MISSING, CopyKind, Trace
from tools.calibration.files import PROGRAMS

MOST_BESIDE = 0.05
WHOLE_US = 1_000
"""Older recordings have whole microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """All kernels of one call of an op, or a copy."""

    device: Device
    work: Work
    name: str
    time_ns: int
    resolution_ns: int
    """Of its recording."""
    kernels: int = 1
    alone: bool = True
    """No other kernel and no copy ran on the device meanwhile, but for a twentieth of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A collective that was measured, and its range."""

    device: Device
    time: Range
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One file."""

    program: str
    """Of all its recordings, on whatever device."""
    calls: tuple[Call, ...]
    collectives: tuple[Exchanged, ...]
    kernel_ns: Counter[str]
    """Time of all its kernels, without collectives, by device."""
    costed_ns: Counter[str]
    """Of that, what ``calls`` hold."""


def recordings(corpus: Path) -> list[Recording]:
    """The files that are there."""
    return [
        _recording(corpus / source.file, program)
        for program, sources in PROGRAMS.items()
        for source in sources
        if (corpus / source.file).exists()
    ]


def _recording(path: Path, program: str) -> Recording:
    """Kernels of a file that ran on a device of the tables."""
    calls: list[Call] = []
    collectives: list[Exchanged] = []
    kernel_ns: Counter[str] = Counter()
    costed_ns: Counter[str] = Counter()
    for trace in load_all(path):
        calls += _calls(trace)
        calls += _copies(trace)
        collectives += _collectives(trace)
        kernels = trace.rows["kernels"]
        length = kernels["end_ns"] - kernels["start_ns"]
        devices = trace.fact(device_peaks)
        for row in np.flatnonzero(~kernels["communication"]).tolist():
            device = devices[int(kernels["device"][row])]
            kernel_ns["" if device is None else device.name] += int(length[row])
        for work in op_works(trace):
            device = devices[work.device]
            costed_ns["" if device is None else device.name] += work.time_ns
    return Recording(program=program, calls=tuple(calls), collectives=tuple(collectives), kernel_ns=kernel_ns,
                     costed_ns=costed_ns)  # fmt: skip


def _resolution(trace: Trace) -> int:
    starts = trace.rows["kernels"]["start_ns"]
    return WHOLE_US if len(starts) and not ((starts - starts[0]) % WHOLE_US).any() else 0


def _calls(trace: Trace) -> Iterator[Call]:
    devices, resolution, slices = trace.fact(device_peaks), _resolution(trace), trace.rows["slices"]
    beside = _beside(trace, "kernels")
    for op in op_works(trace):
        device = devices[op.device]
        if device is not None and op.time_ns > 0:
            yield Call(
                device=device,
                work=op.work,
                name=trace.text(int(slices["name"][op.op])),
                time_ns=op.time_ns,
                resolution_ns=resolution,
                kernels=len(op.kernels),
                alone=beside[list(op.kernels)].sum() <= MOST_BESIDE * op.time_ns,
            )


def _copies(trace: Trace) -> Iterator[Call]:
    copies, devices, resolution = trace.rows["copies"], trace.fact(device_peaks), _resolution(trace)
    beside = _beside(trace, "copies")
    for row in np.flatnonzero((copies["bytes"] > 0) & (copies["kind"] == CopyKind.DEVICE_TO_DEVICE)).tolist():
        device = devices[int(copies["device"][row])]
        time = int(copies["end_ns"][row] - copies["start_ns"][row])
        if device is not None and time > 0:
            work = Work(category="copy", bytes=2 * int(copies["bytes"][row]))
            yield Call(
                device=device, work=work, name="copy", time_ns=time, resolution_ns=resolution,
                alone=bool(beside[row] <= MOST_BESIDE * time),
            )  # fmt: skip


def _beside(trace: Trace, name: str) -> npt.NDArray[np.int64]:
    """By row of ``kernels`` or ``copies``: ns of it in which the device ran something else too."""
    tables = [trace.rows[table] for table in ("kernels", "copies")]
    starts, ends, devices = (
        np.concatenate([table[column] for table in tables]) for column in ("start_ns", "end_ns", "device")
    )
    result = np.zeros(len(starts), np.int64)
    for device in np.unique(devices).tolist():
        rows = np.flatnonzero(devices == device)
        begins, finishes = np.sort(starts[rows]), np.sort(ends[rows])
        busy = _run_before(ends[rows], begins, finishes) - _run_before(starts[rows], begins, finishes)
        result[rows] = busy - (ends[rows] - starts[rows])
    first = len(tables[0])
    return result[:first] if name == "kernels" else result[first:]


def _run_before(
    moments: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], finishes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How long all work of a device ran before each moment, added up."""
    total = np.zeros(len(moments), np.int64)
    for sign, times in ((1, begins), (-1, finishes)):
        count = np.searchsorted(times, moments)
        total += sign * (moments * count - np.concatenate([[0], np.cumsum(times)])[count])
    return total


def _collectives(trace: Trace) -> Iterator[Exchanged]:
    """Those of groups that fit a node; which ranks they are is not recorded, so the first ones are taken."""
    collectives, kernels, devices = trace.rows["collectives"], trace.rows["kernels"], trace.fact(device_peaks)
    for row in np.flatnonzero(collectives["kernel"] != MISSING).tolist():
        kernel = int(collectives["kernel"][row])
        device = devices[int(kernels["device"][kernel])]
        operation = operation_of(trace.text(int(collectives["name"][row])))
        size = element_size(trace.text(int(collectives["dtype"][row])))
        ranks, ins, outs = (
            None if collectives[name][row] == MISSING else int(collectives[name][row])
            for name in ("group_size", "elements_in", "elements_out")
        )
        elements = message_elements(operation, ins, outs, ranks)
        node = None if device is None else device.node
        if device is None or node is None or not elements or not size or not ranks or not 1 < ranks <= node.devices:
            continue
        kind = operation.replace("_", "-")
        exchange = Exchange(kind=XLA_KINDS.get(kind, kind), bytes=elements * size, group=tuple(range(ranks)))
        target = Target(asked=device.name, device=device, count=ranks, topology=(1, ranks), platform="gpu",
                        memory_bytes=device.memory_bytes)  # fmt: skip
        time = exchange_range(exchange, target, vendor_factors(device.vendor)).time
        yield Exchanged(device=device, time=time, time_ns=int(kernels["end_ns"][kernel] - kernels["start_ns"][kernel]))


def shape_of(call: Call) -> tuple[str, Category, Work, str]:
    """What calls that do the same have in common."""
    return (call.device.name, call.work.category, call.work, call.name)
