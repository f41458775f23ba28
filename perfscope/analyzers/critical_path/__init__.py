"""The critical path of a step: what bound it, what has slack, and what a change would gain."""

from __future__ import annotations

from perfscope.analyzers.critical_path.graph import Graph, NodeKind, Via, dependency_graph
from perfscope.analyzers.critical_path.path import PARTS, CriticalPath, critical_path, path_parts

__all__ = ["PARTS", "CriticalPath", "Graph", "NodeKind", "Via", "critical_path", "dependency_graph", "path_parts"]
