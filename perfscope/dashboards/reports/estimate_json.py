"""Modelled time in the JSON report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.estimate import Estimate, Row
    from perfscope.analyzers.estimate.calibrate import Calibration, InstructionError
    from perfscope.analyzers.estimate_section import EstimateSection, ProgramTime


def estimate_document(section: EstimateSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, ranges ``{"low", "high"}``."""
    return {
        "programs": [_program(one) for one in section.programs],
        "left": section.programs_left,
        "step": None if section.step is None else asdict(section.step),
        "problems": list(section.problems),
    }


def _program(one: ProgramTime) -> dict[str, Any]:
    return {
        "program": one.label,
        "known_by": "modelled",
        "calls": one.calls,
        **_estimate(one.estimate),
        "lines": [asdict(line) for line in one.lines],
        "lines_left": one.lines_left,
        "instructions": [_row(row) for row in one.estimate.rows],
        "instructions_left": one.rows_left,
        "calibration": None if one.calibration is None else _calibration(one.calibration),
    }


def _estimate(found: Estimate) -> dict[str, Any]:
    return {
        "target": found.target.shown,
        "step_ns": asdict(found.step_ns),
        "parts_ns": {"low": asdict(found.parts[0]), "high": asdict(found.parts[1])},
        "launches": found.launches,
        "host_ns": asdict(found.host_ns),
        "host_bound": found.host_bound,
        "mfu": None if found.mfu is None else list(found.mfu),
        "hfu": None if found.hfu is None else list(found.hfu),
        "peak_bytes": found.peak_bytes,
        "memory_bytes": found.memory_bytes,
        "fits": found.fits,
        "assumptions": [asdict(one) for one in found.assumptions],
        "blind_spots": list(found.blind_spots),
        "lower_bounds": list(found.lower_bounds),
        "not_known": len(found.not_known),
    }


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "total": asdict(row.total)}


def _calibration(found: Calibration) -> dict[str, Any]:
    return {
        "matched": found.matched,
        "differences": list(found.differences),
        "measured_ns": found.run.step_ns,
        "measured_busy_ns": found.run.busy_ns,
        "runs": found.run.runs,
        "devices": found.run.devices,
        "inside": found.inside,
        "calibrated_ns": asdict(found.calibrated),
        "groups": [asdict(one) for one in found.groups],
        "instructions": [_error(one) for one in found.instructions],
        "not_measured": found.not_measured,
        "priced_by_group": found.by_group,
    }


def _error(one: InstructionError) -> dict[str, Any]:
    return {
        "computation": one.row.computation,
        "name": one.row.name,
        "group": one.group,
        "runs": one.row.runs,
        "measured_ns": one.measured_ns,
        "modelled_ns": asdict(one.row.once),
        "off_ns": one.off_ns,
        "inside": one.inside,
    }
