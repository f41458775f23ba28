"""One graph for every program. Importers are imported by name where their input is met: ``from_ops``, ``from_hlo``."""

from perfscope.analyzers.graph.attention import ScoreGroup, score_groups
from perfscope.analyzers.graph.op_flow import Flow, base_name, flow_of, short_name, trace_flow
from perfscope.analyzers.graph.program_graph import Node, ProgramGraph

__all__ = [
    "Flow",
    "Node",
    "ProgramGraph",
    "ScoreGroup",
    "base_name",
    "flow_of",
    "score_groups",
    "short_name",
    "trace_flow",
]
