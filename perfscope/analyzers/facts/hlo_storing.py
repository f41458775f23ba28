"""What keeping a result would take that a loop over layers computes again: room in a stack, and the way there and back.

Layers that ``jax.lax.scan`` runs hand what they keep to their backward in arrays with an axis of layers. What those
that are there take for each byte (`hlo_stacks.py`) is what another would take: less arithmetic, and more traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_layers import backward_body, layer_loops, reached
from perfscope.analyzers.advice.hlo_stacks import Stacks
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.facts.hlo_program import costs
from perfscope.analyzers.facts.hlo_remat import Recomputed
from perfscope.analyzers.facts.hlo_saving import Part, bytes_ns, once_ns
from perfscope.analyzers.hlo.cost import InstructionCost
from perfscope.analyzers.hlo.schedule import Schedule
from perfscope.model.trace import Trace


def storing_part(trace: Trace, products: Sequence[Recomputed]) -> Part | None:
    """What keeping the results of one program's products takes, for ``price``: its time is negative.

    ``None`` where they are of no loop over layers, or no time is known.
    """
    rates = trace.fact(_rates).get(id(products[0].cost), {}) if products else {}
    taken = sum(one.kept_bytes * _rate_of(rates, one) for one in products)
    return Part(module=products[0].cost.module, instructions=(), modelled_ns=-taken) if taken else None


def _rate_of(rates: Mapping[frozenset[str], float], one: Recomputed) -> float:
    return next((rate for inside, rate in rates.items() if one.row.computation in inside), 0.0)


def _rates(trace: Trace) -> Mapping[int, Mapping[frozenset[str], float]]:
    """By ``id`` of a program's cost: the computations of each backward loop over layers, and ns for a byte kept."""
    found: dict[int, dict[frozenset[str], float]] = {}
    modules = {id(module): index for index, module in enumerate(trace.hlo)}
    for cost in trace.fact(costs):
        index = modules.get(id(cost.module))
        if index is None or not cost.module.is_scheduled:
            continue
        flow, schedule = Flow(cost.module), Schedule(cost.module)
        for layers in layer_loops(cost.module, flow, schedule):
            stacks = Stacks(
                Layer(flow, layers),
                cost,
                partial(_time, trace.fact(once_ns), index),
                lambda size: bytes_ns(trace, size) or 0.0,
            )
            inside = reached(cost.module, backward_body(cost.module, schedule, layers))
            found.setdefault(id(cost), {})[inside] = stacks.ns_a_byte(layers.kept)
    return found


def _time(times: Mapping[tuple[int, str, str], float], index: int, row: InstructionCost) -> float:
    return times.get((index, row.computation, row.instruction.name), 0.0) * row.runs
