"""What a compiled program would need with another checkpoint policy for its layers.

The program with the policy is worked out as a graph of kernels (``hlo_plan_loop.py``, ``hlo_plan_single.py``; of a
program with checkpoints what it would be without, ``hlo_keep_loop.py``, ``hlo_keep_single.py``), ordered
as XLA's memory schedulers order it (``hlo_orders.py``) and, where collectives end apart, its latency-hiding scheduler
(``hlo_latency.py``), and its peak is that of XLA's heap simulation in the order that XLA would choose
(``hlo_heap.py``). How near this comes to programs compiled with the policy is in docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from perfscope.analyzers.checkpointing.xla_model.copies import with_copies, without_copies, without_needless
from perfscope.analyzers.checkpointing.xla_model.graph import Graph, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values
from perfscope.analyzers.checkpointing.xla_model.heap import needed_peak, planned_order
from perfscope.analyzers.checkpointing.xla_model.keep_loop import kept_loop
from perfscope.analyzers.checkpointing.xla_model.keep_single import kept_single
from perfscope.analyzers.checkpointing.xla_model.latency import Clock, hidden, hides
from perfscope.analyzers.checkpointing.xla_model.layers import Layers
from perfscope.analyzers.checkpointing.xla_model.plan_loop import loop_plan
from perfscope.analyzers.checkpointing.xla_model.plan_single import single_plan
from perfscope.analyzers.checkpointing.xla_model.policies import Keeps
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.thunks import Schedule

MOST_INSTRUCTIONS = 40_000
"""Of a program that is predicted: ordering takes time with the square of an instruction's readers at worst."""
MOST_PARTIAL = 4
"""Numbers of layers, out of all, that a policy is predicted for."""
MOST_PARTLY = 8_000
"""Instructions of a program for which that is more than all or none."""
SHARED = 0.01
"""Share of a program's results outside of its arguments' memory from which on that matters."""


class Predictor:
    """Predicts for one program."""

    def __init__(self, module: HloModule, flow: Flow, schedule: Schedule, layers: Sequence[Layers]) -> None:
        self._module = module
        self._flow = flow
        self._schedule = schedule
        self._layers = tuple(layers)

    @property
    def can(self) -> bool:
        """Whether the program is not too large to order."""
        return len(self._schedule) <= MOST_INSTRUCTIONS

    def keeps_in_loops(self, keeps: Keeps) -> bool:
        """Whether the policy keeps something of loops within the layers: a turn at a time, which is not predicted."""
        nested = frozenset().union(*(one.nested for one in self._layers))
        return any(keeps(number) for number, value in enumerate(self._flow.values) if value.computation.name in nested)

    def peak(self, keeps: Keeps, today: int, first: int | None = None) -> int:
        """Bytes at the peak with a policy for all layers, which keep everything now; ``today``: at the peak now.

        ``first``: for so many of the layers that run one after another, the first ones. ``ValueError`` where the
        program with the policy cannot be ordered.
        """
        return self._peak_of(self.graph(keeps, first), today)

    def peaks(self, keeps: Keeps, today: int) -> list[int]:
        """``peak`` for the first layer alone, the first two, and so on; of loops for all or none.

        Of many layers some are taken from those before and behind them.
        """
        count = len(self._layers)
        if not self._layers[0].scope:
            return [self.peak(keeps, today)]
        asked = sorted({round(count * at / MOST_PARTIAL) for at in range(1, MOST_PARTIAL + 1)} - {0})
        if len(self._schedule) > MOST_PARTLY:
            asked = [count]
        found = [self.peak(keeps, today, first) for first in asked]
        return [round(one) for one in np.interp(range(1, count + 1), [0, *asked], [today, *found])]

    def peak_of_all(self, today: int) -> int:
        """Bytes at the peak with everything kept for all layers, which are checkpointed now; as ``peak``."""
        return self._peak_of(self.graph_of_all(), today)

    def graph_of_all(self) -> Graph:
        """The program without its checkpoints."""
        if self._layers[0].scope:
            return kept_single(self._module, self._flow)
        graph: Graph | None = None
        for layers in self._layers:
            graph = kept_loop(self._module, self._flow, self._schedule, layers, graph)
        assert graph is not None
        return graph

    def _peak_of(self, graph: Graph, today: int) -> int:
        without_copies(graph)
        copies = with_copies(graph)
        order, _ = planned_order(Values(graph))
        if self._module.platform == "gpu" and hides(graph):
            order = hidden(graph, order, self._clock.times(graph))
        without_needless(graph, copies, order)
        predicted = needed_peak(Values(graph), order)
        if self._shares_results():
            predicted += today - needed_peak(Values(graph_of(self._module)), self._order_today())
        return predicted

    def graph(self, keeps: Keeps, first: int | None = None) -> Graph:
        """The program with a policy for all layers, or the first of those that run one after another."""
        if self._layers[0].scope:
            return single_plan(self._module, self._flow, self._schedule, self._layers[:first], keeps)
        graph: Graph | None = None
        for layers in self._layers:
            graph = loop_plan(self._module, self._flow, self._schedule, layers, keeps, graph)
        assert graph is not None
        return graph

    @cached_property
    def _clock(self) -> Clock:
        return Clock(self._module, module_cost(self._module))

    def _order_today(self) -> dict[str, list[str]]:
        return {
            name: [one.name for one in self._module.computations[name].instructions]
            for name in graph_of(self._module).bodies
        }

    def _shares_results(self) -> bool:
        """Results lie in no argument's memory: XLA puts temporaries there as well, which is not modelled.

        What the model is off for today's program is taken off then.
        """
        donated = {one.output[0] if one.output else 0 for one in self._module.aliases}
        shape = self._module.entry_computation().root.shape
        parts = shape.parts or (shape,)
        free = sum(part.bytes for at, part in enumerate(parts) if at not in donated)
        return free > SHARED * sum(part.bytes for part in parts)
