"""The modelled time of programs compiled for a target, as one bounded section of an analysis.

A recording of the same program on the same device, where one stands beside it in the analysis, is held against the
model. What breaks in it breaks nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.devices import find_device
from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.program import program_labels
from perfscope.analyzers.predict import Estimate, estimate
from perfscope.analyzers.predict.calibrate import Calibration, bounded, calibrate
from perfscope.analyzers.predict.model import LineTime
from perfscope.analyzers.predict.program import StepOfSeveral, calls_seen, step_of
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

_log = logging.getLogger(__name__)

MOST_PROGRAMS = 8
"""Programs of a section, those with most time: a training script has two or three that matter."""

MOST_ROWS = 20
"""Instructions and lines of a program: those below the twentieth are a percent or two each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTime:
    """One program on the target; its rows and lines are the largest."""

    label: str
    estimate: Estimate
    lines: tuple[LineTime, ...]
    lines_left: int
    rows_left: int
    launched: int
    """Instructions that are launched, those left out included."""
    calls: int | None
    """Seen while the program was watched; None: not known."""
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSection:
    """Programs compiled for a target and their modelled time, the most first; bounded, what is left out is counted."""

    programs: tuple[ProgramTime, ...] = ()
    programs_left: int = 0
    step: StepOfSeveral | None = None
    """Of several programs, where the calls that were seen tell."""
    problems: tuple[str, ...] = ()
    """Why the time of a program is not in here."""


NO_ESTIMATE = EstimateSection()


def estimate_section(traces: Sequence[Trace]) -> EstimateSection:
    """The section of all traces that were compiled for a target; those without one have no part in it."""
    programs: list[ProgramTime] = []
    problems: list[str] = []
    steps: list[StepOfSeveral] = []
    for trace in traces:
        if trace.target is None:
            continue
        recorded = [other for other in traces if other is not trace and _ran_on(other, trace.target.device.name)]
        found, step = _of_trace(trace, recorded, problems)
        programs += found
        if step is not None:
            steps.append(step)
    programs.sort(key=lambda one: -one.estimate.step_ns.middle * (one.calls or 1))
    return EstimateSection(
        programs=tuple(programs[:MOST_PROGRAMS]),
        programs_left=max(0, len(programs) - MOST_PROGRAMS),
        step=steps[0] if len(steps) == 1 else None,
        problems=tuple(problems),
    )


def _ran_on(trace: Trace, device: str) -> bool:
    """Whether a trace is a recording of programs on a device of that name."""
    if not len(trace.rows["hlo_ops"]):
        return False
    names = {trace.text(int(code)) for code in trace.rows["devices"]["name"]} - {""}
    found = [find_device(name) for name in names]
    return bool(found) and all(one is not None and one.name == device for one in found)


def _of_trace(
    trace: Trace, recorded: Sequence[Trace], problems: list[str]
) -> tuple[list[ProgramTime], StepOfSeveral | None]:
    programs, whole, counts = [], [], []
    calls, labels = calls_seen(trace), program_labels(trace.hlo)
    for index, module in enumerate(trace.hlo):
        if not module.is_scheduled:
            continue
        try:
            modelled = _modelled(trace, index, module)
            calibration = _calibrated(modelled, module, recorded, problems)
        except DataError as error:
            problems.append(str(error))
            continue
        except Exception as error:  # as with a rule: what breaks here must not cost the findings
            _log.warning("modelled time of %s", module.name, exc_info=True)
            problems.append(f"the time of {labels[index]} could not be modelled: {type(error).__name__}: {error}")
            continue
        programs.append(_bounded(labels[index], modelled, calls.get(index), calibration))
        whole.append(modelled)
        counts.append(calls.get(index))
    known = [count for count in counts if count is not None]
    step = step_of(whole, known) if len(known) == len(whole) > 1 else None
    return programs, step


def _modelled(trace: Trace, index: int, module: HloModule) -> Estimate:
    assert trace.target is not None
    return estimate(module, trace.target, cost=trace.fact(hlo_costs)[index])


def _calibrated(
    modelled: Estimate, module: HloModule, recorded: Sequence[Trace], problems: list[str]
) -> Calibration | None:
    for other in recorded:
        try:
            found = calibrate(modelled, module, other)
        except Exception as error:  # the model stands without it
            _log.warning("calibration of %s", module.name, exc_info=True)
            problems.append(
                f"{module.name} could not be held against {other.source.path}: {type(error).__name__}: {error}"
            )
            continue
        if found is not None:
            return bounded(found, MOST_ROWS)
    return None


def _bounded(label: str, modelled: Estimate, calls: int | None, calibration: Calibration | None) -> ProgramTime:
    lines = modelled.lines()
    kept = replace(modelled, rows=modelled.rows[:MOST_ROWS])
    return ProgramTime(
        label=label,
        estimate=kept,
        lines=lines[:MOST_ROWS],
        lines_left=max(0, len(lines) - MOST_ROWS),
        rows_left=max(0, len(modelled.rows) - MOST_ROWS),
        launched=len(modelled.rows),
        calls=calls,
        calibration=calibration,
    )
