"""Saving by a fix in a compiled program: modelled time, limited by the measured time.

All rules about programs use it. A rule provides the affected instructions and the modelled saving per run of the
program (a ``Part``); ``price`` converts it to a cost:

- With a recording, time is that of the trace: the saving per run times the runs on a device. It is at most the time of
  the instructions while nothing else ran on their device, so that a wrong model cannot overstate.
- Programs alone have no times: the cost is that of **one run of the program**, modelled on the device of
  ``program_device``, without a cost per step.
- In a recording that does not contain the program there is no cost, because it took no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import roofline
from perfscope.analyzers.hlo import (
    FREE,
    HloModule,
    executions,
    executions_of,
    hlo_costs,
    hlo_time,
    measured_run_ns,
    module_index,
    program_device,
    program_roofs,
    roof_of,
    roof_sum_ns,
)
from perfscope.analyzers.time import timed_cost, whole_ns
from perfscope.model.finding import Basis, Finding, TimedCost
from perfscope.model.severity import Severity, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns


class Part(Struct, frozen=True, kw_only=True):
    """Instructions of a program, and the modelled saving on them per run of the program."""

    module: HloModule
    instructions: tuple[str, ...]
    """All instructions whose time the saving reduces; enclosing instructions (loops) do not count."""
    modelled_ns: float | None
    """Per run of the program; None without a model (no device)."""
    whole: bool = False
    """Whether all the time of the instructions is saved: measured time then replaces the model instead of limiting it.
    """


class Price(Struct, frozen=True, kw_only=True):
    """Upper bound of the saving. Times in ns."""

    run_ns: float
    """Per run of the program (of each program once, if there are several), on one device."""
    cost: TimedCost
    """Cost of the finding: over the trace; for programs alone, per run."""
    text: str
    """``'3.13 us per run of the program, on H100 SXM (assumed)'``, ``'41.0 us per step'``, ``'120 us in all'``."""
    whole_run_ns: int | None
    """For programs alone: the shortest time of one run, the reference of the cost."""


def is_alone(trace: Trace) -> bool:
    """Whether the source has programs but no recording of a run."""
    return trace.recorded == {"hlo"}


def once_ns(trace: Trace) -> Mapping[tuple[int, str, str], float]:
    """Return the time of one run of every instruction with a cost; loops and calls include their contents.

    Measured if available (the mean, overlapped or not), else the roof on the device; by index of the module,
    computation and name. Instructions with neither are omitted.
    """
    result = {}
    known, times, ran = trace.fact(program_device), trace.fact(hlo_time).by_key, trace.fact(executions)
    for index, cost in enumerate(trace.fact(hlo_costs)):
        for row in cost.rows:
            if row.place == "inside" or row.once == FREE:
                continue
            key = (index, row.computation, row.instruction.name)
            time = times.get((index, row.instruction.name))
            if index in ran and time is not None and time.computation == row.computation and row.runs:
                result[key] = time.total_ns / (ran[index].count * row.runs)
            elif known is not None:
                result[key] = roof_of(row, known.device).roof_ns
    return result


def bytes_ns(trace: Trace, moved: float) -> float | None:
    """Return the shortest time to move bytes through device memory; None without a known or assumed device."""
    known = trace.fact(program_device)
    return None if known is None else roofline.bytes_ns(known.device, moved)


def wire_ns(trace: Trace, sent: float) -> float | None:
    """Return the shortest time to send bytes over a device's links; None without a device or with unknown links."""
    known = trace.fact(program_device)
    return None if known is None else roofline.link_ns(known.device, sent)


def program_roof_ns(trace: Trace) -> Mapping[int, float]:
    """Return the shortest time of one run of each program on the device, by index in ``trace.hlo``.

    Empty without a device.
    """
    known = trace.fact(program_device)
    if known is None:
        return {}
    return {index: roof_sum_ns(program_roofs(cost, known.device)) for index, cost in enumerate(trace.fact(hlo_costs))}


def price(trace: Trace, parts: Iterable[Part]) -> Price | None:
    """Return the upper bound of the saving by fixing all parts; ``None`` without known times.

    Parts of one program are added, limited by the time of all their instructions together, so that an instruction in
    two parts is not saved twice. Two findings that could gain from the same work are each limited by it, but not both
    together. Severity depends on the share of the steps (without a recording, of the program's modelled time) and is
    never ``high`` for a model on an assumed device.
    """
    grouped: dict[int, list[Part]] = {}
    for part in parts:
        grouped.setdefault(module_index(trace, part.module), []).append(part)
    saved = {index: _of_program(trace, members) for index, members in grouped.items()}
    known = {index: found for index, found in saved.items() if found is not None}
    if not known:
        return None
    known_runs = {index: found.ns for index, found in known.items()}
    basis: Basis = "measured" if all(found.is_measured for found in known.values()) else "modelled"
    run_ns = sum(known_runs.values())
    device = trace.fact(program_device)
    sure = basis == "measured" or (device is not None and (device.recorded or device.given))
    if is_alone(trace):
        roofs = trace.fact(program_roof_ns)
        whole = sum(roofs.get(index, 0.0) for index in known)
        severity = severity_of(run_ns, whole)
        cost = TimedCost(severity=severity, basis=basis, cost_ns=round(run_ns), cost_ns_per_step=None)
        programs = "program" if len(known) == 1 else "programs"
        text = f"{format_ns(run_ns)} per run of the {programs}" + ("" if device is None else f", on {device.label()}")
    else:
        ran = trace.fact(executions)
        saved_ns = round(sum(ns * ran[index].rounds for index, ns in known_runs.items()))
        cost, whole = timed_cost(trace, saved_ns, whole_ns(trace), basis), 0.0
        step = cost["cost_ns_per_step"]
        text = f"{format_ns(saved_ns)} in all" if step is None else f"{format_ns(step)} per step"
        if basis == "modelled" and device is not None:
            text += f", modelled on {device.label()}"
    if cost["severity"] == "high" and not sure:
        cost["severity"] = "medium"
    return Price(run_ns=run_ns, cost=cost, text=text, whole_run_ns=round(whole) or None)


def priced(finding: Finding, saving: Price | None, severity: Severity | None = None) -> Finding:
    """Return a structural finding with the saving by its fix; unchanged for ``None``.

    ``severity``: by default that of the saving.
    """
    if saving is None:
        return finding
    cost = saving.cost if severity is None else saving.cost | {"severity": severity}
    return replace(finding, run_ns=saving.whole_run_ns, **cost)


class _Saved(Struct, frozen=True, kw_only=True):
    """Saving per run of a program."""

    ns: float
    is_measured: bool


def _of_program(trace: Trace, parts: list[Part]) -> _Saved | None:
    module = parts[0].module
    measured = measured_run_ns(trace, module, (name for part in parts for name in part.instructions))
    if not is_alone(trace) and executions_of(trace, module) is None:
        return None
    if measured is not None and all(part.whole for part in parts):
        return _Saved(ns=measured, is_measured=True)
    models = [part.modelled_ns for part in parts if part.modelled_ns is not None]
    if not models:
        return None
    modelled = max(0.0, sum(models))
    return _Saved(ns=modelled if measured is None else min(modelled, measured), is_measured=False)
