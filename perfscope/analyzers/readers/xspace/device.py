"""Planes of accelerators: streams of a GPU, op lines of a TPU core -> kernels, copies, instructions.

GPU: a line is a stream. Lines that a viewer's conversion adds (``XLA Ops``, ``Steps`` ...) repeat the streams and are
left out. TPU: ``XLA Ops`` is the work of the core, in order and nested: a loop encloses its body. Kernels are the
innermost instructions, so that no moment counts twice. An instruction that only starts or awaits an asynchronous copy
is a copy row, because the core does nothing else meanwhile. ``Async XLA Ops`` has the durations of copies and
collectives.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.devices import device_of_chip
from perfscope.analyzers.readers.columns import (
    ColumnBuffer,
    Columns,
    Lookup,
    nesting_order,
    of_names,
    parents,
    reorder,
)
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.planes import Line, Plane, signed
from perfscope.model.intervals import numbered
from perfscope.model.trace import TABLES, CallKind, CopyKind, HostMemory, Rows, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array


class Devices:
    """Collector of the lines of all accelerator planes; ``build`` makes the tables."""

    def __init__(self, pool: TraceBuilder) -> None:
        self._pool = pool
        self._work, self._around, self._steps, self._counters = (
            ColumnBuffer(),
            ColumnBuffer(),
            ColumnBuffer(),
            ColumnBuffer(),
        )
        self._found: list[tuple[int, Plane]] = []
        self._modules: dict[int, int] = {}
        self._executions: dict[int, tuple[Array, Array, Array]] = {}
        """Start, end and number of each TPU's executions of programs, by start."""
        self.graphs = self.hidden = 0
        """Work inside command buffers, and its part without the name of its instruction."""

    def add(self, plane: Plane, lines: list[Line]) -> None:
        """Add all lines of an accelerator's plane."""
        match = names.ACCELERATOR.match(plane.name)
        assert match is not None
        kind, ordinal = match[1], int(match[2])
        device = len(self._found)
        self._found.append((ordinal, plane))
        before = len(self._work)
        if kind == "TPU":
            self._executions[device] = self._numbered_executions(lines)
        for line in lines:
            if not len(line):
                continue
            if line.name == names.COUNTERS_LINE:
                self._add_counters(plane, line)
            elif line.name in names.WAITS:
                self._pool.marks[f"events of device lines without work ({line.name})"] += len(line)
            elif line.name == names.STEPS_LINE:
                self._add_steps(plane, line)
            elif kind == "TPU" and line.name in names.TPU_RECORDS:
                self._add_tpu(plane, line, device)
            elif kind == "GPU" and (stream := names.STREAM.match(line.name)):
                self._add_stream(plane, line, device, int(stream[1]))
            elif line.name in names.MIRRORS:
                self._pool.marks["events that repeat others for viewers"] += len(line)
            else:
                self._pool.unplaced[f"line {line.name} of an accelerator"] += len(line)
        if len(self._work) == before:
            self._found.pop()

    def _add_counters(self, plane: Plane, line: Line) -> None:
        code = self._by_metadata(line, lambda key: self._pool.code(plane.names.get(key, ""))).astype(np.int32)
        self._counters.append({"time_ns": line.start_ns, "name": code, "value": np.nan_to_num(line.values())})

    def _add_stream(self, plane: Plane, line: Line, device: int, stream: int) -> None:
        """Add a GPU's stream: every event is a kernel, a copy or a memset."""
        texts = {key: plane.names.get(key, "") for key in line.ids.tolist()}
        graph = line.number("cuda_graph_id") != MISSING
        self.graphs += int(graph.sum())
        self.hidden += int((graph & (line.number("hlo_op") == MISSING)).sum())
        details = np.maximum(line.number("memcpy_details"), line.number("memset_details"))
        self._append(line, np.ones(len(line), bool), {
            "name": self._by_metadata(line, lambda key: self._pool.code(texts[key])),
            "copy": self._by_metadata(line, lambda key: names.is_copy(texts[key])).astype(bool) | (details != MISSING),
            "kind": self._by_metadata(line, lambda key: names.copy_kind(texts[key])),
            "communication": self._by_metadata(line, lambda key: names.is_communication(texts[key])).astype(bool),
            "details": details, "size": line.number("kernel_details"),
            "hlo": line.number("hlo_op"), "module": line.number("hlo_module"),
            "asynchronous": np.zeros(len(line), bool),
            "program_id": line.number("program_id"), "run_id": line.number("run_id"),
            "correlation": line.number("correlation_id"),
        }, device, stream)  # fmt: skip

    def _add_tpu(self, plane: Plane, line: Line, device: int) -> None:
        if line.name == names.MODULES_LINE:
            for key in line.ids.tolist():
                name, program = names.numbered_program(plane.names.get(key, ""))
                if program is not None:
                    self._modules[signed(program)] = self._pool.code(name)
            self._pool.marks["executions of modules"] += len(line)
        else:
            self._add_ops(plane, line, device)

    def _add_steps(self, plane: Plane, line: Line) -> None:
        texts = {key: plane.names.get(key, "") for key in line.ids.tolist()}
        self._steps.append({
            "start_ns": line.start_ns, "end_ns": line.end_ns,
            "name": self._by_metadata(line, lambda key: self._pool.code(f"step {texts[key]}")).astype(np.int32),
            "number": self._by_metadata(line, lambda key: int(texts[key]) if texts[key].isdecimal() else MISSING),
        })  # fmt: skip

    def _add_ops(self, plane: Plane, line: Line, device: int) -> None:
        texts = {key: plane.names.get(key, "") for key in line.ids.tolist()}
        short = {key: names.instruction(text) for key, text in texts.items()}
        shared = plane.metadata_stats
        on_the_side = line.name == names.ASYNC_LINE
        is_copy = self._by_metadata(
            line, lambda key: names.is_copy_op(short[key]) or (on_the_side and names.collective(short[key]) is None)
        ).astype(bool)
        innermost = np.ones(len(line), bool) if on_the_side else _innermost(line)
        name = self._by_metadata(line, lambda key: self._pool.code(short[key]))
        columns = {
            "name": name, "hlo": name, "copy": is_copy,
            "kind": self._by_metadata(line, lambda key: names.copied_shape_kind(texts[key])),
            "communication": self._by_metadata(line, lambda key: names.is_communication(short[key])).astype(bool),
            "program_id": self._by_metadata(line, lambda key: _number(shared.get(key, {}), "program_id")),
            "run_id": self._execution_of(line, device),
            "asynchronous": np.full(len(line), on_the_side),
            # The same bytes are on the copy's start, its end and its own row; only one counts.
            "bytes": self._by_metadata(line, lambda key: _number(shared.get(key, {}), "bytes_accessed"))
            if on_the_side else np.full(len(line), MISSING, np.int64),
        }  # fmt: skip
        outer = ~innermost
        self._append(line, innermost, columns, device, line.id)
        if outer.any():
            self._around.append({
                "start_ns": line.start_ns[outer], "end_ns": line.end_ns[outer], "name": name[outer].astype(np.int32),
                "program_id": columns["program_id"][outer], "run_id": columns["run_id"][outer],
                "ordinal": np.full(int(outer.sum()), self._found[device][0], np.int64),
            })  # fmt: skip
            self._pool.marks["instructions around others (loops, calls)"] += int(outer.sum())

    @staticmethod
    def _numbered_executions(lines: list[Line]) -> tuple[Array, Array, Array]:
        """Return the executions on one device by start; the number counts those of the same program, from 0."""
        modules = [line for line in lines if line.name == names.MODULES_LINE]
        program = np.concatenate([np.empty(0, np.int64), *(line.by_id(line.ids) for line in modules)])
        start, end = (
            np.concatenate([np.empty(0, np.int64), *(getattr(line, name) for line in modules)])
            for name in ("start_ns", "end_ns")
        )
        order = np.argsort(start, kind="stable")
        number = np.empty(len(order), np.int64)
        for key in np.unique(program).tolist():
            mine = order[program[order] == key]
            number[mine] = np.arange(len(mine))
        return start[order], end[order], number[order]

    def _execution_of(self, line: Line, device: int) -> Array:
        """Return the number of the execution in which each event began, equal on every device; ``MISSING`` outside.

        The profile's own numbers differ between devices.
        """
        start, end, number = self._executions[device]
        if not len(start):
            return line.number("run_id")
        index = np.maximum(np.searchsorted(start, line.start_ns, side="right") - 1, 0)
        inside = (line.start_ns >= start[index]) & (line.start_ns < np.maximum(end[index], start[index] + 1))
        return np.where(inside, number[index], MISSING)

    @staticmethod
    def _by_metadata(line: Line, answer: object) -> Array:
        """Return ``answer(metadata id)`` of each event, called once per distinct id."""
        return line.by_id(np.array([answer(key) for key in line.ids.tolist()], np.int64))  # type: ignore[operator]

    def _append(self, line: Line, chosen: Array, columns: Columns, device: int, stream: int) -> None:
        self._pool.unplaced["sums over events, without a place in time"] += len(line.aggregated)
        chosen[line.aggregated] = False
        if not chosen.any():
            return
        columns |= {
            "start_ns": line.start_ns, "end_ns": line.end_ns,
            "device": np.full(len(line), device, np.int32), "stream": np.full(len(line), stream, np.int64),
        }  # fmt: skip
        self._work.append(columns if chosen.all() else {key: values[chosen] for key, values in columns.items()})

    def build(self, host: Mapping[str, Rows], call_details: Array | None) -> dict[str, Rows]:
        """Return ``devices``, ``kernels``, ``copies``, ``hlo_ops``, ``counters``; ``steps`` if the host has none."""
        rows = {"devices": self._devices()}
        work = self._work.take() if len(self._work) else {}
        parts: dict[str, Columns] = {"kernels": {}, "copies": {}}
        if work:
            reorder(work, np.lexsort((work["start_ns"], work["stream"], work["device"])))
            calls = host["calls"]
            launches = np.argsort(
                calls["kind"] <= CallKind.MEMSET, kind="stable"
            )  # If calls share an id, the one that launches.
            correlation = work.get("correlation", np.full(len(work["device"]), MISSING, np.int64))
            work["call"] = Lookup(calls["correlation"], launches)(correlation) if len(calls) else np.full_like(
                correlation, MISSING
            )  # fmt: skip
            parts = {
                "kernels": {key: values[~work["copy"]] for key, values in work.items()},
                "copies": {key: values[work["copy"]] for key, values in work.items()},
            }
        rows["kernels"] = self._kernels(parts["kernels"])
        rows["copies"] = self._copies(parts["copies"], host["calls"], call_details)
        rows["hlo_ops"] = self._hlo_ops(parts)
        rows["counters"] = Rows(TABLES["counters"], self._counters.take() if len(self._counters) else {})
        if len(self._steps) and not len(host["steps"]):
            rows["steps"] = self._shared_steps()
        return rows

    def _devices(self) -> Rows:
        found = [(ordinal, plane.stats) for ordinal, plane in self._found]
        named = [_product(stats) for _, stats in found]
        return Rows(TABLES["devices"], {
            "ordinal": np.array([ordinal for ordinal, _ in found], np.int64),
            "name": np.array([self._pool.code(name) if name else MISSING for name in named], np.int32),
            "cores": np.array([_number(stats, "core_count") for _, stats in found], np.int64),
            "memory_bytes": np.array([_number(stats, "memory_size") for _, stats in found], np.int64),
        })  # fmt: skip

    def _kernels(self, work: Columns) -> Rows:
        if not work or not len(work["device"]):
            return Rows(TABLES["kernels"], {})
        blank = np.full(len(work["device"]), MISSING, np.int64)
        codes, index = numbered(work.get("size", blank))
        launch = [
            names.launch_size(self._pool.strings[code]) if code != MISSING else (None, None, None)
            for code in codes.tolist()
        ]
        return Rows(TABLES["kernels"], {
            **{key: work[key] for key in ("start_ns", "end_ns", "device", "stream", "call", "communication")},
            "name": work["name"].astype(np.int32),
            "correlation": work.get("correlation", blank),
            "blocks": np.array([MISSING if blocks is None else blocks for blocks, _, _ in launch], np.int64)[index],
            "threads_per_block": np.array([MISSING if of is None else of for _, of, _ in launch], np.int32)[index],
            "occupancy": np.array([np.nan if share is None else share for _, _, share in launch], np.float32)[index],
        })  # fmt: skip

    def _copies(self, work: Columns, calls: Rows, call_details: Array | None) -> Rows:
        if not work or not len(work["device"]):
            return Rows(TABLES["copies"], {})
        count = len(work["device"])
        blank = np.full(count, MISSING, np.int64)
        kind, size = work["kind"].copy(), work.get("bytes", blank).copy()
        memory = np.full(count, HostMemory.NONE, np.int64)
        own = work.get("details", blank)
        # A program of a TPU reads and writes memory of the host that XLA has pinned.
        of_tpu = np.isin(work["device"], list(self._executions))
        call, called = work["call"], work["call"] != MISSING
        unknown = called & (kind == CopyKind.UNKNOWN)  # On ROCm only the call's name has the direction.
        kind[unknown] = of_names(calls["name"][call[unknown]], self._pool.strings, names.copy_kind, np.int64)
        detail = own.copy()
        elsewhere = called & (own == MISSING)
        if call_details is not None:
            detail[elsewhere] = call_details[call[elsewhere]]
        codes, index = numbered(detail)
        details = [
            names.copy_details(self._pool.strings[code]) if code != MISSING else (None, int(HostMemory.UNKNOWN))
            for code in codes.tolist()
        ]
        amount = np.array([MISSING if amount_bytes is None else amount_bytes for amount_bytes, _ in details], np.int64)[
            index
        ]
        side = np.array([side for _, side in details], np.int64)[index]
        size = np.where(size == MISSING, amount, size)
        crosses = np.isin(kind, (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_HOST))
        memory[crosses] = np.where(of_tpu, HostMemory.PINNED, side)[crosses]
        return Rows(TABLES["copies"], {
            **{key: work[key] for key in ("start_ns", "end_ns", "device", "stream", "call")},
            "name": work["name"].astype(np.int32), "correlation": work.get("correlation", blank),
            "kind": kind.astype(np.uint8), "host_memory": memory.astype(np.uint8), "bytes": size,
        })  # fmt: skip

    def _hlo_ops(self, parts: Mapping[str, Columns]) -> Rows:
        """Return a row per piece of device work with an instruction, and one per instruction around others."""
        ordinals = np.array([ordinal for ordinal, _ in self._found] or [0], np.int64)
        table = ColumnBuffer()
        for name, work in parts.items():
            known = work["hlo"] != MISSING if work and len(work["device"]) else np.empty(0, bool)
            if not known.any():
                continue
            program = work["program_id"][known]
            module = work.get("module", np.full(len(known), MISSING, np.int64))[known]
            table.append({
                "start_ns": work["start_ns"][known], "end_ns": work["end_ns"][known],
                "name": work["hlo"][known].astype(np.int32),
                "module": np.where(module == MISSING, self._module_of(program), module).astype(np.int32),
                "program_id": program, "run_id": work["run_id"][known], "ordinal": ordinals[work["device"][known]],
                "encloses": np.zeros(int(known.sum()), bool),
                "asynchronous": work["asynchronous"][known].astype(bool),
                {"kernels": "kernel", "copies": "copy"}[name]: np.flatnonzero(known).astype(np.int32),
            })  # fmt: skip
        if len(self._around):
            around = self._around.take()
            around["module"] = self._module_of(around["program_id"])
            around["encloses"] = np.ones(len(around["name"]), bool)
            table.append(around)
        columns = table.take() if len(table) else {}
        if columns:
            reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["hlo_ops"], columns)

    def _module_of(self, programs: Array) -> Array:
        numbers, index = numbered(programs)
        return np.array([self._modules.get(number, MISSING) for number in numbers.tolist()], np.int32)[index]

    def _shared_steps(self) -> Rows:
        """Return steps from the devices: a step lasts from its first start to its last end over all devices.

        Devices that work one after the other, or steps without a number, have separate steps.
        """
        columns = self._steps.take()
        numbers, index = np.unique(columns["number"], return_inverse=True)
        lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        start, last_start = np.full(len(numbers), highest), np.full(len(numbers), lowest)
        first_end, end = np.full(len(numbers), highest), np.full(len(numbers), lowest)
        for low, high, values in ((start, last_start, columns["start_ns"]), (first_end, end, columns["end_ns"])):
            np.minimum.at(low, index, values)
            np.maximum.at(high, index, values)
        in_turn = bool((last_start >= first_end).any())
        if in_turn or MISSING in numbers:
            reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
            if in_turn:
                columns["number"] = np.arange(len(index))
            return Rows(TABLES["steps"], columns)
        first = np.array([np.flatnonzero(index == step)[0] for step in range(len(numbers))], np.int64)
        return Rows(
            TABLES["steps"], {"start_ns": start, "end_ns": end, "name": columns["name"][first], "number": numbers}
        )


