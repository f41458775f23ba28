"""Events of one process as the tables and the JSON document of rocprofv3 have them, before they are joined."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers.columns import Columns
from perfscope.model.trace import TraceBuilder

LARGEST = 1 << 62
"""Upper bound of a time or number: nanoseconds since the machine started, ids, sizes."""


class Agent(Struct, frozen=True, kw_only=True):
    """A GPU of the machine. CPUs are agents too, and are left out."""

    key: int
    """Number or handle by which events refer to it."""
    order: int
    """Its place among the agents of the machine."""
    name: str
    """Product name, else the architecture (``gfx942``)."""
    cores: int | None


class Rows:
    """Rows of one kind: a text each, and numbers by column."""

    def __init__(self, *columns: str) -> None:
        self.texts: list[str] = []
        self.numbers = {name: array("q") for name in ("start", "end", *columns)}

    def add(self, text: str, **numbers: int) -> bool:
        """Add a row; False for one with an impossible time or number, which is not added."""
        if not all(-LARGEST < value < LARGEST for value in numbers.values()) or numbers["end"] < numbers["start"]:
            return False
        self.texts.append(text)
        for name, column in self.numbers.items():
            column.append(numbers.get(name, -1))
        return True

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.texts)

    def columns(self, builder: TraceBuilder) -> Columns:
        """Return the columns by start, texts as codes of the builder."""
        columns: Columns = {name: np.array(values, np.int64) for name, values in self.numbers.items()}
        columns["name"] = np.array([builder.code(text) for text in self.texts], np.int64)
        order = np.lexsort((-columns["end"], columns["start"]))
        return {name: values[order] for name, values in columns.items()}


class Events(Struct, kw_only=True):
    """All events of a process."""

    process: int | None = None
    agents: list[Agent] = []
    kernels: Rows
    copies: Rows
    calls: Rows
    marks: Rows
    unplaced: dict[str, int] = {}

    def leave(self, reason: str, count: int = 1) -> None:
        """Count events that fit no table."""
        if count:
            self.unplaced[reason] = self.unplaced.get(reason, 0) + count

    @property
    def total(self) -> int:
        """Number of events, also of those that fit no table."""
        rows = (self.kernels, self.copies, self.calls, self.marks)
        return sum(map(len, rows)) + sum(self.unplaced.values())


def no_events() -> Events:
    """Return the events of a process without any."""
    return Events(
        agents=[],
        kernels=Rows("agent", "queue", "stream", "correlation", "blocks", "threads"),
        copies=Rows("source", "target", "stream", "correlation", "bytes"),
        calls=Rows("thread", "correlation"),
        marks=Rows("thread"),
        unplaced={},
    )


def product(sizes: Iterable[int]) -> int:
    """Return the product of sizes, each at least 1; -1 for one that is not positive or too large."""
    result = 1
    for size in sizes:
        result *= size
        if not 0 < size < LARGEST or result >= LARGEST:
            return -1
    return result


def blocks_of(grid: Sequence[int], group: Sequence[int]) -> int:
    """Return the workgroups of a grid that is counted in work-items; -1 if it is unknown."""
    if product(grid) < 0 or product(group) < 0:
        return -1
    return product(-(-items // size) for items, size in zip(grid, group, strict=True))


def number(text: object) -> int:
    """Return an integer that a cell or a field has; -1 for anything else."""
    if isinstance(text, int):
        return text if not isinstance(text, bool) and -LARGEST < text < LARGEST else -1
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 20 else -1


def first_known(values: Mapping[str, int], *names: str) -> int:
    """Return the first value that is known; -1 without one."""
    return next((values[name] for name in names if values.get(name, -1) >= 0), -1)
