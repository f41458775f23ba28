"""One graph for every program. Importers are imported by name where their input is met: ``from_ops``, ``from_hlo``."""

from perfscope.analyzers.graph.attention import ScoreGroup, score_groups
from perfscope.analyzers.graph.program_graph import Node, ProgramGraph

__all__ = ["Node", "ProgramGraph", "ScoreGroup", "score_groups"]
