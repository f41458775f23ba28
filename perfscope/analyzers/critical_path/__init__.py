"""The critical path of a step: what bound it, what has slack, and what a change would gain."""

from __future__ import annotations

from perfscope.analyzers.critical_path.graph import Graph, NodeKind, Via, dependency_graph
from perfscope.analyzers.critical_path.job import JobPath, job_paths
from perfscope.analyzers.critical_path.path import PARTS, CriticalPath, critical_path, path_parts
from perfscope.analyzers.critical_path.replay import Change, replay, replayed_ns, slack, unchanged
from perfscope.analyzers.critical_path.savings import bounded_by_job, bounded_by_path, saved_on_path
from perfscope.analyzers.critical_path.summary import PathRow, PathSummary, merge_rows, path_rows, path_summary
from perfscope.analyzers.critical_path.what_if import GENERAL_TARGETS, Hypothesis, WhatIf, parse_hypothesis, what_if

__all__ = [
    "GENERAL_TARGETS",
    "PARTS",
    "Change",
    "CriticalPath",
    "Graph",
    "Hypothesis",
    "JobPath",
    "NodeKind",
    "PathRow",
    "PathSummary",
    "Via",
    "WhatIf",
    "bounded_by_job",
    "bounded_by_path",
    "critical_path",
    "dependency_graph",
    "job_paths",
    "merge_rows",
    "parse_hypothesis",
    "path_parts",
    "path_rows",
    "path_summary",
    "replay",
    "replayed_ns",
    "saved_on_path",
    "slack",
    "unchanged",
    "what_if",
]
