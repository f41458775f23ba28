"""What a recording says of one run of a program: its length, and each instruction's time, to hold a model against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.hlo_collectives import KINDS
from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_executions import executions, module_index, rows_of
from perfscope.analyzers.facts.hlo_roofline import run_times
from perfscope.analyzers.hlo.module import HloModule
from perfscope.model.intervals import union
from perfscope.model.trace import MISSING, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run of a program as recorded. Times in ns."""

    step_ns: int
    """Median over runs and devices from the first begin to the last end; where runs are not told apart, ``busy_ns``."""
    busy_ns: int
    """The like of the time in which anything ran."""
    runs: int
    devices: int
    apart: bool
    """False: runs are not told apart in the recording, gaps between instructions are in no number."""
    instructions: Mapping[tuple[str, str], float]
    """Mean time of a run of each instruction, by computation and name. Of collectives on several devices the shortest
    of each run: that of the device which came last and waited for none."""


def measured_run(trace: Trace, module: HloModule) -> MeasuredRun | None:
    """What the trace says of a module of it; ``None`` where it did not run, or nothing says how often."""
    index = module_index(trace, module)
    ran = trace.fact(executions).get(index)
    cost = trace.fact(hlo_costs)[index]
    ops = trace.rows["hlo_ops"]
    names = [row.instruction.name for row in cost.rows if row.place != "inside"]
    rows = rows_of(trace, module, names)
    rows = rows[~ops["encloses"][rows]]
    if ran is None or not len(rows):
        return None
    times = dict(trace.fact(run_times)[index])
    if ran.devices > 1:
        for row in cost.launched:
            kind = row.instruction.opcode.removesuffix("-start")
            if kind in KINDS or row.once.wire_bytes:
                alone = _last_to_come(trace, module, row.instruction.name)
                if alone is not None:
                    times[row.computation, row.instruction.name] = alone
    spans = _spans(trace, rows)
    if spans is None:
        total = sum(
            union(ops["start_ns"][mine], ops["end_ns"][mine]).total()
            for ordinal in np.unique(ops["ordinal"][rows])
            if len(mine := rows[ops["ordinal"][rows] == ordinal])
        )
        busy = round(total / ran.count)
        return MeasuredRun(
            step_ns=busy, busy_ns=busy, runs=round(ran.count), devices=ran.devices, apart=False, instructions=times
        )
    whole, busy_each = spans
    return MeasuredRun(
        step_ns=round(float(np.median(whole))),
        busy_ns=round(float(np.median(busy_each))),
        runs=len(whole),
        devices=ran.devices,
        apart=True,
        instructions=times,
    )


def _spans(trace: Trace, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> tuple[list[int], list[int]] | None:
    """Length and busy time of each run on each device; ``None`` where some row tells no run."""
    ops = trace.rows["hlo_ops"]
    runs = ops["run_id"][rows]
    if (runs == MISSING).any():
        return None
    order = np.lexsort((runs, ops["ordinal"][rows]))
    rows = rows[order]
    ordinal, run = ops["ordinal"][rows], ops["run_id"][rows]
    cuts = np.flatnonzero((np.diff(ordinal) != 0) | (np.diff(run) != 0)) + 1
    whole, busy = [], []
    for mine in np.split(rows, cuts):
        start, end = ops["start_ns"][mine], ops["end_ns"][mine]
        whole.append(int(end.max() - start.min()))
        busy.append(union(start, end).total())
    return whole, busy


def _last_to_come(trace: Trace, module: HloModule, name: str) -> float | None:
    """Mean over runs of the shortest time of an instruction on any device; ``None`` where runs are not told apart."""
    ops = trace.rows["hlo_ops"]
    rows = rows_of(trace, module, [name])
    if not len(rows) or (ops["run_id"][rows] == MISSING).any():
        return None
    rows = rows[np.lexsort((ops["start_ns"][rows], ops["run_id"][rows], ops["ordinal"][rows]))]
    shortest: dict[tuple[int, int], int] = {}
    turns: dict[tuple[int, int], int] = {}
    for row in rows.tolist():
        key = (int(ops["ordinal"][row]), int(ops["run_id"][row]))
        turn = turns.get(key, 0)
        turns[key] = turn + 1
        took = int(ops["end_ns"][row] - ops["start_ns"][row])
        place = (key[1], turn)
        shortest[place] = min(shortest.get(place, took), took)
    return sum(shortest.values()) / len(shortest)
