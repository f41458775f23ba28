"""Comparisons of two versions of a program: statistics with a verdict per metric, or why there is none.

Names for plug-ins; each is imported when it is used, because a comparison of one kind needs no module of the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.compare.ab.judge import AbJudge as AbJudge
    from perfscope.analyzers.compare.runs.comparison import STEP_TIME as STEP_TIME
    from perfscope.analyzers.compare.runs.comparison import compare as compare
    from perfscope.analyzers.compare.runs.comparison import kind_of as kind_of
    from perfscope.analyzers.compare.runs.comparison import timed_name as timed_name
    from perfscope.analyzers.compare.runs.run_sets import SOFTWARE as SOFTWARE
    from perfscope.analyzers.compare.runs.run_sets import counted as counted
    from perfscope.analyzers.compare.runs.run_sets import environment_of as environment_of
    from perfscope.analyzers.compare.runs.structure import Structure as Structure
    from perfscope.analyzers.compare.runs.structure import structure as structure
    from perfscope.analyzers.compare.statistics.estimators import MEAN as MEAN
    from perfscope.analyzers.compare.statistics.estimators import location as location
    from perfscope.analyzers.compare.statistics.estimators import two_sided_p as two_sided_p
    from perfscope.analyzers.compare.statistics.paired import Effect as Effect
    from perfscope.analyzers.compare.statistics.paired import effect_of as effect_of
    from perfscope.analyzers.compare.statistics.paired import is_worse as is_worse
    from perfscope.analyzers.compare.statistics.paired import log_ratios as log_ratios
    from perfscope.analyzers.compare.statistics.verdict import LEAST as LEAST
    from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST as STEP_LEAST
    from perfscope.analyzers.compare.statistics.verdict import Least as Least
    from perfscope.analyzers.compare.statistics.verdict import MetricResult as MetricResult

__all__ = [
    "LEAST",
    "MEAN",
    "SOFTWARE",
    "STEP_LEAST",
    "STEP_TIME",
    "AbJudge",
    "Effect",
    "Least",
    "MetricResult",
    "Structure",
    "compare",
    "counted",
    "effect_of",
    "environment_of",
    "is_worse",
    "kind_of",
    "location",
    "log_ratios",
    "structure",
    "timed_name",
    "two_sided_p",
]

_HOMES = {
    "ab.judge": ("AbJudge",),
    "runs.comparison": ("STEP_TIME", "compare", "kind_of", "timed_name"),
    "runs.run_sets": ("SOFTWARE", "counted", "environment_of"),
    "runs.structure": ("Structure", "structure"),
    "statistics.estimators": ("MEAN", "location", "two_sided_p"),
    "statistics.paired": ("Effect", "effect_of", "is_worse", "log_ratios"),
    "statistics.verdict": ("LEAST", "Least", "MetricResult", "STEP_LEAST"),
}
"""Module below this package -> its names."""


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _HOMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
