"""Measured time of every instruction of the compiled programs: a join of the profile with the modules.

The key is (module, instruction): a profile has the module's name and the number of the program in its process, and the
module that was recorded with it has both. If a profile has no number (or the module was read from another file, which
has none), the name alone is the key, if only one module has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace


class InstructionTime(Struct, frozen=True, kw_only=True):
    """One instruction of one program, over all its executions on all devices. Times in ns."""

    module: str
    program_id: int | None
    instruction: str
    module_index: int | None
    """Index in ``Trace.hlo``; None if no module of the trace has the instruction."""
    computation: str | None
    """Computation of that module that contains it."""
    calls: int
    """Pieces of work: on a GPU an instruction may launch several kernels."""
    total_ns: int
    """Sum of the durations. Work in a thread pool is included, and so are instructions inside a loop."""
    launch_ns: int
    """CPU backend: sum of the time in the calls that started it. Otherwise equal to ``total_ns``."""
    encloses: bool
    """Whether it encloses others (a loop, a call): their time is included and must not be added to it."""

    @property
    def mean_ns(self) -> float:
        """Mean duration of a piece of work."""
        return self.total_ns / self.calls


class HloTime(Struct, frozen=True, kw_only=True):
    """The join, longest first. Enclosing instructions are listed next to the enclosed ones."""

    instructions: tuple[InstructionTime, ...]
    by_key: Mapping[tuple[int, str], InstructionTime] = field(default_factory=dict)
    """Matched instructions by (index in ``Trace.hlo``, name). Two programs never share a row."""
    total_ns: int
    """Time of all instructions that do not enclose others."""
    unmatched_ns: int
    """Part of it whose instruction is in no module of the trace."""


def hlo_time(trace: Trace) -> HloTime:
    """Return calls and time by (module, instruction) of ``hlo_ops``; empty if nothing ran."""
    ops = trace.rows["hlo_ops"]
    ops = ops.take(np.flatnonzero(~ops["asynchronous"]))
    if not len(ops):
        return HloTime(instructions=(), total_ns=0, unmatched_ns=0)
    keys = np.stack([ops["module"].astype(np.int64), ops["program_id"], ops["name"].astype(np.int64)])
    distinct, index = np.unique(keys, axis=1, return_inverse=True)
    index = index.reshape(-1)
    size = distinct.shape[1]
    duration = ops["end_ns"] - ops["start_ns"]
    returned = np.where(ops["launch_end_ns"] == MISSING, ops["end_ns"], ops["launch_end_ns"])
    total, launch = _summed(duration, index, size), _summed(returned - ops["start_ns"], index, size)
    calls = np.bincount(index, minlength=size)
    around = np.zeros(size, bool)
    around[index[ops["encloses"]]] = True
    places = _Places(trace)
    rows = [
        places.row(
            module=int(distinct[0, i]),
            program=int(distinct[1, i]),
            instruction=trace.text(int(distinct[2, i])),
            calls=int(calls[i]),
            total_ns=int(total[i]),
            launch_ns=int(launch[i]),
            encloses=bool(around[i]),
        )
        for i in np.argsort(-total, kind="stable").tolist()
    ]
    return HloTime(
        instructions=tuple(rows),
        by_key={(row.module_index, row.instruction): row for row in reversed(rows) if row.module_index is not None},
        total_ns=sum(row.total_ns for row in rows if not row.encloses),
        unmatched_ns=sum(row.total_ns for row in rows if not row.encloses and row.module_index is None),
    )


class _Places:
    """Finds the module and computation of an instruction."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._by_program: dict[tuple[str, int], int] = {}
        self._by_name: dict[str, list[int]] = {}
        self._holders: dict[int, dict[str, str]] = {}
        for index, module in enumerate(trace.hlo):
            self._by_name.setdefault(module.name, []).append(index)
            if module.program_id is not None:
                self._by_program[module.name, module.program_id] = index

    def row(self, *, module: int, program: int, instruction: str, **measured: int) -> InstructionTime:
        name = self._trace.text(module)
        known = None if program == MISSING else program
        index = self._module(name, known)
        computation = None if index is None else self._holder(index).get(instruction)
        return InstructionTime(
            module=name,
            program_id=known,
            instruction=instruction,
            module_index=None if computation is None else index,
            computation=computation,
            calls=measured["calls"],
            total_ns=measured["total_ns"],
            launch_ns=measured["launch_ns"],
            encloses=bool(measured["encloses"]),
        )

    def _module(self, name: str, program: int | None) -> int | None:
        if program is not None and (name, program) in self._by_program:
            return self._by_program[name, program]
        named = self._by_name.get(name, [])
        if program is not None:  # a module with another number is another program
            named = [index for index in named if self._trace.hlo[index].program_id is None]
        return named[0] if len(named) == 1 else None

    def _holder(self, index: int) -> dict[str, str]:
        """Map instructions to computations of a module; for a duplicate name, the entry or the first computation."""
        if index not in self._holders:
            module = self._trace.hlo[index]
            result: dict[str, str] = {}
            for computation, instruction in module.instructions():
                if computation.name == module.entry or instruction.name not in result:
                    result[instruction.name] = computation.name
            self._holders[index] = result
        return self._holders[index]


def _summed(values: Int64, index: Int64, size: int) -> Int64:
    total = np.zeros(size, np.int64)
    np.add.at(total, index, values)
    return total
