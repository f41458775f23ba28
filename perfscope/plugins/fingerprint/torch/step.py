"""Values and ops of one step while it is recorded, and their lines in the document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from perfscope.plugins.fingerprint.document import MOST_OPS, hex_of
from perfscope.plugins.fingerprint.torch.measure import Measured, Tables, to_host
from perfscope.plugins.fingerprint.torch.unwritten import Storages, Unwritten

MOST_PENDING = 4_096
"""Most values whose numbers are on their devices."""


@dataclass(slots=True)
class Value:
    """A tensor at one moment. ``measured``: ``None`` for memory that nothing has written."""

    base: int | None
    dtype: str
    shape: tuple[int, ...]
    measured: Measured | None


class Place(NamedTuple):
    """Where an op is: line, module and phase of the step."""

    line: str = ""
    module: str = ""
    phase: str = ""


_NOWHERE = Place()


@dataclass(slots=True)
class RunningOp:
    """An op of the program, with the numbers of its values; ``roles``: of the values of a moment."""

    op: str
    place: Place = _NOWHERE
    arguments: str = ""
    reads: list[int] = field(default_factory=list)
    makes: list[int] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Memory:
    """A storage: its values by view, the last one that was written, and an op that writes it later."""

    views: dict[Any, int] = field(default_factory=dict)
    last: int | None = None
    late: RunningOp | None = None


class StepLog:
    """The step that is recorded."""

    def __init__(self, tables: Tables, storages: Storages, unwritten: Unwritten) -> None:
        self.values: list[Value] = []
        self.ops: list[RunningOp] = []
        self.left = 0
        """Ops beyond the limit."""
        self._tables, self._storages, self._unwritten = tables, storages, unwritten
        self._memory: dict[int, Memory] = {}
        self._pending: list[Measured] = []

    def add(self, op: RunningOp) -> bool:
        """Add an op; return False beyond the limit."""
        if len(self.ops) >= MOST_OPS:
            self.left += 1
            return False
        self.ops.append(op)
        return True

    def read(self, tensor: torch.Tensor) -> int | None:
        """Number of the tensor's value; ``None`` if it has none to record."""
        if not _has_values(tensor):
            return None
        storage = self._storages.of(tensor)
        memory = self._memory.setdefault(storage, Memory())
        key = _view_key(tensor)
        known = memory.views.get(key)
        if known is None:
            known = memory.views[key] = self._value(storage, tensor, memory.last)
            if memory.late is not None:
                memory.late.makes.append(known)
                memory.last, memory.late = known, None
        return known

    def write(self, tensor: torch.Tensor) -> int | None:
        """Number of the value that an op wrote to the tensor; earlier values of its memory are gone."""
        if not _has_values(tensor):
            return None
        storage = self._storages.of(tensor)
        self._unwritten.written(storage, tensor)
        return self._made(storage, tensor)

    def made(self, tensor: torch.Tensor, *, open_: bool = False) -> int | None:
        """Number of a result. ``open_``: the op does not write it."""
        if not _has_values(tensor):
            return None
        storage = self._storages.of(tensor)
        if open_:
            self._unwritten.allocated(storage, tensor)
        return self._made(storage, tensor)

    def allocated(self, tensor: torch.Tensor) -> None:
        """A tensor without content was made."""
        if _has_values(tensor):
            storage = self._storages.of(tensor)
            self._unwritten.allocated(storage, tensor)
            self._memory[storage] = Memory()

    def partly(self, func: Any, args: Any, kwargs: Any) -> int | None:
        """As `write`, of an op that writes a part of its first argument."""
        storage = self._storages.of(args[0])
        self._unwritten.partly_written(storage, func, args, kwargs)
        return self._made(storage, args[0])

    def later(self, tensor: torch.Tensor, op: RunningOp) -> None:
        """The op will have written the tensor when it is next read: it runs on."""
        if _has_values(tensor):
            storage = self._storages.of(tensor)
            self._unwritten.freed(storage)
            self._memory[storage] = Memory(late=op)

    def stored(self, tensor: torch.Tensor) -> bool:
        """Whether a part of the tensor's memory may be unwritten."""
        return self._unwritten.knows(self._storages.of(tensor))

    def number(self, hashed: int, dtype: str) -> int:
        """Number of a value without a tensor, such as the state of a generator."""
        self.values.append(Value(None, dtype, (), Measured(hashed, hashed)))
        return len(self.values) - 1

    def _made(self, storage: int, tensor: torch.Tensor) -> int:
        known = self._value(storage, tensor, None)
        self._memory[storage] = Memory(views={_view_key(tensor): known}, last=known)
        return known

    def _value(self, storage: int, tensor: torch.Tensor, base: int | None) -> int:
        measured: Measured | None = None
        if not self._unwritten.knows(storage):
            measured = self._tables.measure(tensor)
        elif (mask := self._unwritten.mask(storage, tensor)) is not None:
            measured = self._tables.measure(torch.where(mask, tensor.detach(), torch.zeros_like(tensor)))
        if measured is not None:
            self._pending.append(measured)
            if len(self._pending) >= MOST_PENDING:
                self.settle()
        self.values.append(Value(base, dtype_name(tensor), tuple(tensor.shape), measured))
        return len(self.values) - 1

    def settle(self) -> None:
        """Bring all numbers to the host."""
        to_host(self._pending)
        self._pending.clear()

    def lines(self) -> Iterator[list[Any]]:
        """Lines of the document: each value before the op that has it first."""
        self.settle()
        written: set[int] = set()
        for op in self.ops:
            for number in (*op.reads, *op.makes):
                if number not in written:
                    written.add(number)
                    yield self._line(number)
            yield ["o", op.op, *op.place, op.arguments, op.reads, op.makes, op.roles]

    def _line(self, number: int) -> list[Any]:
        value = self.values[number]
        measured = value.measured
        hashes = (None, None, None) if measured is None else (hex_of(measured.hash), hex_of(measured.row), None)
        sketch = None if measured is None or measured.sketch is None else measured.sketch
        return ["v", number, value.base, value.dtype, value.shape, *hashes[:2], sketch]


def dtype_name(tensor: torch.Tensor) -> str:
    """``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def _has_values(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() > 0


def _view_key(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()
