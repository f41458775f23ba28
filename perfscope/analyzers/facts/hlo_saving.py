"""What fixing something in a compiled program saves: modelled time, held to what was measured.

One currency for all rules on programs. A rule says which instructions are concerned and what one run of the program
would save by its model (a ``Part``); ``price`` makes a cost of it:

* With a recording, time is that of the trace: saving of a run, times the runs on a device. No more is saved than the
  instructions took while nothing else ran on their device, so a model of the wrong size cannot overstate.
* Programs alone have no clock: the cost is that of **one run of the program**, modelled on the device of
  ``program_device``. There is no cost a step then.
* In a recording that does not show the program running there is no cost: it took no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_roofline import agreed_executions, roof_sum_ns, roofline
from perfscope.analyzers.facts.hlo_time import hlo_time
from perfscope.analyzers.facts.intervals import Int64, union
from perfscope.analyzers.facts.program_device import program_device
from perfscope.analyzers.facts.step_windows import per_step, whole_ns
from perfscope.analyzers.finding import Basis, Severity, severity_of
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.trace import MISSING, Trace
from perfscope.analyzers.units import format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """How often a program ran in the recording."""

    count: float
    """On all devices together. A fraction where the recording begins or ends inside one."""
    devices: int

    @property
    def rounds(self) -> float:
        """Runs on each device: what a saving in one run is multiplied with, devices run side by side."""
        return self.count / self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Instructions of a program, and what one run of it would save on them by a model."""

    module: HloModule
    instructions: tuple[str, ...]
    """All whose time the saving comes out of; those around others (loops) do not count."""
    modelled_ns: float | None
    """In one run of the program; None where there is no model (no device)."""
    whole: bool = False
    """All the time of the instructions goes: measured time replaces the model instead of limiting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What fixing would save at most. Times in ns."""

    run_ns: float
    """In one run of the program (of each program once, where there are several), on one device."""
    measured_run_ns: float | None
    """What the instructions took in one run while nothing else ran on the device; None: not recorded."""
    cost_ns: int
    """For ``Finding.cost_ns``: over the trace, of programs alone in one run."""
    cost_ns_per_step: int | None
    basis: Basis
    severity: Severity
    text: str
    """``'3.13 us a run of the program, on H100 SXM (assumed)'``, ``'41.0 us a step'``, ``'120 us in all'``."""


def is_alone(trace: Trace) -> bool:
    """Whether the source holds programs and no recording of a run."""
    return trace.recorded == {"hlo"}


def executions(trace: Trace) -> Mapping[int, Executions]:
    """How often each program ran, by index in ``trace.hlo``; those that did not, or not known how often, are left out.

    By the executions' own numbers where every row has one, else by what most instructions agree on.
    """
    found = {}
    times, ops, costs = trace.fact(hlo_time), trace.rows["hlo_ops"], trace.fact(hlo_costs)
    for index, rows in trace.fact(_rows_of).modules.items():
        devices = len(np.unique(ops["ordinal"][rows]))
        runs = ops["run_id"][rows]
        count: float | None
        if (runs != MISSING).all():
            count = float(np.unique(np.stack([ops["ordinal"][rows], runs]), axis=1).shape[1])
        else:
            agreed = agreed_executions(times, index, costs[index])
            count = None if agreed is None else float(agreed)
        if count:
            found[index] = Executions(count=count, devices=devices)
    return found


def executions_of(trace: Trace, module: HloModule) -> Executions | None:
    """How often a program ran in the recording; None: it did not, or nothing says how often."""
    return trace.fact(executions).get(module_index(trace, module))


def module_index(trace: Trace, module: HloModule) -> int:
    """Index of a module in ``trace.hlo``; ``KeyError`` if it is of another trace."""
    return trace.fact(_indices)[id(module)]


def measured_ns(trace: Trace, module: HloModule, instructions: Iterable[str]) -> int | None:
    """Summed durations of instructions over the trace and all its devices; None if none of them was measured."""
    times, index = trace.fact(hlo_time).by_key, module_index(trace, module)
    found = [times[index, name].total_ns for name in dict.fromkeys(instructions) if (index, name) in times]
    return sum(found) if found else None


def exposed_ns(trace: Trace, module: HloModule, instructions: Iterable[str]) -> int | None:
    """Time over the trace and all its devices while only these instructions ran; None if none was measured.

    What their device would not have spent without them. Instructions around others are left out, of both sides.
    """
    ops, table, index = trace.rows["hlo_ops"], trace.fact(_rows_of), module_index(trace, module)
    parts = [
        table.instructions[index, name] for name in dict.fromkeys(instructions) if (index, name) in table.instructions
    ]
    if not parts:
        return None
    mine = np.zeros(len(ops), bool)
    mine[np.concatenate(parts)] = True
    if not (mine & ~ops["encloses"]).any():
        return None
    total = 0
    for rows in table.devices.values():
        rest = rows[~mine[rows]]
        if len(rest) < len(rows):
            busy = union(ops["start_ns"][rows], ops["end_ns"][rows]).total()
            total += busy - union(ops["start_ns"][rest], ops["end_ns"][rest]).total()
    return total


def measured_run_ns(trace: Trace, module: HloModule, instructions: Iterable[str]) -> float | None:
    """``exposed_ns`` of one run of the program on one device; None if not measured, or not known how often it ran."""
    ran = executions_of(trace, module)
    spent = None if ran is None else exposed_ns(trace, module, instructions)
    return None if ran is None or spent is None else spent / ran.count


