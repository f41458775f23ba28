"""The critical path of a step: what bound it, what has slack, and what a change would gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.critical_path.graph import Graph, NodeKind, dependency_graph
from perfscope.analyzers.critical_path.job import job_paths
from perfscope.analyzers.critical_path.lane import NO_LANE
from perfscope.analyzers.critical_path.path import PARTS, critical_path, path_parts
from perfscope.analyzers.critical_path.replay import Change, replay, replayed_ns, slack, unchanged
from perfscope.analyzers.critical_path.savings import bounded_by_job, bounded_by_path, saved_on_path
from perfscope.analyzers.critical_path.summary import PathRow, PathSummary, path_rows, path_summary
from perfscope.analyzers.critical_path.what_if import Hypothesis, WhatIf, parse_hypothesis, what_if
from perfscope.model.hooks import names_from

__all__ = [
    "NO_LANE",
    "PARTS",
    "Change",
    "Graph",
    "Hypothesis",
    "NodeKind",
    "PathRow",
    "PathSummary",
    "WhatIf",
    "bounded_by_job",
    "bounded_by_path",
    "critical_path",
    "dependency_graph",
    "job_paths",
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


if TYPE_CHECKING:
    from perfscope.analyzers.critical_path.job_graph import MOST_RANKS as MOST_RANKS
else:
    __getattr__ = names_from(
        __name__,
        {
            "job_graph": "MOST_RANKS",
        },
    )
