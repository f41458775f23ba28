"""Comparison of a modelled program with a measured run: the model's error, and a range with measured times.

The calibrated range uses measured times unchanged. Other instructions are priced by the efficiency that their class
reached if enough of it was measured, and else keep their modelled range; both are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.hlo import KINDS, HloModule, executions, hlo_costs, module_index, rows_of, run_times
from perfscope.analyzers.predict.levels import Class
from perfscope.analyzers.predict.model import Estimate, Row
from perfscope.analyzers.predict.program import estimate
from perfscope.analyzers.predict.spans import Range, ns_range
from perfscope.model.intervals import union
from perfscope.model.trace import MISSING, Trace

# One run of a program from a recording: its length and each instruction's time, for comparison with a model.

FEWEST = 5
"""Fewest measured instructions of a class for its efficiency to be used; with fewer it is only shown."""


class MeasuredRun(Struct, frozen=True, kw_only=True):
    """A recorded run of a program. Times in ns."""

    step_ns: int
    """Median over runs and devices from first begin to last end; ``busy_ns`` if runs cannot be separated."""
    busy_ns: int
    """The same for the time in which anything ran."""
    runs: int
    devices: int
    apart: bool
    """False: runs cannot be separated in the recording, so gaps between instructions are not included."""
    instructions: Mapping[tuple[str, str], float]
    """Mean time of a run of each instruction, by computation and name. For collectives on several devices the shortest
    of each run, which is that of the last device, because it did not wait."""


def measured_run(trace: Trace, module: HloModule) -> MeasuredRun | None:
    """The recorded run of a module; ``None`` if it did not run, or its number of runs is unknown."""
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
    """Length and busy time of each run on each device; ``None`` if some row lacks its run."""
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
    """Mean over runs of an instruction's shortest time on any device; ``None`` if runs cannot be separated."""
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


Group = Literal["products", "memory-bound", "collectives", "launches", "other"]


class InstructionError(Struct, frozen=True, kw_only=True):
    """An instruction, modelled and measured, per run."""

    row: Row
    group: Group
    measured_ns: float

    @property
    def inside(self) -> bool:
        """Whether the measured time is inside the range."""
        return self.row.once.low <= self.measured_ns <= self.row.once.high

    @property
    def off_ns(self) -> float:
        """Time outside the range over all runs: positive above, negative below, 0 inside."""
        above = max(0.0, self.measured_ns - self.row.once.high)
        return (above or min(0.0, self.measured_ns - self.row.once.low)) * self.row.runs


class GroupError(Struct, frozen=True, kw_only=True):
    """The instructions of a kind."""

    group: Group
    instructions: int
    measured_ns: float
    modelled: Range
    inside: int
    share: float
    """Sum of the low ends over sum of the measured times: the share of the peaks that was reached."""
    low_share: float
    """Lower quartile of the instructions."""
    high_share: float
    """Upper quartile of the instructions."""


class Calibration(Struct, frozen=True, kw_only=True):
    """Comparison of a program's model with a run of it."""

    program: str
    matched: Literal["the same program", "the same name"]
    differences: tuple[str, ...]
    """Parts that only the measured or only the modelled program has."""
    run: MeasuredRun
    modelled: Range
    """The modelled step."""
    calibrated: Range
    """The step with measured times."""
    instructions: tuple[InstructionError, ...]
    """Most time outside its range first."""
    groups: tuple[GroupError, ...]
    not_measured: int
    """Instructions without a measured time."""
    by_group: int
    """Number of these that the calibrated range prices by their group's efficiency."""

    @property
    def inside(self) -> bool:
        """Whether the measured step is inside the modelled range."""
        return self.modelled.low <= self.run.step_ns <= self.modelled.high


def calibrate(modelled: Estimate, module: HloModule, trace: Trace) -> Calibration | None:
    """Compare ``modelled`` with ``trace``; ``module``: the modelled program.

    The recorded program is the module itself, one with the same content, or the only one with its name; differences are
    listed. ``None`` if the trace has no run of such a program.
    """
    measured = _measured_module(module, trace)
    if measured is None:
        return None
    recorded, same = measured
    run = measured_run(trace, recorded)
    if run is None:
        return None
    times, differences = _joined(module, recorded, run, same=same)
    errors = []
    for row in modelled.rows:
        time = times.get((row.computation, row.name))
        if time is not None and _comparable(row, modelled):
            errors.append(InstructionError(row=row, group=_group(row), measured_ns=time))
    groups = groups_of(errors)
    usable = {group.group: group for group in groups if group.instructions >= FEWEST}
    prices, by_group = _prices(modelled, errors, usable)
    again = estimate(module, modelled.target, times=prices)
    return Calibration(
        program=modelled.program,
        matched="the same program" if same else "the same name",
        differences=tuple(differences),
        run=run,
        modelled=modelled.step_ns,
        calibrated=again.step_ns,
        instructions=tuple(sorted(errors, key=lambda error: (-abs(error.off_ns), -error.measured_ns * error.row.runs))),
        groups=groups,
        not_measured=len(modelled.rows) - len(errors),
        by_group=by_group,
    )