def bytes_ns(trace: Trace, moved: float) -> float | None:
    """Least time to move bytes through device memory; None where no device is known or may be assumed."""
    known = trace.fact(program_device)
    return None if known is None else 1e9 * moved / known.device.memory_bandwidth


def wire_ns(trace: Trace, sent: float) -> float | None:
    """Least time to send bytes over a device's links; None where there is no device or its links are not known."""
    known = trace.fact(program_device)
    if known is None or not known.device.link_bandwidth:
        return None
    return 1e9 * sent / known.device.link_bandwidth


def program_roof_ns(trace: Trace) -> Mapping[int, float]:
    """Least time of one run of each program on the device, by index in ``trace.hlo``; empty without a device."""
    known = trace.fact(program_device)
    if known is None:
        return {}
    return {index: roof_sum_ns(roofline(cost, known.device)) for index, cost in enumerate(trace.fact(hlo_costs))}


def price(trace: Trace, parts: Iterable[Part]) -> Price | None:
    """What fixing all parts would save at most; ``None`` where no time can be said.

    Parts of one program add up, held to the time of all their instructions together: an instruction in two parts
    is not saved twice. Severity is the share of the steps (without a recording of the program's modelled time) and
    never ``high`` where the time is a model on an assumed device.
    """
    grouped: dict[int, list[Part]] = {}
    for part in parts:
        grouped.setdefault(module_index(trace, part.module), []).append(part)
    saved = {index: _of_program(trace, members) for index, members in grouped.items()}
    known = {index: found for index, found in saved.items() if found is not None}
    if not known:
        return None
    known_runs = {index: found.ns for index, found in known.items()}
    measured = [found.measured_ns for found in known.values() if found.measured_ns is not None]
    basis: Basis = "measured" if all(found.is_measured for found in known.values()) else "modelled"
    run_ns = sum(known_runs.values())
    device = trace.fact(program_device)
    sure = basis == "measured" or (device is not None and (device.recorded or device.given))
    if is_alone(trace):
        roofs = trace.fact(program_roof_ns)
        cost, step = round(run_ns), None
        severity = severity_of(run_ns, sum(roofs[index] for index in known))
        programs = "program" if len(known) == 1 else "programs"
        text = f"{format_ns(run_ns)} a run of the {programs}" + ("" if device is None else f", on {device.label()}")
    else:
        ran = trace.fact(executions)
        cost = round(sum(ns * ran[index].rounds for index, ns in known_runs.items()))
        step = per_step(trace, cost)
        severity = severity_of(cost, whole_ns(trace))
        text = f"{format_ns(cost)} in all" if step is None else f"{format_ns(step)} a step"
        if basis == "modelled" and device is not None:
            text += f", modelled on {device.label()}"
    return Price(
        run_ns=run_ns,
        measured_run_ns=sum(measured) if measured else None,
        cost_ns=cost,
        cost_ns_per_step=step,
        basis=basis,
        severity=severity if sure or severity != "high" else "medium",
        text=text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """In one run of a program."""

    ns: float
    measured_ns: float | None
    is_measured: bool


def _of_program(trace: Trace, parts: list[Part]) -> _Saved | None:
    module = parts[0].module
    measured = measured_run_ns(trace, module, (name for part in parts for name in part.instructions))
    if not is_alone(trace) and executions_of(trace, module) is None:
        return None
    if measured is not None and all(part.whole for part in parts):
        return _Saved(ns=measured, measured_ns=measured, is_measured=True)
    models = [part.modelled_ns for part in parts if part.modelled_ns is not None]
    if not models:
        return None
    modelled = max(0.0, sum(models))
    return _Saved(ns=modelled if measured is None else min(modelled, measured), measured_ns=measured, is_measured=False)


def _indices(trace: Trace) -> Mapping[int, int]:
    return {id(module): index for index, module in enumerate(trace.hlo)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of ``hlo_ops``. By module all, by instruction and device those that enclose no other."""

    modules: Mapping[int, Int64]
    instructions: Mapping[tuple[int, str], Int64]
    devices: Mapping[int, Int64]


def _rows_of(trace: Trace) -> _Rows:
    ops = trace.rows["hlo_ops"]
    if not len(ops):
        return _Rows(modules={}, instructions={}, devices={})
    known = {
        (row.module, row.program_id, row.instruction): row.module_index for row in trace.fact(hlo_time).instructions
    }
    keys = np.stack([ops["module"].astype(np.int64), ops["program_id"], ops["name"].astype(np.int64)])
    instructions: dict[tuple[int, str], Int64] = {}
    modules: dict[int, list[Int64]] = {}
    for key, rows in _split(keys):
        program = None if key[1] == MISSING else key[1]
        name = trace.text(key[2])
        index = known[trace.text(key[0]), program, name]
        if index is not None:
            modules.setdefault(index, []).append(rows)
            instructions[index, name] = rows
    inner = np.flatnonzero(~ops["encloses"])
    devices = {key[0]: inner[rows] for key, rows in _split(ops["ordinal"][inner][None, :])}
    return _Rows(
        modules={index: np.concatenate(rows) for index, rows in modules.items()},
        instructions=instructions,
        devices=devices,
    )


def _split(keys: Int64) -> list[tuple[tuple[int, ...], Int64]]:
    """Rows of every distinct key; ``keys`` is (parts of the key, rows)."""
    distinct, index = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(index.reshape(-1), kind="stable")
    bounds = np.cumsum(np.bincount(index.reshape(-1), minlength=distinct.shape[1]))[:-1]
    return [(tuple(int(part) for part in distinct[:, i]), rows) for i, rows in enumerate(np.split(order, bounds))]
