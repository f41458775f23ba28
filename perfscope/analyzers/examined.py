"""Counts of the records that rules examine: the evidence of a clean outcome."""

from __future__ import annotations

import numpy as np

from perfscope.model.finding import Scope
from perfscope.model.trace import MISSING, SliceKind, Trace


def device_records(trace: Trace) -> Scope:
    """Count kernels and copies."""
    return Scope(len(trace.rows["kernels"]) + len(trace.rows["copies"]), "kernels and copies in the recording")


def launched_records(trace: Trace) -> Scope:
    """Count kernels with known launch."""
    return Scope(int(np.count_nonzero(trace.rows["kernels"]["call"] != MISSING)), "kernels with a recorded launch")


def host_records(trace: Trace) -> Scope:
    """Count ops, functions and runtime calls of the host, including instructions of XLA's CPU backend."""
    count = len(trace.rows["slices"]) + len(trace.rows["calls"]) + len(trace.rows["hlo_ops"])
    return Scope(count, "ops and calls of the host in the recording")


def program_records(trace: Trace) -> Scope:
    """Count instructions of compiled XLA programs."""
    count = sum(len(computation.instructions) for module in trace.hlo for computation in module.computations.values())
    return Scope(count, "instructions in the compiled programs")


def op_records(trace: Trace) -> Scope:
    """Count ops of planned programs, else of the op graph, else instructions of programs, else recorded records."""
    graphs = [plan.eager for plan in trace.torch_plans] if trace.torch_plans else [trace.op_graph]
    ops = sum(len(graph.ops) for graph in graphs if graph is not None)
    if ops or trace.torch_plans:
        return Scope(ops, "ops in the step")
    if trace.hlo:
        return program_records(trace)
    recorded = int(np.count_nonzero(trace.rows["slices"]["kind"] == SliceKind.OP)) + len(trace.rows["kernels"])
    return Scope(recorded, "ops and kernels in the recording")


def plan_records(trace: Trace) -> Scope:
    """Count planned PyTorch programs."""
    return Scope(len(trace.torch_plans), "planned programs")
