"""Compiled programs in the JSON report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.facts.hot_instructions import HotSpots
    from perfscope.analyzers.facts.programs import Program
    from perfscope.analyzers.programs_section import ProgramsSection


def programs_document(section: ProgramsSection) -> dict[str, Any]:
    """The section as dicts and lists; times of models are floats, measured ones integers."""
    return {
        "items": [_program(program) for program in section.programs],
        "left": section.programs_left,
        "ran": section.ran,
        "instructions_ns": section.instructions_ns,
        "hot_spots": [_hot_spots(spots) for spots in section.hot_spots],
        "hot_spots_left": section.spots_left,
        "problems": list(section.problems),
    }


def _program(program: Program) -> dict[str, Any]:
    ran, least, use = program.execution, program.least, program.utilization
    return {
        "name": program.name,
        "program_id": program.program_id,
        "rank": program.rank,
        "platform": program.platform,
        "recorded": program.module_index is not None,
        "execution": None if ran is None else asdict(ran),
        "flops": program.flops,
        "bytes": program.bytes,
        "exact": program.exact,
        "unknown_instructions": program.unknown,
        "flops_by_phase": dict(program.flops_by_phase),
        "peak_bytes": program.peak_bytes,
        "peak_known_by": program.peak_known_by,
        "least": None
        if least is None
        else {
            "device": least.device,
            "assumed": least.assumed,
            "least_ns": least.total_ns,
            "exact": least.exact,
            "bound": least.bound,
            "by_bound_ns": dict(least.by_bound),
        },
        "utilization": None if use is None else asdict(use),
    }


def _hot_spots(spots: HotSpots) -> dict[str, Any]:
    return {
        "rank": spots.rank,
        "program": spots.program,
        "basis": spots.basis,
        "total_ns": spots.total_ns,
        "unmatched_ns": spots.unmatched_ns,
        "instructions": [asdict(row) for row in spots.instructions],
        "lines": [asdict(place) for place in spots.lines],
        "scopes": [asdict(place) for place in spots.scopes],
        "left": {name: asdict(left) for name, left in spots.left.items()},
    }
