"""Arithmetic that a compiled program runs again, as it is and as it would be with another checkpoint policy."""

from __future__ import annotations

from perfscope.analyzers.advice.hlo_again import again_of
from perfscope.analyzers.advice.hlo_kept import runs_again
from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_policies import Keeps, flops_of, nothing, unbatched_products
from perfscope.analyzers.advice.step_model import Policy
from perfscope.analyzers.advice.step_model_hlo import layers_of
from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.schedule import Schedule
from perfscope.model.trace import Trace

_CONTAINERS = ("fusion", "while", "call", "get-tuple-element")


def recomputed_flops(trace: Trace, index: int) -> int:
    """FLOPs of one run that a program computes again for its backward."""
    phases = trace.fact(hlo_costs)[index].phases
    return phases["recompute"].flops if "recompute" in phases else 0


def predicted_recompute(trace: Trace, index: int, policy: Policy) -> int | None:
    """The same with ``policy`` for all layers, predicted; ``None`` for one that no prediction is made for.

    Less kept than now is what runs again besides; everything kept is what layers run again of themselves all the same,
    in loops within them.
    """
    module = trace.hlo[index]
    flow = Flow(module)
    found = layers_of(module, flow, Schedule(module))
    if not found:
        return None
    cost = trace.fact(hlo_costs)[index]
    if policy == "keep":
        loops = not found[0].scope
        return sum(
            row.total.flops
            for row in cost.by_name.values()
            if "rematted_computation" in row.instruction.op_name
            and not runs_again(row.instruction.op_name, loops=loops)
            and row.instruction.opcode not in _CONTAINERS
        )
    if policy == "offload":
        return None
    keeps: Keeps = nothing if policy == "full" else unbatched_products(flow)
    again = [again_of(Layer(flow, layers), layers.kept, keeps).computed for layers in found]
    return recomputed_flops(trace, index) + sum(flops_of(cost, flow, numbers) for numbers in again)
