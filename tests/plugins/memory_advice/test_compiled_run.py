"""Recomputation in a program that torch.compile compiled."""

from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.trace import Trace
from perfscope.plugins.memory_advice.rules.excess_remat.compiled import graph_recompute
from tests.torch_compile.test_compiled_run import trace as trace

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_recomputed_elementwise_ops_are_a_fact_and_no_finding(trace: Trace) -> None:
    (graph,) = trace.fact(graph_recompute)
    assert graph.nodes
    assert not graph.heavy
    assert judge(load_rule("excess_remat"), trace).status == "clean"
