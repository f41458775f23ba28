"""Builds small traces for rule and fact tests: times in microseconds, rows in any order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from perfscope.model.documents.stacks import SampledLoader
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace import CallKind, CopyKind, HostMemory, Rows, SliceKind, Source, Trace
from perfscope.model.trace.core_facts import CoreFacts
from perfscope.model.trace.tables import TABLES

EVERYTHING = frozenset(
    {
        "device_work", "host_ops", "launch_links", "op_links", "runtime_calls", "waiting_calls", "python_stack",
        "shapes", "autograd", "memory", "collectives", "steps",
    }
)  # fmt: skip

Record = TypeVar("Record")


def replace(record: Record, **values: Any) -> Record:
    """Return a copy of a data class or a Struct with other values."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **values)
    copy: Record = dataclasses.replace(record, **values)  # type: ignore[type-var]
    return copy


@dataclass
class TraceBuilder:
    """Collects rows; ``build()`` sorts them, finds parents and returns a checked ``Trace``."""

    recorded: frozenset[str] = EVERYTHING
    rank: int | None = 0
    path: str = "built.json"
    op_graph: OpGraph | None = None
    detail: Trace | None = None
    step_times_us: tuple[float, ...] = ()
    loaders: tuple[SampledLoader, ...] = ()
    core_facts: CoreFacts | None = None
    strings: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _threads: dict[int, int] = field(default_factory=dict)
    _devices: dict[int, int] = field(default_factory=dict)

    def code(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def thread(self, tid: int) -> int:
        if tid not in self._threads:
            self._threads[tid] = self._add("threads", process=self.code("1"), thread=self.code(str(tid)))
        return self._threads[tid]

    def device(self, ordinal: int = 0, name: str = "Test GPU", cores: int = 132) -> int:
        if ordinal not in self._devices:
            self._devices[ordinal] = self._add("devices", ordinal=ordinal, name=self.code(name), cores=cores)
        return self._devices[ordinal]

    def slice(self, name: str, start: float, end: float, *, kind: SliceKind = SliceKind.OP, tid: int = 1,
              external_id: int = -1, sequence: int = -1, forward_thread: int = -1, shapes: str | None = None,
              dtypes: str | None = None, values: str | None = None, call_line: int = -1) -> None:  # fmt: skip
        self._add("slices", name=self.code(name), start_ns=_ns(start), end_ns=_ns(end), kind=int(kind),
                  thread=self.thread(tid), external_id=external_id, sequence=sequence, forward_thread=forward_thread,
                  shapes=-1 if shapes is None else self.code(shapes),
                  dtypes=-1 if dtypes is None else self.code(dtypes),
                  values=-1 if values is None else self.code(values), call_line=call_line)  # fmt: skip

    def op(self, name: str, start: float, end: float, **more: Any) -> None:
        self.slice(name, start, end, **more)

    def annotation(self, name: str, start: float, end: float, **more: Any) -> None:
        self.slice(name, start, end, kind=SliceKind.ANNOTATION, **more)

    def python(self, name: str, start: float, end: float, **more: Any) -> None:
        self.slice(name, start, end, kind=SliceKind.PYTHON, **more)

    def step(self, number: int, start: float, end: float) -> None:
        self._add("steps", name=self.code(f"ProfilerStep#{number}"), start_ns=_ns(start), end_ns=_ns(end),
                  number=number)  # fmt: skip

    def call(self, name: str, start: float, end: float, *, kind: CallKind = CallKind.KERNEL, tid: int = 1,
             correlation: int = -1, external_id: int = -1) -> None:  # fmt: skip
        self._add("calls", name=self.code(name), start_ns=_ns(start), end_ns=_ns(end), kind=int(kind),
                  thread=self.thread(tid), correlation=correlation, external_id=external_id)  # fmt: skip

    def kernel(self, name: str, start: float, end: float, *, device: int = 0, stream: int = 7, correlation: int = -1,
               external_id: int = -1, communication: bool = False, blocks: int = -1,
               threads: int = -1) -> None:  # fmt: skip
        self._add("kernels", name=self.code(name), start_ns=_ns(start), end_ns=_ns(end), device=self.device(device),
                  stream=stream, correlation=correlation, external_id=external_id, communication=communication,
                  blocks=blocks, threads_per_block=threads)  # fmt: skip

    def launched(self, name: str, launch: float, start: float, end: float, *, correlation: int, tid: int = 1,
                 cost: float = 2.0, **more: Any) -> None:  # fmt: skip
        """A kernel and the call that launched it at ``launch``, taking ``cost`` us."""
        self.call("cudaLaunchKernel", launch, launch + cost, correlation=correlation, tid=tid)
        self.kernel(name, start, end, correlation=correlation, **more)

    def copy(self, name: str, start: float, end: float, *, device: int = 0, stream: int = 7, correlation: int = -1,
             external_id: int = -1, kind: CopyKind = CopyKind.HOST_TO_DEVICE,
             host_memory: HostMemory = HostMemory.PAGEABLE, size: int = -1) -> None:  # fmt: skip
        self._add("copies", name=self.code(name), start_ns=_ns(start), end_ns=_ns(end), device=self.device(device),
                  stream=stream, correlation=correlation, external_id=external_id, kind=int(kind),
                  host_memory=int(host_memory), bytes=size)  # fmt: skip

    def sample(self, stack: str, at: float, *, lasts: float = 1_000, cpu: float | None = None, step: int = -1,
               delay: float = 0, tid: int = 1, worker: str | None = None,
               step_us: float | None = None) -> None:  # fmt: skip
        """A sampled stack, outermost first: ``train.py(3): main > train.py(9): tokenize > str``."""
        frame = -1
        for text in stack.split(" > "):
            place, _, function = text.rpartition("): ")
            file, _, line = place.rpartition("(")
            frame = self._frame(
                parent=frame, file=self.code(file) if file else -1, line=int(line) if file else -1,
                name=self.code(function),
            )  # fmt: skip
        thread = self.thread(tid) if worker is None else self._worker(worker)
        self._add("samples", time_ns=_ns(at), lasts_ns=_ns(lasts), delay_ns=_ns(delay), thread=thread, frame=frame,
                  cpu_ns=_ns(lasts if cpu is None else cpu), worker=worker is not None, step=step,
                  step_ns=-1 if step_us is None else _ns(step_us))  # fmt: skip

    def _frame(self, **values: int) -> int:
        known = self.tables.setdefault("frames", [])
        if values not in known:
            known.append(values)
        return known.index(values)

    def _worker(self, name: str) -> int:
        known = [row["process"] for row in self.tables.get("threads", [])]
        code = self.code(name)
        return known.index(code) if code in known else self._add("threads", process=code, thread=self.code("main"))

    def core_reading(self, start: float, end: float, wait: float, *, others: float = 0) -> None:
        """The system's counters between two readings: how long the thread of the steps waited for a core."""
        self._add("cores", from_ns=_ns(start), until_ns=_ns(end), cpu_ns=_ns(end - start - wait), wait_ns=_ns(wait),
                  others_wait_ns=_ns(others), switches=0)  # fmt: skip

    def run_step(self, number: int, start: float, end: float, *, free: bool = True, wait: float = 0) -> None:
        """A step of the run, as the session counted it."""
        self._add("run_steps", number=number, from_ns=_ns(start), until_ns=_ns(end), free=free, wait_ns=_ns(wait),
                  others_wait_ns=0)  # fmt: skip

    def row(self, table: str, **values: Any) -> None:
        """Any other row, in the table's own columns."""
        self._add(table, **values)

    def build(self) -> Trace:
        slices = sorted(self.tables.get("slices", []), key=lambda r: (r["thread"], r["start_ns"], -r["end_ns"]))
        for index, row in enumerate(slices):
            row["parent"] = _innermost(slices[:index], row)
        self.tables["slices"] = slices
        calls = self.tables.get("calls", [])
        for row in calls:
            row["parent"] = _innermost(slices, row)
        for row in (*self.tables.get("kernels", []), *self.tables.get("copies", [])):
            matches = [i for i, call in enumerate(calls) if call["correlation"] == row["correlation"] >= 0]
            row.setdefault("call", matches[0] if matches else -1)
            ops = [i for i, s in enumerate(slices) if s["external_id"] == row["external_id"] >= 0]
            fallback = calls[row["call"]]["parent"] if row["call"] >= 0 else -1
            row.setdefault("op", ops[0] if ops else fallback)
        rows = {
            name: Rows(TABLES[name], {key: np.array([row[key] for row in found]) for key in found[0]})
            for name, found in self.tables.items()
            if found
        }
        source = Source(path=self.path, format="kineto", rank=self.rank,
                        events_read=sum(map(len, self.tables.values())), events_unplaced=0)  # fmt: skip
        recorded = self.recorded | ({"op_graph"} if self.op_graph is not None else set())
        trace = Trace(source=source, strings=self.strings, rows=rows, recorded=frozenset(recorded),
                      op_graph=self.op_graph, detail=self.detail, loaders=self.loaders, core_facts=self.core_facts,
                      step_times_ns=tuple(_ns(t) for t in self.step_times_us))  # fmt: skip
        trace.check()
        return trace

    def _add(self, table: str, **values: Any) -> int:
        self.tables.setdefault(table, []).append(values)
        return len(self.tables[table]) - 1


def _ns(us: float) -> int:
    return round(us * 1000)


def _innermost(slices: list[dict[str, Any]], row: dict[str, Any]) -> int:
    best = -1
    for index, other in enumerate(slices):
        encloses = other["start_ns"] <= row["start_ns"] and row["end_ns"] <= other["end_ns"]
        if other is not row and other["thread"] == row["thread"] and encloses:
            best = index
    return best
