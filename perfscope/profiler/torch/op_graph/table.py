"""The op graph while it grows: columns of numbers, strings by number. Written as compact JSON."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

OP_GRAPH_SCHEMA = "perfscope.op_graph/1"
"""The same text as in ``perfscope.model.op_graph``, which this layer may not import; a test holds them equal."""

OP_COLUMNS = (
    "name",
    "phase",
    "inputs",
    "outputs",
    "mutated",
    "pointwise",
    "reduction",
    "view",
    "flops",
    "module",
    "file",
    "line",
    "function",
    "sequence",
    "recompute",
    "host_read",
)
TENSOR_COLUMNS = ("storage", "shape", "dtype", "device", "bytes")
Line = tuple[str | None, int | None, str | None]


class OpTable:
    """Rows in execution order, ``limit`` ops at most; what comes after makes the graph ``truncated``."""

    def __init__(self, step: int, limit: int) -> None:
        self.step = step
        self.truncated = False
        self._limit = limit
        self._strings: dict[str, int] = {}
        self._texts: list[str] = []
        self._tensor_rows: dict[tuple[Any, ...], int] = {}
        self._ops: dict[str, list[Any]] = {column: [] for column in OP_COLUMNS}
        self._tensors: dict[str, list[Any]] = {column: [] for column in TENSOR_COLUMNS}
        self._reads: list[tuple[int, str, str]] = []
        self._parameters: set[int] = set()
        self._live_out: list[int] = []
        self._storages: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._ops["name"])

    def has_room(self) -> bool:
        """False, and the graph is truncated, if another op does not fit."""
        self.truncated = self.truncated or len(self) >= self._limit
        return not self.truncated

    @property
    def storage(self) -> list[int]:
        """Storage id per tensor row."""
        return self._tensors["storage"]

    def tensor(self, *, storage: int, shape: tuple[int, ...], place: Any, dtype: str, device: str, size: int) -> int:
        """Row of this tensor. ``place`` (strides, offset) keeps two parts of one storage apart."""
        key = (storage, shape, place, dtype)
        row = self._tensor_rows.get(key)
        if row is None:
            row = self._tensor_rows[key] = len(self._tensors["storage"])
            values = (storage, list(shape), self._string(dtype), self._string(device), size)
            for column, value in zip(TENSOR_COLUMNS, values, strict=True):
                self._tensors[column].append(value)
        return row

    def append(
        self, *, name: str, phase: str, module: str, line: Line, host_read: tuple[str, str] | None, **rest: Any
    ) -> None:
        """One op. ``host_read`` is (reason, type of the device that holds the value)."""
        if host_read is not None:
            self._reads.append((len(self), *host_read))
        row = dict(
            rest,
            name=self._string(name),
            phase=self._string(phase),
            module=self._string(module),
            file=self._string(line[0]),
            line=line[1],
            function=self._string(line[2]),
            host_read=None,
        )
        for column in OP_COLUMNS:
            self._ops[column].append(row[column])

    def context(self, op: int) -> tuple[str, Line]:
        """(module, (file, line, function)) of an op, to hand on to its backward."""
        file, function = (self._text(self._ops[column][op]) for column in ("file", "function"))
        return self._texts[self._ops["module"][op]], (file, self._ops["line"][op], function)

    def add_parameter(self, storage: int) -> None:
        """Marks a storage as that of a parameter or buffer."""
        self._parameters.add(storage)

    def close(self, live_out: list[int], storages: dict[str, list[Any]]) -> None:
        """Ends the graph: what is alive, where the program ran, and which reads would stall there.

        ``storages``: the columns ``bytes``, ``born`` and ``died``, one row a storage by its id.
        """
        self._live_out = live_out
        self._storages = storages
        device = self.device()
        for op, why, where in self._reads:
            # With an accelerator in the program, what the host reads of its own tensors stalls nothing.
            if device == "cpu" or where != "cpu":
                self._ops["host_read"][op] = self._string(why)

    def device(self) -> str:
        """The accelerator the program uses, else ``cpu``."""
        used = [self._texts[code] for code in dict.fromkeys(self._tensors["device"])]
        return next((name for name in used if name not in ("cpu", "meta")), "cpu")

    def save(self, path: Path) -> None:
        """Writes the file in one go: beside it first, then renamed, so that no half file is ever seen."""
        document = {
            "schema": OP_GRAPH_SCHEMA,
            "step": self.step,
            "device": self.device(),
            "truncated": self.truncated,
            "strings": self._texts,
            "tensors": self._tensors,
            "ops": self._ops,
            "storages": self._storages,
            "live_out": self._live_out,
            "parameters": sorted(self._parameters),
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        # mtime 0: the same step gives the same bytes.
        content = gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_bytes(content)
        partial.replace(path)

    def _string(self, text: str | None) -> int | None:
        if text is None:
            return None
        code = self._strings.get(text)
        if code is None:
            code = self._strings[text] = len(self._texts)
            self._texts.append(text)
        return code

    def _text(self, code: int | None) -> str | None:
        return None if code is None else self._texts[code]
