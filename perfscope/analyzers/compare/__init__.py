"""Comparisons of two versions of a program: statistics with a verdict per metric, or the reason for its absence."""

from typing import TYPE_CHECKING

from perfscope.model.hooks import names_from

if TYPE_CHECKING:
    from perfscope.analyzers.compare.ab.judge import AbJudge as AbJudge
    from perfscope.analyzers.compare.ab.judge import AbResult as AbResult
    from perfscope.analyzers.compare.ab.judge import estimator_for as estimator_for
    from perfscope.analyzers.compare.ab.profiles import Profiles as Profiles
    from perfscope.analyzers.compare.ab.profiles import compare_profiles as compare_profiles
    from perfscope.analyzers.compare.programs.gates import PROGRAM_GATES as PROGRAM_GATES
    from perfscope.analyzers.compare.programs.gates import ProgramGate as ProgramGate
    from perfscope.analyzers.compare.programs.gates import program_gate as program_gate
    from perfscope.analyzers.compare.programs.row import Amounts as Amounts
    from perfscope.analyzers.compare.programs.row import ProgramChange as ProgramChange
    from perfscope.analyzers.compare.programs.row import ProgramRow as ProgramRow
    from perfscope.analyzers.compare.programs.units import UNITS as UNITS
    from perfscope.analyzers.compare.runs.causes import Cause as Cause
    from perfscope.analyzers.compare.runs.cautions import compare_loaded as compare_loaded
    from perfscope.analyzers.compare.runs.change import PartChange as PartChange
    from perfscope.analyzers.compare.runs.change import Side as Side
    from perfscope.analyzers.compare.runs.change import StepChange as StepChange
    from perfscope.analyzers.compare.runs.comparison import STEP_TIME as STEP_TIME
    from perfscope.analyzers.compare.runs.comparison import Comparison as Comparison
    from perfscope.analyzers.compare.runs.comparison import compare as compare
    from perfscope.analyzers.compare.runs.comparison import kind_of as kind_of
    from perfscope.analyzers.compare.runs.comparison import timed_name as timed_name
    from perfscope.analyzers.compare.runs.keys import LEVEL_WORDS as LEVEL_WORDS
    from perfscope.analyzers.compare.runs.keys import Key as Key
    from perfscope.analyzers.compare.runs.keys import Level as Level
    from perfscope.analyzers.compare.runs.keys import work_class as work_class
    from perfscope.analyzers.compare.runs.likely import LIKELY as LIKELY
    from perfscope.analyzers.compare.runs.likely import NOTED as NOTED
    from perfscope.analyzers.compare.runs.likely import OTHER_VENDOR as OTHER_VENDOR
    from perfscope.analyzers.compare.runs.likely import as_notes as as_notes
    from perfscope.analyzers.compare.runs.run_sets import SOFTWARE as SOFTWARE
    from perfscope.analyzers.compare.runs.run_sets import counted as counted
    from perfscope.analyzers.compare.runs.run_sets import environment_of as environment_of
    from perfscope.analyzers.compare.runs.run_sets import read_one as read_one
    from perfscope.analyzers.compare.runs.run_sets import read_set as read_set
    from perfscope.analyzers.compare.runs.run_sets import runs_in as runs_in
    from perfscope.analyzers.compare.runs.sets import SetsComparison as SetsComparison
    from perfscope.analyzers.compare.runs.sets import compare_sets as compare_sets
    from perfscope.analyzers.compare.runs.structure import NEUTRAL as NEUTRAL
    from perfscope.analyzers.compare.runs.structure import Structure as Structure
    from perfscope.analyzers.compare.runs.structure import structure as structure
    from perfscope.analyzers.compare.statistics.estimators import MEAN as MEAN
    from perfscope.analyzers.compare.statistics.estimators import location as location
    from perfscope.analyzers.compare.statistics.estimators import two_sided_p as two_sided_p
    from perfscope.analyzers.compare.statistics.paired import EARLY_LOOK as EARLY_LOOK
    from perfscope.analyzers.compare.statistics.paired import Effect as Effect
    from perfscope.analyzers.compare.statistics.paired import effect_of as effect_of
    from perfscope.analyzers.compare.statistics.paired import is_worse as is_worse
    from perfscope.analyzers.compare.statistics.paired import log_ratios as log_ratios
    from perfscope.analyzers.compare.statistics.verdict import LEAST as LEAST
    from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST as STEP_LEAST
    from perfscope.analyzers.compare.statistics.verdict import Least as Least
    from perfscope.analyzers.compare.statistics.verdict import MetricResult as MetricResult
else:
    __getattr__ = names_from(
        __name__,
        {
            "ab.judge": "AbJudge AbResult estimator_for",
            "ab.profiles": "Profiles compare_profiles",
            "programs.gates": "PROGRAM_GATES ProgramGate program_gate",
            "programs.row": "Amounts ProgramChange ProgramRow",
            "programs.units": "UNITS",
            "runs.causes": "Cause",
            "runs.cautions": "compare_loaded",
            "runs.change": "PartChange Side StepChange",
            "runs.comparison": "Comparison STEP_TIME compare kind_of timed_name",
            "runs.keys": "Key LEVEL_WORDS Level work_class",
            "runs.likely": "LIKELY NOTED OTHER_VENDOR as_notes",
            "runs.run_sets": "SOFTWARE counted environment_of read_one read_set runs_in",
            "runs.sets": "SetsComparison compare_sets",
            "runs.structure": "NEUTRAL Structure structure",
            "statistics.estimators": "MEAN location two_sided_p",
            "statistics.paired": "EARLY_LOOK Effect effect_of is_worse log_ratios",
            "statistics.verdict": "LEAST Least MetricResult STEP_LEAST",
        },
    )
