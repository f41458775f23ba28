"""Step times of compiled programs in the scenarios of formula candidates, so that both are judged by the same ones.

A kernel or exchange of a compiled program has a range, as those of a formula have. A scenario gives its position in it,
and the schedule is played again with these times. The schedule decides which exchanges are hidden, so the
four assumptions on that move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analyzers.devices import Target
from perfscope.analyzers.hlo import HloModule, ModuleCost, collectives_of, module_cost
from perfscope.analyzers.predict import Range, Row, collective_range, estimate, factors_for
from perfscope.plugins.plan.assumptions import INDEX, Scenarios, Times

MOVED = ("products", "attention", "kernels", "link", "network")
"""Assumptions that move a compiled program."""

_CLASSES = {"product": "products", "library call": "attention"}
"""Class of an instruction -> assumption; all others are *kernels*. Attention of a library is a library call."""


def step_times(modules: Sequence[HloModule], target: Target, scenarios: Scenarios) -> Times:
    """Time of the step of these programs, ns, in each scenario."""
    columns = scenarios.rows[:, [INDEX[name] for name in MOVED]]
    positions, inverse = np.unique(columns, axis=0, return_inverse=True)
    played = [sum(found) for found in zip(*(_played(module, target, positions) for module in modules), strict=True)]
    result: Times = np.array(played, dtype=np.float64)[inverse.reshape(-1)]
    return result


def _played(module: HloModule, target: Target, positions: Times) -> list[float]:
    """Time at each row of positions of `MOVED`: the ends of the range are those of all at 0 and all at 1."""
    cost = module_cost(module)
    base = estimate(module, target, cost=cost)
    far = _between_nodes(module, target)
    names = [MOVED.index(_assumption(row, far)) for row in base.rows]
    slow = _once(cost, target, base.rows, names, np.ones(len(MOVED)))
    host = max(0.0, base.step_ns.high - slow)  # launches of the host that take longer than the device
    kernels = MOVED.index("kernels")
    return [
        min(_once(cost, target, base.rows, names, row) + host * float(row[kernels]), float(base.step_ns.high))
        for row in positions
    ]


def _once(cost: ModuleCost, target: Target, rows: Sequence[Row], names: Sequence[int], at: Times) -> float:
    times: Mapping[tuple[str, str], Range] = {
        (row.computation, row.name): _at(row.once, float(at[name])) for row, name in zip(rows, names, strict=True)
    }
    step = estimate(cost.module, target, cost=cost, times=times).step_ns
    return step.low + (step.high - step.low) * float(at[MOVED.index("kernels")])  # gaps between launches


def _at(span: Range, position: float) -> Range:
    time = round(span.low + (span.high - span.low) * position)
    return Range(low=time, high=time)


def _assumption(row: Row, far: frozenset[tuple[str, str]]) -> str:
    if row.what == "collective":
        return "network" if (row.computation, row.name) in far else "link"
    return _CLASSES.get(row.what, "kernels")


def _between_nodes(module: HloModule, target: Target) -> frozenset[tuple[str, str]]:
    """Collectives whose group spans nodes."""
    factors = factors_for(target)
    return frozenset(
        (one.computation.name, one.start.name)
        for one in collectives_of(module)
        if collective_range(one, target, factors).nodes > 1
    )
