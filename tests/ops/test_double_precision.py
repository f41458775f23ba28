"""Ops in float64: their time, and where float64 enters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.documents.run import ProgramFact
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.hlo_build import hlo_module, hlo_trace, recorded_trace

RULE = load_rule("double_precision")
CPU = EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls", "waiting_calls", "shapes"}


def on_host(dtype: str = "float64", *, mm_us: float = 400, parameter: str | None = None) -> Trace:
    """A step of 1,000 us with a product, and an op of 10 us that is dispatch."""
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, mm_us)
    builder.op("aten::relu", 600, 610)
    graph = GraphBuilder()
    x = graph.input((64, 512), dtype)
    w = graph.input((512, 512), parameter or dtype, parameter=True)
    y = graph.op("mm", [x, w], (64, 512), file="train.py", line=11)
    graph.op("relu", [y], file="train.py", line=11)
    return replace(builder.build(), op_graph=graph.graph(), recorded=CPU | {"op_graph"})


def test_half_of_the_time_at_the_first_op_that_takes_float64() -> None:
    (finding,) = judge(RULE, on_host()).findings
    assert (finding.cost_ns, finding.basis) == (200_000, "modelled")
    assert (finding.where.file, finding.where.line) == ("train.py", 11)
    assert "1 matrix product per step" in finding.title
    assert [row["op"] for row in finding.evidence] == ["aten::mm"]


def test_a_noted_line_is_where_it_enters() -> None:
    fact = ProgramFact(name="float64", value="Net.double()", file="model.py", line=7)
    (finding,) = judge(RULE, replace(on_host(), program_facts=(fact,))).findings
    assert (finding.where.file, finding.where.line) == ("model.py", 7)


def test_below_a_twentieth_of_the_step_it_is_clean() -> None:
    assert judge(RULE, on_host(mm_us=100)).status == "flagged"
    assert judge(RULE, on_host(mm_us=99)).status == "clean"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_other_types_are_clean(dtype: str) -> None:
    assert judge(RULE, on_host(dtype)).status == "clean"


def test_kernels_on_a_device_are_counted_by_their_ops() -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 50, external_id=5, dtypes="['double', 'double']")
    builder.launched("gemm", 10, 60, 700, correlation=1, external_id=5)
    outcome = judge(RULE, builder.build())
    (finding,) = outcome.findings
    assert finding.cost_ns == 320_000


def test_without_dtypes_it_abstains() -> None:
    outcome = judge(RULE, replace(on_host(), op_graph=None, recorded=CPU))
    assert outcome.status == "abstained"
    assert "dtypes" in (outcome.reason or "")


def compiled(dtype: str = "f64", *, dot_us: float = 400) -> Trace:
    """A step of 1,000 us with a product of a compiled program."""
    meta = 'metadata={op_name="jit(step)/dot_general" source_file="train.py" source_line=11}'
    module = hlo_module(f"""
        ENTRY %main (a: {dtype}[64,64]) -> {dtype}[64,64] {{
          %a = {dtype}[64,64]{{1,0}} parameter(0)
          ROOT %d = {dtype}[64,64]{{1,0}} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {meta}
        }}
    """)
    trace = recorded_trace(module, ops=[("d", 0, dot_us)], steps=[(0, 1000)], runs=[1])
    return replace(trace, recorded=trace.recorded | {"host_ops"})


def test_a_compiled_program_in_float64_costs_half_its_instructions() -> None:
    (finding,) = judge(RULE, compiled()).findings
    assert (finding.cost_ns, finding.basis, finding.where.line) == (200_000, "modelled", 11)
    assert finding.title == "1 matrix product per step in float64"


def test_the_switch_of_jax_is_where_it_enters() -> None:
    fact = ProgramFact(name="jax_enable_x64", value="true", file="settings.py", line=2)
    (finding,) = judge(RULE, replace(compiled(), program_facts=(fact,))).findings
    assert finding.where.label() == "settings.py:2"
    assert "jax_enable_x64" in finding.advice
    assert judge(RULE, replace(compiled("f32"), program_facts=(fact,))).status == "clean"


def test_a_compiled_program_below_a_twentieth_is_clean() -> None:
    assert judge(RULE, compiled(dot_us=100)).status == "flagged"
    assert judge(RULE, compiled(dot_us=99)).status == "clean"


def test_a_program_that_was_not_recorded_is_not_evaluated() -> None:
    alone = hlo_trace(*compiled().hlo)
    assert judge(RULE, replace(alone, recorded=alone.recorded | {"host_ops"})).status == "abstained"
