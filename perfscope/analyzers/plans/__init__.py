"""Planned PyTorch programs: their work, exchanges and graph breaks, priced for a target."""

from __future__ import annotations

from perfscope.analyzers.plans.collectives import (
    ExchangeRow,
    ExchangeSummary,
    ExchangeTotals,
    exchange_rows,
    exchange_summary,
)
from perfscope.analyzers.plans.time import (
    GraphWork,
    PlanWork,
    Work,
    bytes_ns,
    launches,
    op_bytes,
    plan_works,
    product_dtype,
    shortest_ns,
)

__all__ = [
    "ExchangeRow",
    "ExchangeSummary",
    "ExchangeTotals",
    "GraphWork",
    "PlanWork",
    "Work",
    "bytes_ns",
    "exchange_rows",
    "exchange_summary",
    "launches",
    "op_bytes",
    "plan_works",
    "product_dtype",
    "shortest_ns",
]
