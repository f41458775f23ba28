"""One graph for every program. Importers are imported by name where their input is met: ``from_ops``, ``from_hlo``.

Attention and widened products are found on it. Other judgements keep the representation of their source:

* fusion: may these ops be fused (op graph), did XLA fuse them (HLO), why did inductor refuse (its log) and what does a
  plan leave apart are four questions;
* precision: a recording has kernel names and no graph, a plan has one setting for all float32 products, HLO has a
  requested precision per product that XLA for CPUs widens on its own;
* recomputation is marked by the recorder in op graphs, by equal nodes of two graphs in inductor's log, and by scopes
  and names of clones in HLO; from there on, ``StepModel`` of memory advice is one representation;
* live bytes are one sweep over blocks already (``model/live_bytes.py``), and FLOPs of a product one formula
  (``model/op_flops.py``); the bytes of a kernel depend on its fusion.
"""

from typing import TYPE_CHECKING

from perfscope.analyzers.graph.attention import ScoreGroup, score_groups
from perfscope.analyzers.graph.op_flow import Flow, base_name, flow_of, short_name, trace_flow
from perfscope.analyzers.graph.program_graph import Node, ProgramGraph
from perfscope.model.hooks import names_from

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

if TYPE_CHECKING:
    from perfscope.analyzers.graph.from_hlo import POINTWISE as POINTWISE
    from perfscope.analyzers.graph.from_hlo import HloProgram as HloProgram
    from perfscope.analyzers.graph.from_hlo import Value as Value
    from perfscope.analyzers.graph.from_ops import SOFTMAX as SOFTMAX
    from perfscope.analyzers.graph.from_ops import op_program as op_program
    from perfscope.analyzers.graph.from_trace import BATCHED as BATCHED
    from perfscope.analyzers.graph.from_trace import trace_program as trace_program
else:
    __getattr__ = names_from(
        __name__,
        {
            "from_hlo": "HloProgram POINTWISE Value",
            "from_ops": "SOFTMAX op_program",
            "from_trace": "BATCHED trace_program",
        },
    )
