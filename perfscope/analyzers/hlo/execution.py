"""Number of runs of compiled programs in a recording, and the time of their instructions.

Joined by ``hlo_time``; every time here is from the trace. *Exposed* time is the time that a device would save without
some instructions: the time while one of them ran and nothing else did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.roofline import agreed_executions
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import MISSING, Rows, Trace


class Executions(Struct, frozen=True, kw_only=True):
    """Number of runs of a program in the recording."""

    count: float
    """Sum over all devices. A fraction if the recording begins or ends inside a run."""
    devices: int

    @property
    def rounds(self) -> float:
        """Runs on each device: the factor for a saving in one run, because devices run in parallel."""
        return self.count / self.devices


def executions(trace: Trace) -> Mapping[int, Executions]:
    """Return the runs of each program, by index in ``trace.hlo``, for programs with a known number of runs.

    Counted by the executions' own numbers if every row has one, else by the number that most instructions agree on.
    """
    result = {}
    times, ops, costs = trace.fact(hlo_time), trace.rows["hlo_ops"], trace.fact(hlo_costs)
    for index, rows in trace.fact(_rows_of).modules.items():
        devices = len(np.unique(ops["ordinal"][rows]))
        runs = ops["run_id"][rows]
        count: float | None
        if (runs != MISSING).all():
            count = float(len(_split(np.stack([ops["ordinal"][rows], runs]))))
        else:
            agreed = agreed_executions(times, index, costs[index])
            count = None if agreed is None else float(agreed)
        if count:
            result[index] = Executions(count=count, devices=devices)
    return result


def executions_of(trace: Trace, module: HloModule) -> Executions | None:
    """Return the number of runs of a program; None if it did not run or the number is unknown."""
    return trace.fact(executions).get(module_index(trace, module))


def module_index(trace: Trace, module: HloModule) -> int:
    """Index of a module in ``trace.hlo``; ``KeyError`` if it is of another trace."""
    return trace.fact(_indices)[id(module)]


def measured_ns(trace: Trace, module: HloModule, instructions: Iterable[str]) -> int | None:
    """Return the summed durations of instructions over the trace and all its devices; None if none was measured."""
    times, index = trace.fact(hlo_time).by_key, module_index(trace, module)
    durations = [times[index, name].total_ns for name in dict.fromkeys(instructions) if (index, name) in times]
    return sum(durations) if durations else None


def rows_of(trace: Trace, module: HloModule, instructions: Iterable[str]) -> Int64:
    """Return the rows of ``hlo_ops`` of instructions on all devices, unordered, including enclosing instructions."""
    table, index = trace.fact(_rows_of).instructions, module_index(trace, module)
    rows = [table[index, name] for name in dict.fromkeys(instructions) if (index, name) in table]
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


def exposed_ns(trace: Trace, module: HloModule, instructions: Iterable[str]) -> int | None:
    """Return the time over the trace and all its devices while only these instructions ran; None if none was measured.

    Their device would save this time without them. Enclosing instructions are ignored on both sides. On a CPU, where
    instructions share the processors, each moment is divided among the running instructions, because without some the
    others would have the processors to themselves.
    """
    ops, table = trace.rows["hlo_ops"], trace.fact(_rows_of)
    mine = rows_of(trace, module, instructions)
    mine = mine[~ops["encloses"][mine]]
    if not len(mine):
        return None
    # only overlapping rows can hide them; with few of these, a full pass over the trace is avoided
    groups = np.unique(table.group[mine])
    start, end = table.bounds[groups], table.bounds[groups + 1]
    skipped = np.concatenate(([0], np.cumsum(end - start)[:-1]))
    near = table.ordered[np.repeat(start - skipped, end - start) + np.arange(int((end - start).sum()))]
    if module.platform == "cpu":
        return _shared(ops, near, np.isin(near, mine), table.shift)
    rest = near[~np.isin(near, mine)]
    return _length(ops, near, table.shift) - _length(ops, rest, table.shift)


def _length(ops: Rows, rows: Int64, shift: Int64) -> int:
    """Return the time in which any of the rows ran, per device: ``shift`` places devices one after another."""
    moved = shift[rows]
    return union(ops["start_ns"][rows] + moved, ops["end_ns"][rows] + moved).total()


def _shared(ops: Rows, rows: Int64, mine: np.ndarray, shift: Int64) -> int:
    """Return the sum over time of the share of running ``rows`` that is ``mine``, times the duration."""
    start, end = ops["start_ns"][rows] + shift[rows], ops["end_ns"][rows] + shift[rows]
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(len(rows), np.int64), -np.ones(len(rows), np.int64)])
    running = np.cumsum(change[order])[:-1]
    ours = np.cumsum((change * np.concatenate([mine, mine]))[order])[:-1]
    return round(float((np.diff(times[order]) * ours / np.maximum(running, 1)).sum()))


def measured_run_ns(trace: Trace, module: HloModule, instructions: Iterable[str]) -> float | None:
    """Return ``exposed_ns`` per run and device; None if not measured, or if the number of runs is unknown."""
    ran = executions_of(trace, module)
    spent = None if ran is None else exposed_ns(trace, module, instructions)
    return None if ran is None or spent is None else spent / ran.count


def _indices(trace: Trace) -> Mapping[int, int]:
    return {id(module): index for index, module in enumerate(trace.hlo)}


class _Rows(Struct, frozen=True, kw_only=True):
    """Rows of ``hlo_ops`` by module and instruction, and their groups by overlap.

    Rows that overlap on a device, directly or through others, form a group.
    """

    modules: Mapping[int, Int64]
    instructions: Mapping[tuple[int, str], Int64]
    group: Int64
    """Group of each row; -1 for enclosing and asynchronous rows."""
    ordered: Int64
    """Rows by group, without rows outside of groups."""
    bounds: Int64
    """Begin of each group in ``ordered``, and the end."""
    shift: Int64
    """Shift of each row that places the devices one after another on a common time axis."""


def _rows_of(trace: Trace) -> _Rows:
    ops = trace.rows["hlo_ops"]
    known = {
        (row.module, row.program_id, row.instruction): row.module_index for row in trace.fact(hlo_time).instructions
    }
    ran = np.flatnonzero(~ops["asynchronous"])
    keys = np.stack([ops["module"].astype(np.int64), ops["program_id"], ops["name"].astype(np.int64)])[:, ran]
    instructions: dict[tuple[int, str], Int64] = {}
    modules: dict[int, list[Int64]] = {}
    for key, members in _split(keys):
        rows = ran[members]
        program = None if key[1] == MISSING else key[1]
        name = trace.text(key[2])
        index = known[trace.text(key[0]), program, name]
        if index is not None:
            modules.setdefault(index, []).append(rows)
            instructions[index, name] = rows
    return _Rows(
        modules={index: np.concatenate(rows) for index, rows in modules.items()},
        instructions=instructions,
        **_groups(ops),
    )


def _groups(ops: Rows) -> dict[str, Int64]:
    if not len(ops):
        nothing = np.empty(0, np.int64)
        return {"group": nothing, "ordered": nothing, "bounds": np.zeros(1, np.int64), "shift": nothing}
    low, high = int(ops["start_ns"].min()), int(ops["end_ns"].max())
    device = np.unique(ops["ordinal"], return_inverse=True)[1].reshape(-1).astype(np.int64)
    shift = device * (high - low + 1)
    inner = np.flatnonzero(~ops["encloses"] & ~ops["asynchronous"])
    begin, finish = ops["start_ns"][inner] + shift[inner], ops["end_ns"][inner] + shift[inner]
    order = np.lexsort((finish, begin))
    reach = np.maximum.accumulate(finish[order])
    opens = np.concatenate((np.ones(min(1, len(order)), bool), begin[order][1:] >= reach[:-1]))
    group = np.full(len(ops), -1, np.int64)
    group[inner[order]] = np.cumsum(opens) - 1
    return {
        "group": group,
        "ordered": inner[order],
        "bounds": np.concatenate((np.flatnonzero(opens), [len(order)])),
        "shift": shift,
    }


def _split(keys: Int64) -> list[tuple[tuple[int, ...], Int64]]:
    """Return the rows of every distinct key; ``keys`` is (parts of the key, rows)."""
    if not keys.shape[1]:
        return []
    code = np.zeros(keys.shape[1], np.int64)
    for part in keys:  # a single number per key sorts far faster than rows of several
        distinct, index = np.unique(part, return_inverse=True)
        code = code * len(distinct) + index.reshape(-1)
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order])) + 1
    return [(tuple(int(part) for part in keys[:, rows[0]]), rows) for rows in np.split(order, bounds)]
