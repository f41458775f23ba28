"""Declared and linked tables from the rows of one process (or several that share a trace)."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from perfscope.analyzers.readers import communication
from perfscope.analyzers.readers.columns import (
    Columns,
    Lookup,
    nesting_order,
    of_names,
    op_above,
    parent_of_call,
    parents,
    reorder,
    span_around,
)
from perfscope.analyzers.readers.kineto import categories
from perfscope.analyzers.readers.nsys import host
from perfscope.analyzers.readers.nsys.database import NULL, Session, pid_of
from perfscope.analyzers.readers.nsys.device import products
from perfscope.analyzers.readers.nsys.host import OWN_LANE, Steps, find_steps
from perfscope.model.intervals import distinct_rows
from perfscope.model.trace import TABLES, CallKind, MemoryAction, Rows
from perfscope.model.trace.columns import MISSING, Array

_CORRELATIONS = 40
"""Bits of a correlation id; CUPTI's have 32."""
_ANNOTATION = re.compile(r"nccl:(\w+)")
"""PyTorch's annotation around a collective: the operation that the program called."""
BYTE = "uint8"
"""Type of the elements if only bytes are known."""


class Tables:
    """Builder of the tables of one trace; ``rows`` is the result."""

    def __init__(self, session: Session, parts: dict[str, Columns], frames: Rows, ranks: dict[int, int]) -> None:
        """``parts``: ``calls, slices, kernels, copies, waits, usage, samples, counters`` of the trace's processes.

        ``frames``: those of the samples' stacks. ``ranks``: ranks of each known NCCL communicator.
        """
        self._session = session
        self._pool = session.pool
        self._threads: dict[tuple[int, int, int], int] = {}
        self._processes: dict[int, int] = {}
        self._ranks = ranks
        self.rows: dict[str, Rows] = {}
        self.payload = parts["slices"].pop("payload", np.empty(0, np.int64))
        self._domain = parts["slices"].pop("domain", np.empty(0, np.int32))
        self._slices(parts["slices"])
        self._calls(parts["calls"])
        self._devices(parts)
        self._work("kernels", parts["kernels"])
        self._work("copies", parts["copies"])
        self._waits(parts["waits"])
        self._memory(parts["usage"])
        self.rows["counters"] = Rows(TABLES["counters"], parts["counters"])
        self.steps: Steps = find_steps(
            dict(self.rows["slices"]) if len(self.rows["slices"]) else {},
            self._domain,
            self._pool.strings,
            session.ended_ns,
        )
        self.rows["steps"] = Rows(TABLES["steps"], self.steps.columns)
        self._samples(parts["samples"], frames)
        self._list_threads()

    def collectives(self, fields: list[dict[str, int]]) -> None:
        """Fill the table of collectives; ``fields``: values of the payload in each row of ``payload``."""
        kernels = self.rows["kernels"]
        rows = np.flatnonzero(kernels["communication"])
        messages = self._messages(rows, fields)
        operations = self._annotated(rows)
        names, sizes = [], defaultdict(list)
        for row in rows.tolist():
            message = messages.get(row)
            kernel = communication.collective_name(self._pool.strings[kernels["name"][row]])
            name = operations.get(row) or (message.operation if message else kernel)
            names.append(self._pool.code(name))
            communicator = message.communicator if message else None
            sizes["group"].append(
                MISSING if communicator is None else self._pool.code(f"{communicator & 2**64 - 1:016x}")
            )
            sizes["group_size"].append(MISSING if communicator is None else self._ranks.get(communicator, MISSING))
            for column, value in (
                ("elements_in", message.bytes_in if message else None),
                ("elements_out", message.bytes_out if message else None),
            ):
                sizes[column].append(MISSING if value is None else value)
            known = message is not None and (message.bytes_in is not None or message.bytes_out is not None)
            sizes["dtype"].append(self._pool.code(BYTE) if known else MISSING)
        columns = {
            "start_ns": kernels["start_ns"][rows],
            "end_ns": kernels["end_ns"][rows],
            "name": np.array(names, np.int32),
            "kernel": rows.astype(np.int32),
        }
        columns |= {name: np.array(values, np.int64) for name, values in sizes.items()}
        self.rows["collectives"] = Rows(TABLES["collectives"], columns)

    def _process(self, columns: Columns) -> Array:
        """Return the number of each row's process in the trace."""
        distinct, inverse = np.unique(columns["process"], return_inverse=True)
        known = [self._processes.setdefault(one, len(self._processes)) for one in distinct.tolist()]
        return np.array(known, np.int64)[inverse.reshape(-1)] if len(known) else np.empty(0, np.int64)

    def _thread(self, columns: Columns, lane: Array | int = 0) -> Array:
        """Return the row of ``threads`` of each row."""
        lanes = np.broadcast_to(np.asarray(lane), (len(columns["globalTid"]),))
        each, inverse = distinct_rows(columns["process"], columns["globalTid"], lanes)
        places = zip(
            columns["process"][each].tolist(), columns["globalTid"][each].tolist(), lanes[each].tolist(), strict=True
        )
        known = [self._threads.setdefault(place, len(self._threads)) for place in places]
        return np.array(known, np.int32)[inverse]

    def _list_threads(self) -> None:
        code = self._pool.code
        shown = [
            (
                "?" if process == NULL else str(pid_of(process)),
                ("?" if thread == NULL else str(thread & 0xFFFFFF)) + OWN_LANE[lane],
            )
            for process, thread, lane in self._threads
        ]
        self.rows["threads"] = Rows(
            TABLES["threads"],
            {
                "process": np.array([code(process) for process, _ in shown], np.int32),
                "thread": np.array([code(thread) for _, thread in shown], np.int32),
            },
        )

    def _table(self, name: str, columns: Columns) -> None:
        declared = {column.name for column in TABLES[name].columns}
        self.rows[name] = Rows(TABLES[name], {key: values for key, values in columns.items() if key in declared})

    def _slices(self, columns: Columns) -> None:
        columns["thread"] = self._thread(columns, columns["lane"])
        order = nesting_order(columns["thread"], columns["start_ns"], columns["end_ns"])
        self.payload, self._domain = self.payload[order], self._domain[order]
        self._lane = columns["lane"][order]
        reorder(columns, order)
        found = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
        columns["parent"] = np.where(self._lane == 0, found, MISSING).astype(np.int32)
        self._table("slices", columns)

    def _calls(self, columns: Columns) -> None:
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        columns["thread"] = self._thread(columns)
        columns["kind"] = of_names(columns["name"], self._pool.strings, categories.call_kind, np.uint8)
        columns["parent"] = span_around(self.rows["slices"], columns["thread"], columns["start_ns"], columns["end_ns"])
        self._table("calls", columns)
        # If calls share a correlation id, the one that launches wins.
        launches = columns["kind"] <= int(CallKind.MEMSET)
        keys = self._keys(columns)
        self._by_correlation = Lookup(keys, np.argsort(launches, kind="stable"))

    def _keys(self, columns: Columns) -> Array:
        """Return process and correlation id as one number; ``MISSING`` if the id is unknown."""
        correlation = columns["correlation"]
        known = (correlation >= 0) & (correlation < 1 << _CORRELATIONS)
        return np.where(known, (self._process(columns) << _CORRELATIONS) + np.where(known, correlation, 0), MISSING)

    def _devices(self, parts: dict[str, Columns]) -> None:
        seen = np.concatenate([parts[name]["device"] for name in ("kernels", "copies", "waits")])
        ordinals = np.unique(seen)
        owners = np.concatenate([parts[name]["process"] for name in ("kernels", "copies", "waits")])
        found = []
        for ordinal in ordinals.tolist():
            owner = int(owners[seen == ordinal][0])
            found.append(products(self._session, owner, [ordinal])[0])
        self._ordinals = ordinals
        self._table(
            "devices",
            {
                "ordinal": ordinals,
                "name": np.array(
                    [self._pool.code(product.name) if product and product.name else MISSING for product in found],
                    np.int32,
                ),
                "cores": np.array(
                    [product.cores if product and product.cores else MISSING for product in found], np.int64
                ),
                "memory_bytes": np.array(
                    [product.memory_bytes if product and product.memory_bytes else MISSING for product in found],
                    np.int64,
                ),
            },
        )

    def _work(self, name: str, columns: Columns) -> None:
        reorder(columns, np.lexsort((columns["start_ns"], columns["stream"], columns["device"])))
        calls = self.rows["calls"]
        columns["call"] = self._by_correlation(self._keys(columns))
        columns["device"] = np.searchsorted(self._ordinals, columns["device"]).astype(np.int32)
        columns["op"] = op_above(self.rows["slices"], parent_of_call(calls, columns["call"]))
        if name == "kernels":
            strings = self._pool.strings
            columns["communication"] = of_names(columns["name"], strings, communication.is_communication, bool)
        self._table(name, columns)

    def _waits(self, columns: Columns) -> None:
        columns["call"] = self._by_correlation(self._keys(columns))
        columns["device"] = np.searchsorted(self._ordinals, columns["device"]).astype(np.int32)
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        self._table("sync_records", columns)

    def _memory(self, columns: Columns) -> None:
        if not columns:
            self._table("memory", {})
            return
        calls = self.rows["calls"]
        call = self._by_correlation(self._keys(columns))
        own = self._thread(columns)
        if len(calls):
            held = np.maximum(call, 0)
            columns["thread"] = np.where(call == MISSING, own, calls["thread"][held]).astype(np.int32)
            columns["op"] = np.where(call == MISSING, MISSING, calls["parent"][held]).astype(np.int32)
        else:
            columns["thread"] = own
        columns["action"] = np.where(columns["bytes"] < 0, MemoryAction.RELEASE, MemoryAction.RESERVE)
        reorder(columns, np.argsort(columns["time_ns"], kind="stable"))
        self._table("memory", columns)

    def _samples(self, columns: Columns, frames: Rows) -> None:
        columns["thread"], columns["time_ns"] = self._thread(columns), columns.pop("start_ns")
        size = len(columns["time_ns"])
        columns |= {"delay_ns": np.zeros(size, np.int64), "worker": np.zeros(size, bool)}
        self.rows["frames"] = frames if size else Rows(TABLES["frames"], {})
        self._table("samples", columns)

    def _messages(self, rows: Array, fields: list[dict[str, int]]) -> dict[int, host.Message]:
        """Return communication kernel -> its message from NCCL's ranges."""
        kernels, calls, slices = self.rows["kernels"], self.rows["calls"], self.rows["slices"]
        linked = rows[kernels["call"][rows] != MISSING]
        if not len(linked) or not len(slices):
            return {}
        codes = [code for code in np.unique(slices["name"]).tolist() if self._pool.strings[code].startswith("nccl")]
        ranges = np.flatnonzero(np.isin(slices["name"], codes) & (self._lane == 0))
        result: dict[int, host.Message] = {}
        threads = calls["thread"][kernels["call"][linked]]
        for thread in np.unique(threads).tolist():
            own = ranges[slices["thread"][ranges] == thread].tolist()
            marks = [
                host.Call(
                    name=self._pool.strings[slices["name"][row]],
                    start_ns=int(slices["start_ns"][row]),
                    end_ns=int(slices["end_ns"][row]),
                    fields=fields[self.payload[row]] if self.payload[row] != MISSING else {},
                )
                for row in own
            ]
            launched = linked[threads == thread]
            begun = calls["start_ns"][kernels["call"][launched]]
            result |= host.messages(marks, zip(begun.tolist(), launched.tolist(), strict=True), self._ranks)
        return result

    def _annotated(self, rows: Array) -> dict[int, str]:
        """Return communication kernel -> the operation in PyTorch's annotation around its launch."""
        kernels, calls, slices = self.rows["kernels"], self.rows["calls"], self.rows["slices"]
        named = {
            code: match[1]
            for code in np.unique(slices["name"]).tolist()
            if (match := _ANNOTATION.match(self._pool.strings[code])) is not None
        }
        found_in: dict[int, str] = {}
        for row in rows[kernels["call"][rows] != MISSING].tolist() if named else ():
            index = int(calls["parent"][kernels["call"][row]])
            while index != MISSING and int(slices["name"][index]) not in named:
                index = int(slices["parent"][index])
            if index != MISSING:
                found_in[row] = named[int(slices["name"][index])]
        return found_in
