"""Compilations that rules look at, counted: the evidence of a clean outcome."""

from __future__ import annotations

from perfscope.analyzers.time import plan_records
from perfscope.model.finding import Scope
from perfscope.model.trace import Trace


def compile_records(trace: Trace) -> Scope:
    """Compilations and graph breaks of torch.compile, compilations of jax; planned programs where there is a plan."""
    if trace.torch_plans:
        return plan_records(trace)
    log = trace.compile_log
    count = len(trace.compile_events) + (0 if log is None else len(log.compiles) + len(log.breaks))
    return Scope(count, "compilations in the log")
