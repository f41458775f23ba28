"""Bounded sections of a report besides findings; a failure in one does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfscope.model.errors import log_failure
from perfscope.model.hooks import names_from

_log = logging.getLogger(__name__)


@contextmanager
def guarded(problem: str, source: str, problems: list[str]) -> Iterator[None]:
    """Catch any error inside, so that findings are not lost: it is added to ``problems``, and the rest continues.

    ``problem``: what the section then lacks; ``source``: file concerned.
    """
    try:
        yield
    except Exception as error:  # as for a rule
        log_failure(_log, f"{source}: {problem}", error)
        problems.append(f"{problem}: {type(error).__name__}: {error}")


if TYPE_CHECKING:
    from perfscope.analyzers.sections.call_trees import LEAST_SHARE as LEAST_SHARE
    from perfscope.analyzers.sections.call_trees import NO_STACK as NO_STACK
    from perfscope.analyzers.sections.call_trees import CallNode as CallNode
    from perfscope.analyzers.sections.call_trees import device_tree as device_tree
    from perfscope.analyzers.sections.call_trees import host_tree as host_tree
    from perfscope.analyzers.sections.call_trees import of_ranks as of_ranks
    from perfscope.analyzers.sections.call_trees import sampled_tree as sampled_tree
    from perfscope.analyzers.sections.call_trees import scope_tree as scope_tree
    from perfscope.analyzers.sections.collectives import MOST_JOBS as MOST_JOBS
    from perfscope.analyzers.sections.collectives import NO_COLLECTIVES as NO_COLLECTIVES
    from perfscope.analyzers.sections.collectives import CollectivesSection as CollectivesSection
    from perfscope.analyzers.sections.collectives import JobCollectives as JobCollectives
    from perfscope.analyzers.sections.collectives import collectives_section as collectives_section
    from perfscope.analyzers.sections.compile import NO_COMPILE as NO_COMPILE
    from perfscope.analyzers.sections.compile import CompileSection as CompileSection
    from perfscope.analyzers.sections.compile import JaxCompile as JaxCompile
    from perfscope.analyzers.sections.compile import JaxFunction as JaxFunction
    from perfscope.analyzers.sections.compile import RankCompile as RankCompile
    from perfscope.analyzers.sections.compile import compile_section as compile_section
    from perfscope.analyzers.sections.memory import NO_MEMORY as NO_MEMORY
    from perfscope.analyzers.sections.memory import MemoryEntry as MemoryEntry
    from perfscope.analyzers.sections.memory import MemorySection as MemorySection
    from perfscope.analyzers.sections.memory import RankMemory as RankMemory
    from perfscope.analyzers.sections.memory import memory_section as memory_section
    from perfscope.analyzers.sections.programs import NO_ESTIMATE as NO_ESTIMATE
    from perfscope.analyzers.sections.programs import NO_PLANS as NO_PLANS
    from perfscope.analyzers.sections.programs import NO_PROGRAMS as NO_PROGRAMS
    from perfscope.analyzers.sections.programs import BreakRow as BreakRow
    from perfscope.analyzers.sections.programs import EstimateSection as EstimateSection
    from perfscope.analyzers.sections.programs import KernelRuns as KernelRuns
    from perfscope.analyzers.sections.programs import PlanSection as PlanSection
    from perfscope.analyzers.sections.programs import PlanSummary as PlanSummary
    from perfscope.analyzers.sections.programs import ProgramsSection as ProgramsSection
    from perfscope.analyzers.sections.programs import ProgramTime as ProgramTime
    from perfscope.analyzers.sections.programs import estimate_section as estimate_section
    from perfscope.analyzers.sections.programs import plan_section as plan_section
    from perfscope.analyzers.sections.programs import programs_section as programs_section
    from perfscope.analyzers.sections.roofline_points import Point as Point
    from perfscope.analyzers.sections.roofline_points import call_points as call_points
    from perfscope.analyzers.sections.roofline_points import costed_time as costed_time
    from perfscope.analyzers.sections.roofline_points import graph_device as graph_device
    from perfscope.analyzers.sections.roofline_points import instruction_points as instruction_points
    from perfscope.analyzers.sections.roofline_points import merged as merged
    from perfscope.analyzers.sections.roofline_points import op_points as op_points
    from perfscope.analyzers.sections.roofline_points import points_by_kind as points_by_kind
    from perfscope.analyzers.sections.sampled import SampledCalls as SampledCalls
    from perfscope.analyzers.sections.sampled import sampled_calls as sampled_calls
    from perfscope.analyzers.sections.tables.roofline import RESULT as RESULT
else:
    __getattr__ = names_from(
        __name__,
        {
            "call_trees": "CallNode LEAST_SHARE NO_STACK device_tree host_tree of_ranks sampled_tree scope_tree",
            "collectives": "CollectivesSection JobCollectives MOST_JOBS NO_COLLECTIVES collectives_section",
            "compile": "CompileSection JaxCompile JaxFunction NO_COMPILE RankCompile compile_section",
            "memory": "MemoryEntry MemorySection NO_MEMORY RankMemory memory_section",
            "programs": (
                "BreakRow EstimateSection KernelRuns NO_ESTIMATE NO_PLANS NO_PROGRAMS PlanSection "
                "PlanSummary ProgramTime ProgramsSection estimate_section plan_section programs_section"
            ),
            "roofline_points": (
                "Point call_points costed_time graph_device instruction_points merged op_points points_by_kind"
            ),
            "sampled": "SampledCalls sampled_calls",
            "tables.roofline": "RESULT",
        },
    )
