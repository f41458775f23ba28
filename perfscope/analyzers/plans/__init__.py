"""Planned PyTorch programs: their work, exchanges and graph breaks, priced for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.plans.collectives import (
    XLA_KINDS,
    ExchangeRow,
    ExchangeSummary,
    ExchangeTotals,
    StepExchanges,
    exchange_rows,
    exchange_summary,
    overlapping_kernels,
    planned_collectives,
)
from perfscope.analyzers.plans.pipelines import PipelineStep, StageRank, pipeline_step, rank_of
from perfscope.analyzers.plans.time import (
    GraphWork,
    PlanWork,
    Work,
    bytes_ns,
    launches,
    op_bytes,
    op_ranges,
    plan_works,
    product_dtype,
    shortest_ns,
)
from perfscope.model.hooks import names_from

__all__ = [
    "XLA_KINDS",
    "ExchangeRow",
    "ExchangeSummary",
    "ExchangeTotals",
    "GraphWork",
    "PipelineStep",
    "PlanWork",
    "StageRank",
    "StepExchanges",
    "Work",
    "bytes_ns",
    "exchange_rows",
    "exchange_summary",
    "launches",
    "op_bytes",
    "op_ranges",
    "overlapping_kernels",
    "pipeline_step",
    "plan_works",
    "planned_collectives",
    "product_dtype",
    "rank_of",
    "shortest_ns",
]

if TYPE_CHECKING:
    from perfscope.analyzers.plans.graph_cost import Saving as Saving
    from perfscope.analyzers.plans.graph_cost import how_joined as how_joined
    from perfscope.analyzers.plans.graph_cost import saving as saving
    from perfscope.analyzers.plans.graph_cost import step_bytes as step_bytes
    from perfscope.analyzers.plans.graph_cost import step_ns as step_ns
    from perfscope.analyzers.plans.graph_cost import steps_in as steps_in
else:
    __getattr__ = names_from(
        __name__,
        {
            "graph_cost": "Saving how_joined saving step_bytes step_ns steps_in",
        },
    )