def _measured_module(module: HloModule, trace: Trace) -> tuple[HloModule, bool] | None:
    if any(candidate is module for candidate in trace.hlo):
        return module, True
    wanted = module.content()
    for candidate in trace.hlo:
        if _plain(candidate.name) == _plain(module.name) and candidate.content() == wanted:
            return candidate, True
    named = [candidate for candidate in trace.hlo if _plain(candidate.name) == _plain(module.name)]
    return (named[0], False) if len(named) == 1 else None


def _plain(name: str) -> str:
    return name.partition("(")[0]


def _joined(
    module: HloModule, recorded: HloModule, run: MeasuredRun, *, same: bool
) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Measured times by the modelled program's instructions; instructions with another shape do not match."""
    if same:
        return dict(run.instructions), []
    times = {}
    there = {
        (name, recorded.computations[computation].by_name[name].opcode): (computation, name)
        for computation, name in run.instructions
    }
    matched = 0
    missing = 0
    for computation in module.computations.values():
        for instruction in computation.instructions:
            key = there.get((instruction.name, instruction.opcode))
            if key is None:
                continue
            other = recorded.computations[key[0]].by_name[key[1]]
            if (other.shape.dtype, other.shape.dims) != (instruction.shape.dtype, instruction.shape.dims):
                missing += 1
                continue
            times[computation.name, instruction.name] = run.instructions[key]
            matched += 1
    differences = [f"{matched:,} of {len(run.instructions):,} measured instructions are in the modelled program"]
    if missing:
        differences.append(f"{missing:,} of the same name have another shape")
    return times, differences


def _comparable(row: Row, modelled: Estimate) -> bool:
    """Starts of asynchronous work are not comparable: a TPU records them as instants, not with their transfer time."""
    return not (modelled.target.platform == "tpu" and row.opcode.endswith("-start"))


def _group(row: Row) -> Group:
    by_class: Mapping[Class, Group] = {"collective": "collectives", "product": "products"}
    if row.what in by_class:
        return by_class[row.what]
    if row.bound == "launch":
        return "launches"
    return "memory-bound" if row.bound == "memory" else "other"


def groups_of(errors: Sequence[InstructionError]) -> tuple[GroupError, ...]:
    """Instructions by kind, longest measured time first; instructions without time are left out."""
    result: dict[Group, list[InstructionError]] = {}
    for error in errors:
        if error.measured_ns > 0:
            result.setdefault(error.group, []).append(error)
    groups = []
    for group, members in result.items():
        measured = sum(member.measured_ns * member.row.runs for member in members)
        modelled = sum((member.row.total for member in members), start=Range(low=0, high=0))
        shares = [member.row.once.low / member.measured_ns for member in members]
        low, high = np.quantile(shares, [0.25, 0.75])
        groups.append(
            GroupError(
                group=group,
                instructions=len(members),
                measured_ns=measured,
                modelled=modelled,
                inside=sum(member.inside for member in members),
                share=modelled.low / measured if measured else 0.0,
                low_share=float(low),
                high_share=float(high),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.measured_ns))


def _prices(
    modelled: Estimate, errors: Sequence[InstructionError], usable: Mapping[Group, GroupError]
) -> tuple[dict[tuple[str, str], Range], int]:
    """Times for the calibrated range by computation and instruction, and the number priced by group."""
    prices = {
        (error.row.computation, error.row.name): ns_range(error.measured_ns, error.measured_ns) for error in errors
    }
    by_group = 0
    for row in modelled.rows:
        key = (row.computation, row.name)
        group = usable.get(_group(row))
        if key in prices or group is None or not group.low_share or not group.high_share:
            continue
        prices[key] = ns_range(row.once.low / group.high_share, row.once.low / group.low_share)
        by_group += 1
    return prices, by_group


def bounded(calibration: Calibration, most: int) -> Calibration:
    """The calibration with its worst instructions only."""
    return replace(calibration, instructions=calibration.instructions[:most])
