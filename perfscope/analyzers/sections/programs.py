"""The compiled programs of all traces as one bounded section of an analysis; what breaks in it breaks nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.programs.hot_instructions import HotSpots, hot_instructions
from perfscope.analyzers.programs.programs import Program, programs
from perfscope.model.trace import Trace

_log = logging.getLogger(__name__)

MOST_PROGRAMS = 20
"""Programs of a section: a training script has two or three that matter and dozens of one op each."""

MOST_ROWS = 20
"""Instructions, lines and scopes of a trace: those below the twentieth are a percent or two each."""

MOST_SPOTS = 8
"""Recordings (or programs alone) whose instructions are listed: a node's ranks, those with the most time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsSection:
    """Programs and where their time goes, worst first; bounded, what is left out is counted."""

    programs: tuple[Program, ...] = ()
    programs_left: int = 0
    """Programs that are not in ``programs``."""
    ran: int = 0
    """Programs that ran in a recording."""
    instructions_ns: int = 0
    """Measured time of all instructions of all programs that enclose no other, those left out included."""
    on_cpu: bool = False
    """All that ran, ran on XLA's CPU backend."""
    hot_spots: tuple[HotSpots, ...] = ()
    """One a recording, or one a program where there is none; those with the most time."""
    spots_left: int = 0
    problems: tuple[str, ...] = ()
    """Why a trace's programs are not in here."""


NO_PROGRAMS = ProgramsSection()


def programs_section(traces: Sequence[Trace]) -> ProgramsSection:
    """The section of all traces; a trace whose programs break it is named in ``problems``."""
    found: list[Program] = []
    spots: list[HotSpots] = []
    problems = []
    spots_left = 0
    for trace in traces:
        if not trace.hlo and not len(trace.rows["hlo_ops"]):
            continue
        try:
            mine, hot = trace.fact(programs), trace.fact(hot_instructions)
        except Exception as error:  # as with a rule: what breaks here must not cost the findings
            _log.warning("programs of %s", trace.source.path, exc_info=True)
            problems.append(f"the compiled programs could not be summed up: {type(error).__name__}: {error}")
            continue
        found += mine
        spots += [one.top(MOST_ROWS) for one in hot[:MOST_SPOTS]]
        spots_left += max(0, len(hot) - MOST_SPOTS)
    if len(traces) > 1:
        found.sort(key=lambda one: -(one.execution.instructions_ns if one.execution else -1))
        spots.sort(key=lambda one: -one.total_ns)
    ran = [one for one in found if one.execution is not None]
    return ProgramsSection(
        programs=tuple(found[:MOST_PROGRAMS]),
        programs_left=max(0, len(found) - MOST_PROGRAMS),
        ran=len(ran),
        instructions_ns=sum(one.execution.instructions_ns for one in ran if one.execution is not None),
        on_cpu=bool(ran) and all(one.platform in ("cpu", None) for one in ran) and any(one.platform for one in ran),
        hot_spots=tuple(spots[:MOST_SPOTS]),
        spots_left=spots_left + max(0, len(spots) - MOST_SPOTS),
        problems=tuple(problems),
    )