def _innermost(line: Line) -> Array:
    """Return events without another event inside, judged in ps: rounding could make neighbours nest."""
    begin, finish = line.offset_ps, line.offset_ps + line.duration_ps
    same = np.zeros(len(line), np.int64)
    order = nesting_order(same, begin, finish)
    above = parents(same, begin[order], finish[order])
    inside = above[(above != MISSING) & (line.duration_ps[order] > 0)]
    result = np.ones(len(line), bool)
    result[order[inside]] = False
    return result


def _product(stats: Mapping[str, object]) -> str:
    """Return the name of a device: as recorded, else the product with its properties; ``''`` if unknown."""
    name = str(stats.get("gpu_device_name") or stats.get("device_type_string") or "")
    if name:
        return name
    device = device_of_chip(
        str(stats.get("device_vendor", "")),
        (_number(stats, "compute_cap_major"), _number(stats, "compute_cap_minor")),
        _number(stats, "core_count"),
        memory_bytes=max(0, _number(stats, "memory_size")),
        clock_hz=1000 * max(0, _number(stats, "clock_rate")),  # In kHz.
    )
    return "" if device is None else device.name


def _number(stats: Mapping[str, object], name: str) -> int:
    """Return a number among a plane's or an event's stats, or ``MISSING``."""
    value = stats.get(name, MISSING)
    return signed(int(value)) if isinstance(value, int | float) else MISSING
