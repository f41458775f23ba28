"""Cost of the compiled programs of a trace, each counted once."""

from __future__ import annotations

from perfscope.analyzers.hlo.cost import ModuleCost, module_cost
from perfscope.model.trace import Trace


def hlo_costs(trace: Trace) -> tuple[ModuleCost, ...]:
    """Cost of one run of each program in ``trace.hlo``, in the same order; modelled, nothing is measured."""
    return tuple(module_cost(module) for module in trace.hlo)
